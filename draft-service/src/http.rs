//! The observation port: `/metrics`, `/health`, `/ready`.

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
#[derive(Clone)]
pub(crate) struct Observed {
    /// The metrics.
    pub(crate) registry: Arc<Registry>,
    /// Whether new work is accepted.
    pub(crate) ready: Arc<AtomicBool>,
}

/// A bound observation port.
pub(crate) struct Observation {
    listener: TcpListener,
    address: SocketAddr,
}

impl Observation {
    /// Binds `address`, before any runtime exists.
    pub(crate) fn bind(address: &str) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`.
    pub(crate) async fn serve(self, observed: Observed, stop: CancellationToken) -> io::Result<()> {
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
