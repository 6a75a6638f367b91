//! How often an API server that fails is asked.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures::future::join_all;
use kube::{Client, Config};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::KubernetesRegistry;
use crate::{Interest, backoff::LONGEST};

/// Whatever is waited for is there long before.
const PATIENCE: Duration = Duration::from_secs(60);
/// A list with nothing in it.
const EMPTY: (u16, &str) = (
    200,
    r#"{"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"resourceVersion": "7"}, "items": []}"#,
);
/// What a server that fails says, to lists and to watches.
const FAILED: (u16, &str) = (
    500,
    r#"{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500,
        "reason": "InternalError", "message": "etcdserver: leader changed"}"#,
);
/// A watch that is told at once that its beginning is forgotten.
const FORGOTTEN: (u16, &str) = (
    200,
    r#"{"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old resource version"}}
"#,
);
/// A watch that tells of a change and fails after it.
const CHANGED: (u16, &str) = (
    200,
    r#"{"type": "ADDED", "object": {"kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1", "metadata": {"name": "s", "resourceVersion": "8"}, "addressType": "IPv4", "endpoints": []}}
{"type": "ERROR", "object": {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 500, "reason": "InternalError", "message": "etcdserver: leader changed"}}
"#,
);

/// An API server, and a registry that asks it.
struct Asked {
    lists: Arc<AtomicUsize>,
    server: JoinHandle<()>,
    _registry: KubernetesRegistry,
    _folder: tempfile::TempDir,
}

impl Asked {
    /// How many lists it was asked for.
    fn lists(&self) -> usize {
        self.lists.load(Ordering::Relaxed)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.server.abort();
    }
}

/// An API server that answers lists and watches so.
async fn asked(list: (u16, &'static str), watch: (u16, &'static str)) -> Asked {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let lists = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&lists);
    let server = tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = [0; 8192];
            let read = connection.read(&mut request).await.unwrap();
            let is_watch = String::from_utf8_lossy(&request[..read]).contains("watch=true");
            count.fetch_add(usize::from(!is_watch), Ordering::Relaxed);
            let (status, body) = if is_watch { watch } else { list };
            let answer = format!(
                "HTTP/1.1 {status} So\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
                 Connection: close\r\n\r\n{body}",
                body.len()
            );
            // Whoever has asked may be gone.
            let _ = connection.write_all(answer.as_bytes()).await;
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("directory.json");
    let pool = r#"{"name": "t", "model": "m", "address": "http://s.n.svc:7000"}"#;
    fs::write(&file, format!(r#"{{"pools": {{"targets": [{pool}]}}}}"#)).unwrap();
    let client = Client::try_from(Config::new(url.parse().unwrap())).unwrap();
    Asked {
        lists,
        server,
        _registry: KubernetesRegistry::open_in(client, file, Interest::All).unwrap(),
        _folder: folder,
    }
}

/// The most lists that are asked for within `time` if the waits between them double: of the shortest,
/// 50 ms, up to the shortest of the longest.
fn most(time: Duration) -> usize {
    let mut wait = Duration::from_millis(50);
    let (mut lists, mut end) = (1, wait);
    while end <= time {
        lists += 1;
        wait = (wait * 2).min(LONGEST / 2);
        end += wait;
    }
    lists
}

#[tokio::test]
async fn the_longer_an_api_server_fails_the_seldomer_it_is_asked() {
    let begun = Instant::now();
    let servers = join_all([
        asked(FAILED, FAILED),
        asked(EMPTY, FAILED),
        asked(EMPTY, FORGOTTEN),
        asked(EMPTY, CHANGED),
    ])
    .await;
    let often_enough = async {
        loop {
            sleep(Duration::from_millis(10)).await;
            let found: Vec<usize> = servers.iter().map(Asked::lists).collect();
            let most = most(begun.elapsed());
            for (case, lists) in found[..3].iter().enumerate() {
                assert!(*lists <= most, "case {case}: {found:?}, {most} at most");
            }
            // Whoever has told of a change is asked again soon.
            if found[3] > most.max(12) && found[..3].iter().all(|&lists| lists >= 2) {
                return;
            }
        }
    };
    timeout(PATIENCE, often_enough).await.unwrap();
}
