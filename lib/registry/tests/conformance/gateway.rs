//! etcd as people without a client of it speak to it: JSON over HTTP.

use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The gateway of an etcd.
#[derive(Clone)]
pub(crate) struct Gateway {
    pub(crate) port: u16,
    /// Who asks, where somebody must.
    pub(crate) token: Option<String>,
}

impl Gateway {
    /// What is answered to `body`; none if nobody answers.
    pub(crate) async fn ask(&self, path: &str, body: Value) -> Option<Value> {
        let body = body.to_string();
        let token = self.token.as_ref();
        let token = token.map_or_else(String::new, |it| format!("Authorization: {it}\r\n"));
        let head = format!(
            "POST /v3/{path} HTTP/1.0\r\nHost: etcd\r\nContent-Length: {}\r\n{token}\r\n",
            body.len()
        );
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).await.ok()?;
        stream
            .write_all(format!("{head}{body}").as_bytes())
            .await
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        assert!(head.contains(" 200 "), "{path}: {answer}");
        serde_json::from_str(body).ok()
    }

    pub(crate) async fn answers(&self) -> bool {
        self.ask("maintenance/status", json!({})).await.is_some()
    }

    /// Writes `key`, and says as of which revision it is so.
    pub(crate) async fn put(&self, key: &str, value: &str) -> u64 {
        let (key, value) = (base64(key), base64(value));
        let put = self.ask("kv/put", json!({"key": key, "value": value}));
        number(&put.await.unwrap()["header"]["revision"])
    }

    /// Takes `key` away, and says as of which revision it is so.
    pub(crate) async fn delete(&self, key: &str) -> u64 {
        let deleted = self.ask("kv/deleterange", json!({"key": base64(key)}));
        number(&deleted.await.unwrap()["header"]["revision"])
    }

    /// What holds `key`, if it was written after `revision`.
    pub(crate) async fn lease_of(&self, key: &str, revision: u64) -> Option<u64> {
        let found = self.ask("kv/range", json!({"key": base64(key)}));
        let found = &found.await.unwrap()["kvs"][0];
        (!found.is_null() && number(&found["mod_revision"]) > revision)
            .then(|| number(&found["lease"]))
    }

    /// Forgets all revisions but the latest.
    pub(crate) async fn compact(&self) {
        let status = self.ask("maintenance/status", json!({})).await.unwrap();
        let revision = status["header"]["revision"].clone();
        let physical = json!({"revision": revision, "physical": true});
        self.ask("kv/compaction", physical).await.unwrap();
    }

    /// All leases that have not run out.
    pub(crate) async fn leases(&self) -> Vec<u64> {
        let listed = self.ask("lease/leases", json!({})).await.unwrap();
        let leases = listed["leases"].as_array().into_iter().flatten();
        leases.map(|lease| number(&lease["ID"])).collect()
    }

    /// Ends all leases, and says how many there were.
    pub(crate) async fn revoke_all(&self) -> usize {
        let leases = self.leases().await;
        for lease in &leases {
            let lease = lease.to_string();
            self.ask("lease/revoke", json!({"ID": lease}))
                .await
                .unwrap();
        }
        leases.len()
    }
}

/// A number of 64 bits, which is a text in JSON of the gateway, and left out where it is 0.
fn number(value: &Value) -> u64 {
    value.as_str().map_or(0, |digits| digits.parse().unwrap())
}

/// RFC 4648, section 4.
fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digits = text.as_bytes().chunks(3).flat_map(|chunk| {
        let bytes = [0, 1, 2].map(|i| u32::from(chunk.get(i).copied().unwrap_or(0)));
        let bits = bytes[0] << 16 | bytes[1] << 8 | bytes[2];
        let len = chunk.len();
        [18, 12, 6, 0]
            .into_iter()
            .enumerate()
            .map(move |(i, shift)| {
                let digit = DIGITS[(bits >> shift & 63) as usize];
                char::from(if i <= len { digit } else { b'=' })
            })
    });
    digits.collect()
}
