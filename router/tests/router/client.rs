//! A small HTTP/1.1 client that can also misbehave: stop reading, hang up, send anything.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    /// The `Content-Type` of what is sent.
    kind: Option<&'static str>,
    headers: String,
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    body: Vec<u8>,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            kind: Some("application/json"),
            headers: String::new(),
        }
    }

    pub(crate) fn of_kind(self, kind: Option<&'static str>) -> Self {
        Self { kind, ..self }
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.extend([name, ": ", value, "\r\n"]);
        self
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, b"").await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, body.to_string().as_bytes()).await
    }

    /// Sends a request and leaves the connection open to be read.
    pub(crate) async fn open(&self, method: &str, path: &str, body: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("connects");
        let kind = self.kind.map(|kind| format!("content-type: {kind}\r\n"));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\
             {}content-length: {}\r\n{}\r\n",
            kind.unwrap_or_default(),
            body.len(),
            self.headers
        );
        stream.write_all(head.as_bytes()).await.expect("writes");
        // A server may answer and close before it has read a body that is too large.
        let _ = stream.write_all(body).await;
        stream
    }

    /// What a connection said until its end.
    pub(crate) fn parse(bytes: &[u8]) -> Answer {
        Answer::parse(bytes)
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let mut stream = self.open(method, path, body).await;
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        Answer::parse(&bytes)
    }
}

impl Answer {
    fn parse(bytes: &[u8]) -> Self {
        let split = bytes
            .windows(4)
            .position(|w| w == b"\r\n\r\n")
            .expect("an HTTP head");
        let head = String::from_utf8(bytes[..split].to_vec())
            .expect("text")
            .to_lowercase();
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|s| s.parse().ok())
            .expect("a status");
        let mut body = bytes[split + 4..].to_vec();
        if head.contains("transfer-encoding: chunked") {
            body = unchunk(&body);
        }
        Self { status, head, body }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}: ")))
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.text()))
    }

    /// Chunks of a stream; the end mark has to be there, once and last.
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut data: Vec<&str> = self
            .text()
            .split("\n\n")
            .filter(|event| !event.is_empty())
            .map(|event| event.strip_prefix("data: ").expect("a data line"))
            .collect();
        assert_eq!(data.pop(), Some("[DONE]"));
        data.into_iter()
            .map(|event| serde_json::from_str(event).expect("JSON"))
            .collect()
    }

    /// The message of an error, after checking that it has the form of one.
    pub(crate) fn error(&self) -> String {
        let json = self.json();
        let error = json["error"].as_object().expect("an error object");
        for key in ["message", "type", "param", "code"] {
            assert!(error.contains_key(key), "{key} in {json}");
        }
        error["message"].as_str().expect("a message").to_owned()
    }
}

/// Undoes the chunked transfer encoding, as far as it came.
fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some(end) = bytes.windows(2).position(|w| w == b"\r\n") {
        let size = std::str::from_utf8(&bytes[..end]).ok();
        let Some(size) = size.and_then(|s| usize::from_str_radix(s, 16).ok()) else {
            break;
        };
        let rest = &bytes[end + 2..];
        if size == 0 || rest.len() < size {
            break;
        }
        out.extend_from_slice(&rest[..size]);
        bytes = rest.get(size + 2..).unwrap_or_default();
    }
    out
}
