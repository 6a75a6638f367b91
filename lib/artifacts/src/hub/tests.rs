mod damage;
mod mirror;

use std::{
    fs,
    sync::{
        Barrier,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use self::mirror::{Break, COMMIT, Mirror, serve, sha256, tiny, weights};
use super::*;
use crate::progress::Silent;

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

    fn lose(&self, bytes: u64) {
        self.seen.fetch_sub(bytes, Ordering::Relaxed);
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
async fn templates_with_names_are_fetched_into_their_folder() {
    let mut files = tiny();
    for (path, text) in [
        ("chat_template.jinja", "plain"),
        ("additional_chat_templates/tool_use.jinja", "with tools"),
        ("additional_chat_templates/notes.txt", "of no use to us"),
        ("onnx/config.json", "not needed, whatever is in it"),
    ] {
        files.push((path, text.into()));
    }
    let (_mirror, options, _cache) = serve(Mirror {
        files,
        ..Mirror::default()
    })
    .await;
    let folder = uri().resolve(&options, &Silent).await.unwrap();
    let templates = folder.join("additional_chat_templates");
    let text = fs::read_to_string(templates.join("tool_use.jinja"));
    assert_eq!(text.unwrap(), "with tools");
    assert!(!templates.join("notes.txt").exists() && !folder.join("onnx").exists());
    assert_eq!(uri().resolve(&options, &Silent).await.unwrap(), folder);
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
    // Nothing listens on port 9 of this machine.
    let nowhere = Some("http://127.0.0.1:9".to_owned());
    let offline = |options: &HubOptions| HubOptions {
        endpoint: nowhere.clone(),
        ..options.clone()
    };
    let again = uri().resolve(&offline(&without), &Silent).await.unwrap();
    assert_eq!(again, folder, "and served with the hub out of reach");
    let error = uri().resolve(&offline(&options), &Silent).await;
    assert!(matches!(error, Err(HubError::Unreachable { .. })));
    let whole = uri().resolve(&options, &Silent).await.unwrap();
    assert_eq!(whole, folder);
    assert!(folder.join("model.safetensors").is_file());
}

#[tokio::test]
async fn of_a_commit_that_python_fetched_in_part_the_rest_is_fetched() {
    let (mirror, options, cache) = serve(Mirror {
        files: tiny(),
        ..Mirror::default()
    })
    .await;
    let pinned: ModelUri = format!("hf://owner/tiny@{COMMIT}").parse().unwrap();
    let snapshot = repository(&cache).join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::write(snapshot.join(file), "as Python has it").unwrap();
    }
    let folder = pinned.resolve(&options, &Silent).await.unwrap();
    assert_eq!(folder, snapshot);
    assert!(folder.join("tokenizer.json").is_file());
    let asked = mirror.served.load(Ordering::Relaxed);
    assert_eq!(pinned.resolve(&options, &Silent).await.unwrap(), folder);
    assert_eq!(mirror.served.load(Ordering::Relaxed), asked);
    let left: Vec<_> = fs::read_dir(repository(&cache)).unwrap().collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[tokio::test]
async fn a_link_that_leads_elsewhere_is_replaced() {
    let (_mirror, options, cache) = serve(Mirror {
        files: tiny(),
        ..Mirror::default()
    })
    .await;
    let snapshot = repository(&cache).join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    for (file, target) in [("config.json", "nothing"), ("tokenizer.json", "/dev/null")] {
        std::os::unix::fs::symlink(target, snapshot.join(file)).unwrap();
    }
    let folder = uri().resolve(&options, &Silent).await.unwrap();
    for name in ["config.json", "tokenizer.json"] {
        let (_, content) = tiny().into_iter().find(|(n, _)| *n == name).unwrap();
        assert_eq!(fs::read(folder.join(name)).unwrap(), content, "{name}");
    }
}

#[test]
fn whoever_links_the_same_files_at_the_same_time_does_not_fail() {
    let folder = tempfile::tempdir().unwrap();
    let ModelUri::Hub(repository) = uri() else {
        unreachable!("it is on the hub");
    };
    let cache = RepositoryCache::new(folder.path(), &repository, false);
    fs::create_dir_all(cache.blob("")).unwrap();
    fs::write(cache.blob("0a"), "content").unwrap();
    let together = Barrier::new(4);
    let link = || {
        together.wait();
        for file in 0..500 {
            cache.link(COMMIT, &file.to_string(), "0a").unwrap();
            cache.write_ref(&file.to_string(), COMMIT).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(link);
        }
    });
    for file in 0..500 {
        let read = fs::read_to_string(cache.snapshot(COMMIT).join(file.to_string()));
        assert_eq!(read.unwrap(), "content");
    }
}

#[tokio::test]
async fn a_download_that_breaks_or_stalls_goes_on_where_it_stopped() {
    for break_by in [Break::Cut, Break::Silence] {
        check_a_download_that_breaks(break_by).await;
    }
}

async fn check_a_download_that_breaks(break_by: Break) {
    let mirror = Mirror {
        files: tiny(),
        break_after: 100_000,
        breaks: AtomicU32::new(2),
        break_by,
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
async fn a_hub_that_says_to_wait_is_asked_again() {
    let mirror = Mirror {
        files: tiny(),
        // More often than its client asks of itself.
        limits: AtomicU32::new(7),
        ..Mirror::default()
    };
    let (_mirror, mut options, _cache) = serve(mirror).await;
    options.patience = None;
    let folder = uri().resolve(&options, &Silent).await.unwrap();
    let fetched = fs::read(folder.join("model.safetensors")).unwrap();
    assert_eq!(fetched, weights());
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
    let progress = Sum::default();
    let folder = uri().resolve(&options, &progress).await.unwrap();
    assert_eq!(
        fs::read(folder.join("model.safetensors")).unwrap(),
        weights()
    );
    assert_eq!(
        progress.seen.load(Ordering::Relaxed),
        progress.total.load(Ordering::Relaxed),
        "what was of no use does not count"
    );
}

#[tokio::test]
async fn a_hub_that_never_says_anything_is_given_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = HubOptions {
        endpoint: Some(format!("http://{}", listener.local_addr().unwrap())),
        cache: Some(tempfile::tempdir().unwrap().path().to_owned()),
        patience: Some(Duration::from_millis(50)),
        ..HubOptions::default()
    };
    let error = uri().resolve(&options, &Silent).await.unwrap_err();
    assert!(matches!(&error, HubError::Unreachable { .. }), "{error:?}");
    let error = error.to_string();
    assert!(error.contains("has said nothing for 50ms"), "{error}");
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
