//! A hub on this machine, with the ways in which hubs fail.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, AtomicU64, Ordering},
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

pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub on this machine, with the ways in which hubs fail.
#[derive(Default)]
pub(super) struct Mirror {
    pub(super) files: Vec<(&'static str, Vec<u8>)>,
    /// Connections that break after this many bytes of a large file, so many times.
    pub(super) break_after: usize,
    pub(super) breaks: AtomicU32,
    pub(super) break_by: Break,
    /// Has so many bytes less of a large file than it announces.
    pub(super) lacks: usize,
    /// Answers ranges with the whole file.
    pub(super) no_ranges: bool,
    /// Sends other bytes than it announces.
    pub(super) lies: bool,
    /// Requests for files that it answers with a page of somebody else's.
    pub(super) strays: AtomicU32,
    /// How the names of these end.
    pub(super) strays_of: &'static str,
    /// What it calls the commit, if not by its digest.
    pub(super) commit: Option<&'static str>,
    pub(super) refuses: bool,
    /// Requests for large files that it answers with 429.
    pub(super) limits: AtomicU32,
    /// `Range` headers seen.
    pub(super) ranges: Mutex<Vec<String>>,
    pub(super) served: AtomicU64,
}

/// How a connection breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Break {
    #[default]
    Cut,
    /// It stays open, and nothing more comes.
    Silence,
}

pub(super) fn sha256(bytes: &[u8]) -> String {
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
    Json(json!({"id": "owner/tiny", "sha": mirror.commit.unwrap_or(COMMIT)})).into_response()
}

async fn tree(State(mirror): State<Arc<Mirror>>) -> Json<Value> {
    let mut list = listed(&mirror, "");
    for path in ["onnx", "additional_chat_templates"] {
        list.push(json!({"type": "directory", "oid": "00", "path": path}));
    }
    Json(Value::Array(list))
}

async fn folder(
    State(mirror): State<Arc<Mirror>>,
    UrlPath((_revision, folder)): UrlPath<(String, String)>,
) -> Json<Value> {
    Json(Value::Array(listed(&mirror, &format!("{folder}/"))))
}

/// Entries of the files that lie in a folder.
fn listed(mirror: &Mirror, folder: &str) -> Vec<Value> {
    let is_there = |(path, _): &&(&str, Vec<u8>)| {
        path.strip_prefix(folder)
            .is_some_and(|name| !name.contains('/'))
    };
    let entry = |(path, bytes): &(&str, Vec<u8>)| {
        let oid = format!("{:040x}", bytes.len());
        let mut entry = json!({"type": "file", "oid": oid, "size": bytes.len(), "path": path});
        if path.ends_with("safetensors") {
            entry["lfs"] = json!({"oid": sha256(bytes), "size": bytes.len(), "pointerSize": 130});
        }
        entry
    };
    mirror.files.iter().filter(is_there).map(entry).collect()
}

/// Whether this is one of so many times, of which there is one less now.
fn counts_down(times: &AtomicU32) -> bool {
    let fewer = |n: u32| n.checked_sub(1);
    times
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer)
        .is_ok()
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
    let may_stray = method == Method::GET && name.ends_with(mirror.strays_of);
    if may_stray && counts_down(&mirror.strays) {
        return "<html>please log in</html>".into_response();
    }
    if method == Method::GET && name.ends_with("safetensors") && counts_down(&mirror.limits) {
        return (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]).into_response();
    }
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
    if name.ends_with("safetensors") {
        sent.truncate(sent.len() - mirror.lacks);
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
            let start = start.parse::<usize>().unwrap();
            if start >= sent.len() {
                return StatusCode::RANGE_NOT_SATISFIABLE.into_response();
            }
            sent.drain(..start);
            status = StatusCode::PARTIAL_CONTENT;
        }
    }
    mirror
        .served
        .fetch_add(sent.len() as u64, Ordering::Relaxed);
    let breaks = name.ends_with("safetensors") && counts_down(&mirror.breaks);
    let length = [(header::CONTENT_LENGTH, sent.len().to_string())];
    if !breaks {
        return (status, head, length, sent).into_response();
    }
    sent.truncate(mirror.break_after);
    let part = stream::once(async { Ok::<_, std::io::Error>(Bytes::from(sent)) });
    if mirror.break_by == Break::Silence {
        let silence = stream::pending::<Result<Bytes, std::io::Error>>();
        return (status, head, length, Body::from_stream(part.chain(silence))).into_response();
    }
    let cut = stream::once(async {
        // What was sent has to be on its way before the connection breaks.
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        Err(std::io::Error::other("cable cut"))
    });
    (status, head, length, Body::from_stream(part.chain(cut))).into_response()
}

pub(super) fn weights() -> Vec<u8> {
    (0..300_000_u32).map(|i| (i % 251) as u8).collect()
}

pub(super) fn tiny() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{\"version\": 1}".to_vec()),
        ("model.safetensors", weights()),
        ("README.md", b"not needed".to_vec()),
        ("consolidated.safetensors", b"not needed either".to_vec()),
    ]
}

/// Serves a mirror and returns options that point to it and to a cache of its own.
pub(super) async fn serve(mirror: Mirror) -> (Arc<Mirror>, HubOptions, tempfile::TempDir) {
    // Silence is waited out; whatever else is waited for comes.
    let patience = match mirror.break_by {
        Break::Silence => Duration::from_secs(2),
        Break::Cut => Duration::from_secs(20),
    };
    let mirror = Arc::new(mirror);
    let app = Router::new()
        .route("/api/models/owner/tiny/revision/main", get(info))
        .route(
            &format!("/api/models/owner/tiny/revision/{COMMIT}"),
            get(info),
        )
        .route("/api/models/owner/tiny/tree/{revision}", get(tree))
        .route(
            "/api/models/owner/tiny/tree/{revision}/{*folder}",
            get(folder),
        )
        .route("/owner/tiny/resolve/{revision}/{*name}", get(file))
        .with_state(Arc::clone(&mirror));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions {
        endpoint: Some(endpoint),
        cache: Some(cache.path().to_owned()),
        patience: Some(patience),
        ..HubOptions::default()
    };
    (mirror, options, cache)
}
