//! Services that say of themselves what a test wants, where a pod of theirs would.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use foretoken_service::report::Report;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Port at which pods are asked.
const METRICS: u16 = 9100;

/// A service at an address of its own.
pub(crate) struct Service {
    pub(crate) address: IpAddr,
    says: Arc<Mutex<Report>>,
    serving: JoinHandle<()>,
}

impl Service {
    /// A service at the `number`th address of this process.
    pub(crate) async fn start(number: u8, says: Report) -> Self {
        // All of 127/8 is this machine's, so that tests beside each other have ports of one number.
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let address = IpAddr::V4(Ipv4Addr::new(127, 100 + number, high, low));
        let listener = TcpListener::bind(SocketAddr::new(address, METRICS)).await;
        let listener = listener.unwrap();
        let says = Arc::new(Mutex::new(says));
        let said = Arc::clone(&says);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let report = said.lock().unwrap_or_else(PoisonError::into_inner).clone();
                tokio::spawn(answer(stream, report));
            }
        });
        Self {
            address,
            says,
            serving,
        }
    }

    /// What it says from now on.
    pub(crate) fn says(&self, report: Report) {
        *self.says.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Answers one request.
async fn answer(mut stream: TcpStream, report: Report) {
    let mut asked = Vec::new();
    let mut part = [0; 1024];
    while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut part).await {
            Ok(1..) => asked.extend_from_slice(&part),
            Ok(0) | Err(_) => return,
        }
        if asked.len() > 1 << 16 {
            return;
        }
    }
    let is_known = asked.starts_with(b"GET /status ");
    let (status, body) = if is_known {
        ("200 OK", serde_json::to_string(&report).unwrap())
    } else {
        ("404 Not Found", String::new())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    // Whoever asked may have gone.
    let _ = stream.write_all((head + &body).as_bytes()).await;
}
