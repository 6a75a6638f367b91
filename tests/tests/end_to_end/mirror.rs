//! A hub on this machine: the part of its HTTP that a download needs.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use foretoken_tests::shipped_model;
use serde_json::{Value, json};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Serves the shipped models as `owner/target` and `owner/draft`, until the test ends.
pub(crate) struct Mirror {
    /// What `HF_ENDPOINT` is to be.
    pub(crate) url: String,
    seen: Arc<Mutex<Seen>>,
}

/// What was asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Requests for the bytes of files.
    pub(crate) downloads: usize,
    /// Their `Range` headers, where they had one.
    pub(crate) ranges: Vec<String>,
}

impl Mirror {
    /// Starts serving. The first download of a large file stops after `stalls_after` bytes, with
    /// its connection open.
    pub(crate) fn start(stalls_after: Option<usize>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::<Mutex<Seen>>::default();
        let shared = Arc::clone(&seen);
        let stall = Arc::new(Mutex::new(stalls_after));
        let stalled = Arc::<Mutex<Vec<TcpStream>>>::default();
        // A thread for each: clients may open connections that they do not use.
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, stall) = (Arc::clone(&shared), Arc::clone(&stall));
                let stalled = Arc::clone(&stalled);
                thread::spawn(move || {
                    // A client that goes away is none of the mirror's business.
                    if let Ok(Some(stream)) = answer(stream, &seen, &stall) {
                        lock(&stalled).push(stream);
                    }
                });
            }
        });
        Self { url, seen }
    }

    /// What was asked for so far.
    pub(crate) fn seen(&self) -> Seen {
        lock(&self.seen).clone()
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers one request. A connection that stalls is returned.
fn answer(
    mut stream: TcpStream,
    seen: &Mutex<Seen>,
    stall: &Mutex<Option<usize>>,
) -> std::io::Result<Option<TcpStream>> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    let mut range = None;
    for line in lines {
        let line = line?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("range: ") {
            range = Some(value.to_owned());
        }
    }
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let path = path.split('?').next().unwrap_or("");
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let body = match parts.as_slice() {
        ["api", "models", "owner", _, "revision", _] => json!({"id": "owner/model", "sha": COMMIT})
            .to_string()
            .into_bytes(),
        ["api", "models", "owner", name, "tree", _] => tree(name).to_string().into_bytes(),
        ["owner", name, "resolve", _, file] => fs::read(shipped_model(name).join(file))?,
        _ => {
            write!(
                stream,
                "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            )?;
            return Ok(None);
        }
    };
    let start = range.as_deref().and_then(|range| {
        let first = range.trim_start_matches("bytes=").split('-').next()?;
        first.parse::<usize>().ok()
    });
    let is_download = parts[0] == "owner" && method == "GET";
    if is_download {
        let mut seen = lock(seen);
        seen.downloads += 1;
        seen.ranges.extend(range);
    }
    let status = if start.is_some() {
        "206 Partial Content"
    } else {
        "200 OK"
    };
    let sent = &body[start.unwrap_or(0)..];
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\netag: \"{}\"\r\nx-repo-commit: {COMMIT}\r\n\
         content-type: application/json\r\nconnection: close\r\n\r\n",
        sent.len(),
        body.len(),
    )?;
    if method == "HEAD" {
        return Ok(None);
    }
    let limit = lock(stall).take_if(|limit| is_download && *limit < sent.len());
    match limit {
        Some(limit) => {
            stream.write_all(&sent[..limit])?;
            Ok(Some(stream))
        }
        None => stream.write_all(sent).map(|()| None),
    }
}

fn tree(name: &str) -> Value {
    let files = fs::read_dir(shipped_model(name))
        .unwrap()
        .flatten()
        .map(|entry| {
            let size = entry.metadata().unwrap().len();
            let path = entry.file_name().into_string().unwrap();
            // A digest of the file in the real hub; here only different for each.
            let oid = format!("{name:>10}{size:030}")
                .replace(' ', "0")
                .replace(|c: char| !c.is_ascii_hexdigit(), "a");
            json!({"type": "file", "oid": oid, "size": size, "path": path})
        });
    files.collect()
}
