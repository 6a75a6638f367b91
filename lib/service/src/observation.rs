//! The port on which a service shows how it is doing: `/metrics`, `/health`, `/ready`.
//!
//! Targets and endpoints serve no other HTTP; the router has these pages among its own.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Router, extract::State, http::StatusCode, http::header, response::IntoResponse, routing,
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio_util::sync::CancellationToken;

/// What the observation port shows.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The metrics.
    pub registry: Arc<Registry>,
    /// Whether new work is accepted.
    pub ready: Arc<AtomicBool>,
}

/// Why the observation port is not to be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve metrics on {address}")]
pub struct BindError {
    /// Where.
    address: String,
    /// What the system said.
    source: io::Error,
}

/// A bound observation port.
#[derive(Debug)]
pub struct Observation {
    listener: TcpListener,
    address: SocketAddr,
}

impl Observation {
    /// Binds `address` (`host:port`), before any runtime exists.
    pub fn bind(address: &str) -> Result<Self, BindError> {
        let listen = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            let address = listener.local_addr()?;
            Ok(Self { listener, address })
        };
        listen().map_err(|source| BindError {
            address: address.to_owned(),
            source,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`; needs a tokio runtime.
    pub async fn serve(self, observed: Observed, stop: CancellationToken) -> io::Result<()> {
        let app = Router::new()
            .route("/metrics", routing::get(metrics))
            .route("/health", routing::get(|| async { "ok" }))
            .route("/ready", routing::get(ready))
            .with_state(observed);
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        axum::serve(listener, app)
            .with_graceful_shutdown(stop.cancelled_owned())
            .await
    }
}

async fn metrics(State(observed): State<Observed>) -> impl IntoResponse {
    let mut text = String::new();
    match encode(&mut text, &observed.registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn ready(State(observed): State<Observed>) -> impl IntoResponse {
    if observed.ready.load(Ordering::Relaxed) {
        (StatusCode::OK, "ready")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready")
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use prometheus_client::metrics::counter::Counter;

    use super::*;

    fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[tokio::test]
    async fn metrics_are_shown_and_readiness_follows_the_service() {
        let mut registry = Registry::default();
        let counter = Counter::<u64>::default();
        registry.register("steps", "Steps", counter.clone());
        counter.inc_by(3);
        let ready = Arc::new(AtomicBool::new(false));
        let observed = Observed {
            registry: Arc::new(registry),
            ready: Arc::clone(&ready),
        };
        let observation = Observation::bind("127.0.0.1:0").unwrap();
        let address = observation.address();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(observation.serve(observed, stop.clone()));
        let ask = |path: &'static str| tokio::task::spawn_blocking(move || get(address, path));
        assert!(ask("/metrics").await.unwrap().contains("steps_total 3"));
        assert!(ask("/health").await.unwrap().starts_with("HTTP/1.1 200"));
        assert!(ask("/ready").await.unwrap().starts_with("HTTP/1.1 503"));
        ready.store(true, Ordering::Relaxed);
        assert!(ask("/ready").await.unwrap().starts_with("HTTP/1.1 200"));
        stop.cancel();
        serving.await.unwrap().unwrap();
    }
}
