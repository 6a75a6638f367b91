//! How often an API server that fails is asked.

use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use kube::{Client, Config};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::sleep,
};

use super::KubernetesRegistry;
use crate::Interest;

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

/// How many lists an API server is asked for within three seconds that answers lists and watches so.
async fn lists(list: (u16, &'static str), watch: (u16, &'static str)) -> usize {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
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
    let registry = KubernetesRegistry::open_in(client, file, Interest::All).unwrap();
    sleep(Duration::from_secs(3)).await;
    drop(registry);
    server.abort();
    asked.load(Ordering::Relaxed)
}

#[tokio::test]
async fn the_longer_an_api_server_fails_the_seldomer_it_is_asked() {
    let found = join_all([
        lists(FAILED, FAILED),
        lists(EMPTY, FAILED),
        lists(EMPTY, FORGOTTEN),
        lists(EMPTY, CHANGED),
    ])
    .await;
    // Waits of 50 ms at least that double come to seven; without doubling there are 30.
    for (case, lists) in found[..3].iter().enumerate() {
        assert!((2..=8).contains(lists), "case {case}: {found:?}");
    }
    assert!(
        found[3] > 12,
        "whoever has told of a change is asked again soon: {found:?}"
    );
}
