use std::{
    fs,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path as UrlPath, State},
    http::{HeaderMap, Method, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::*;
use crate::progress::Silent;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub on this machine, with the ways in which hubs fail.
#[derive(Default)]
struct Mirror {
    files: Vec<(&'static str, Vec<u8>)>,
    /// Connections that break after this many bytes of a large file, so many times.
    break_after: usize,
    breaks: AtomicU32,
    /// Answers ranges with the whole file.
    no_ranges: bool,
    /// Sends other bytes than it announces.
    lies: bool,
    refuses: bool,
    /// `Range` headers seen.
    ranges: Mutex<Vec<String>>,
    served: AtomicU64,
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold(String::new(), |mut hex, byte| {
            use std::fmt::Write;
            write!(hex, "{byte:02x}").unwrap();
            hex
        })
}

async fn info(State(mirror): State<Arc<Mirror>>) -> Response {
    if mirror.refuses {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    Json(json!({"id": "owner/tiny", "sha": COMMIT})).into_response()
}

async fn tree(State(mirror): State<Arc<Mirror>>) -> Json<Value> {
    let entry = |(path, bytes): &(&str, Vec<u8>)| {
        let oid = format!("{:040x}", bytes.len());
        let mut entry = json!({"type": "file", "oid": oid, "size": bytes.len(), "path": path});
        if path.ends_with("safetensors") {
            entry["lfs"] = json!({"oid": sha256(bytes), "size": bytes.len(), "pointerSize": 130});
        }
        entry
    };
    let mut list: Vec<Value> = mirror.files.iter().map(entry).collect();
    list.push(json!({"type": "directory", "oid": "00", "path": "onnx"}));
    Json(Value::Array(list))
}

async fn file(
    State(mirror): State<Arc<Mirror>>,
    UrlPath((_revision, name)): UrlPath<(String, String)>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    let Some((_, bytes)) = mirror.files.iter().find(|(path, _)| *path == name) else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let tag = format!("\"{}\"", sha256(bytes));
    let head = [
        (header::ETAG.as_str(), tag),
        ("x-repo-commit", COMMIT.to_owned()),
    ];
    if method == Method::HEAD {
        return (head, [(header::CONTENT_LENGTH, bytes.len().to_string())]).into_response();
    }
    let mut sent = bytes.clone();
    if mirror.lies {
        for byte in &mut sent {
            *byte ^= 1;
        }
    }
    let mut status = StatusCode::OK;
    if let Some(range) = headers
        .get(header::RANGE)
        .and_then(|range| range.to_str().ok())
    {
        mirror.ranges.lock().unwrap().push(range.to_owned());
        if !mirror.no_ranges {
            let start = range
                .trim_start_matches("bytes=")
                .split('-')
                .next()
                .unwrap();
            sent.drain(..start.parse::<usize>().unwrap());
            status = StatusCode::PARTIAL_CONTENT;
        }
    }
    mirror
        .served
        .fetch_add(sent.len() as u64, Ordering::Relaxed);
    let breaks = name.ends_with("safetensors")
        && mirror
            .breaks
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
            .is_ok();
    let length = [(header::CONTENT_LENGTH, sent.len().to_string())];
    if !breaks {
        return (status, head, length, sent).into_response();
    }
    sent.truncate(mirror.break_after);
    let part = stream::once(async { Ok(Bytes::from(sent)) });
    let cut = stream::once(async {
        // What was sent has to be on its way before the connection breaks.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        Err(std::io::Error::other("cable cut"))
    });
    (status, head, length, Body::from_stream(part.chain(cut))).into_response()
}

fn weights() -> Vec<u8> {
    (0..300_000_u32).map(|i| (i % 251) as u8).collect()
}

fn tiny() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{\"version\": 1}".to_vec()),
        ("model.safetensors", weights()),
        ("README.md", b"not needed".to_vec()),
        ("consolidated.safetensors", b"not needed either".to_vec()),
    ]
}

/// Serves a mirror and returns options that point to it and to a cache of its own.
async fn serve(mirror: Mirror) -> (Arc<Mirror>, HubOptions, tempfile::TempDir) {
    let mirror = Arc::new(mirror);
    let app = Router::new()
        .route("/api/models/owner/tiny/revision/main", get(info))
        .route("/api/models/owner/tiny/tree/{revision}", get(tree))
        .route("/owner/tiny/resolve/{revision}/{name}", get(file))
        .with_state(Arc::clone(&mirror));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions {
        endpoint: Some(endpoint),
        cache: Some(cache.path().to_owned()),
        token: None,
        without_weights: false,
    };
    (mirror, options, cache)
}

fn uri() -> ModelUri {
    "hf://owner/tiny".parse().unwrap()
}

fn repository(cache: &tempfile::TempDir) -> PathBuf {
    cache.path().join("models--owner--tiny")
}

/// Sums what it hears.
#[derive(Default)]
struct Sum {
    total: AtomicU64,
    seen: AtomicU64,
    finished: AtomicU32,
}

impl Progress for Sum {
    fn begin(&self, _name: &str, total_bytes: u64, present_bytes: u64) {
        self.total.store(total_bytes, Ordering::Relaxed);
        self.seen.store(present_bytes, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        self.seen.fetch_add(bytes, Ordering::Relaxed);
    }

    fn finish(&self) {
        self.finished.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn a_model_is_fetched_once_and_only_what_is_needed() {
    let (mirror, options, cache) = serve(Mirror {
        files: tiny(),
        ..Mirror::default()
    })
    .await;
    let progress = Sum::default();
    let folder = uri().resolve(&options, &progress).await.unwrap();
    assert_eq!(
        fs::read(folder.join("model.safetensors")).unwrap(),
        weights()
    );
    assert!(folder.join("tokenizer.json").is_file());
    assert!(
        !folder.join("README.md").exists() && !folder.join("consolidated.safetensors").exists()
    );
    assert_eq!(folder, repository(&cache).join("snapshots").join(COMMIT));
    assert_eq!(
        progress.seen.load(Ordering::Relaxed),
        progress.total.load(Ordering::Relaxed)
    );
    assert_eq!(progress.finished.load(Ordering::Relaxed), 1);
    let blob = repository(&cache).join("blobs").join(sha256(&weights()));
    assert!(
        blob.is_file(),
        "blobs are named as the Python tools name them"
    );

    let served = mirror.served.load(Ordering::Relaxed);
    assert_eq!(uri().resolve(&options, &Silent).await.unwrap(), folder);
    assert_eq!(
        mirror.served.load(Ordering::Relaxed),
        served,
        "nothing is fetched twice"
    );
}

#[tokio::test]
async fn weights_are_left_if_nobody_computes_and_come_when_somebody_does() {
    let (_mirror, options, _cache) = serve(Mirror {
        files: tiny(),
        ..Mirror::default()
    })
    .await;
    let without = HubOptions {
        without_weights: true,
        ..options.clone()
    };
    let folder = uri().resolve(&without, &Silent).await.unwrap();
    assert!(folder.join("tokenizer.json").is_file());
    assert!(!folder.join("model.safetensors").exists());
    let whole = uri().resolve(&options, &Silent).await.unwrap();
    assert_eq!(whole, folder);
    assert!(folder.join("model.safetensors").is_file());
}

#[tokio::test]
async fn a_download_that_breaks_goes_on_where_it_stopped() {
    let mirror = Mirror {
        files: tiny(),
        break_after: 100_000,
        breaks: AtomicU32::new(2),
        ..Mirror::default()
    };
    let (mirror, options, _cache) = serve(mirror).await;
    let folder = uri().resolve(&options, &Silent).await.unwrap();
    assert_eq!(
        fs::read(folder.join("model.safetensors")).unwrap(),
        weights()
    );
    let ranges = mirror.ranges.lock().unwrap().clone();
    assert!(
        !ranges.is_empty() && ranges.iter().all(|range| range != "bytes=0-"),
        "{ranges:?}"
    );
}

#[tokio::test]
async fn what_an_interrupted_run_left_is_used_by_the_next() {
    let (mirror, options, cache) = serve(Mirror {
        files: tiny(),
        ..Mirror::default()
    })
    .await;
    let blobs = repository(&cache).join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    let partial = blobs.join(format!("{}.incomplete", sha256(&weights())));
    fs::write(&partial, &weights()[..200_000]).unwrap();
    let folder = uri().resolve(&options, &Silent).await.unwrap();
    assert_eq!(
        fs::read(folder.join("model.safetensors")).unwrap(),
        weights()
    );
    assert_eq!(*mirror.ranges.lock().unwrap(), ["bytes=200000-299999"]);
    assert!(!partial.exists());
}

#[tokio::test]
async fn a_mirror_without_ranges_still_gives_the_right_file() {
    let mirror = Mirror {
        files: tiny(),
        no_ranges: true,
        ..Mirror::default()
    };
    let (_mirror, options, cache) = serve(mirror).await;
    let blobs = repository(&cache).join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    let partial = blobs.join(format!("{}.incomplete", sha256(&weights())));
    fs::write(partial, b"something else").unwrap();
    let folder = uri().resolve(&options, &Silent).await.unwrap();
    assert_eq!(
        fs::read(folder.join("model.safetensors")).unwrap(),
        weights()
    );
}

#[tokio::test]
async fn damaged_files_are_not_used_nor_kept() {
    let (_mirror, options, cache) = serve(Mirror {
        files: tiny(),
        lies: true,
        ..Mirror::default()
    })
    .await;
    let error = uri().resolve(&options, &Silent).await.unwrap_err();
    assert!(matches!(&error, HubError::Damaged { file, .. } if file == "model.safetensors"));
    assert!(error.to_string().contains("SHA-256"), "{error}");
    assert!(
        !repository(&cache).join("snapshots").exists(),
        "no snapshot of half a model"
    );
    let left: Vec<_> = fs::read_dir(repository(&cache).join("blobs"))
        .unwrap()
        .collect();
    assert!(
        left.iter()
            .flatten()
            .all(|entry| entry.file_name().len() == 40),
        "{left:?}"
    );
}

#[cfg(unix)]
#[tokio::test]
async fn a_full_disk_is_said_and_leaves_no_snapshot() {
    let (_mirror, options, cache) = serve(Mirror {
        files: tiny(),
        ..Mirror::default()
    })
    .await;
    let blobs = repository(&cache).join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    // Every write to this device fails as a full disk does.
    let partial = blobs.join(format!("{}.incomplete", sha256(&weights())));
    std::os::unix::fs::symlink("/dev/full", partial).unwrap();
    let error = uri().resolve(&options, &Silent).await.unwrap_err();
    assert!(
        matches!(
            &error,
            HubError::DiskFull {
                missing_bytes: 300_000,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("HF_HUB_CACHE"), "{error}");
    assert!(!repository(&cache).join("snapshots").exists());
    assert!(!repository(&cache).join("refs").exists());
}

#[tokio::test]
async fn unknown_and_closed_repositories_are_told_apart() {
    let (_mirror, options, _cache) = serve(Mirror {
        files: tiny(),
        ..Mirror::default()
    })
    .await;
    let unknown: ModelUri = "hf://owner/other".parse().unwrap();
    let error = unknown.resolve(&options, &Silent).await.unwrap_err();
    assert!(matches!(&error, HubError::NotFound { .. }), "{error:?}");
    assert!(error.to_string().contains("hf://owner/other"), "{error}");

    let (_mirror, options, _cache) = serve(Mirror {
        refuses: true,
        ..Mirror::default()
    })
    .await;
    let error = uri().resolve(&options, &Silent).await.unwrap_err();
    assert!(matches!(error, HubError::Denied { .. }), "{error:?}");
    assert!(error.to_string().contains("HF_TOKEN"), "{error}");

    let files = vec![
        ("config.json", b"{}".to_vec()),
        ("model.bin", b"x".to_vec()),
    ];
    let (_mirror, options, _cache) = serve(Mirror {
        files,
        ..Mirror::default()
    })
    .await;
    let error = uri().resolve(&options, &Silent).await.unwrap_err();
    assert!(matches!(error, HubError::NoWeights { .. }), "{error:?}");
}

#[tokio::test]
async fn with_the_hub_out_of_reach_an_earlier_download_serves() {
    let (_mirror, mut options, cache) = serve(Mirror {
        files: tiny(),
        ..Mirror::default()
    })
    .await;
    let folder = uri().resolve(&options, &Silent).await.unwrap();
    // Nothing listens on port 9 of this machine.
    options.endpoint = Some("http://127.0.0.1:9".to_owned());
    assert_eq!(uri().resolve(&options, &Silent).await.unwrap(), folder);
    let pinned: ModelUri = format!("hf://owner/tiny@{COMMIT}").parse().unwrap();
    assert_eq!(pinned.resolve(&options, &Silent).await.unwrap(), folder);

    fs::remove_file(repository(&cache).join("blobs").join(sha256(&weights()))).unwrap();
    let error = uri().resolve(&options, &Silent).await.unwrap_err();
    assert!(matches!(&error, HubError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("HF_ENDPOINT"), "{error}");
}

#[test]
fn an_address_that_is_no_url_names_what_sets_it() {
    let options = HubOptions {
        endpoint: Some("nonsense".to_owned()),
        ..HubOptions::default()
    };
    let error = Hub::new(&options).err().unwrap().to_string();
    assert!(error.contains("HF_ENDPOINT"), "{error}");
}

#[tokio::test]
async fn a_folder_is_itself_and_a_missing_one_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let options = HubOptions::default();
    let uri = ModelUri::Folder(dir.path().to_owned());
    assert_eq!(uri.resolve(&options, &Silent).await.unwrap(), dir.path());
    let missing = ModelUri::Folder(dir.path().join("none"));
    let error = missing.resolve(&options, &Silent).await.unwrap_err();
    assert!(error.to_string().contains("does not exist"), "{error}");
}
