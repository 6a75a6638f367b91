//! The port on which a service shows how it is doing: `/metrics`, `/health`, `/ready`,
//! `/status`, `/rounds`.
//!
//! Targets and endpoints serve no other HTTP; the router has these pages among its own.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::{Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing,
};
use futures::stream;
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde::Deserialize;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::{report::Board, rounds::Feed};

/// How long answers may take to end once the service stops.
const FAREWELL: Duration = Duration::from_millis(500);

/// What the observation port shows.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The metrics.
    pub registry: Arc<Registry>,
    /// Whether new work is accepted.
    pub ready: Arc<AtomicBool>,
    /// What it says of itself.
    pub board: Board,
    /// The rounds.
    pub feed: Feed,
}

/// What is shown of every process.
#[derive(Clone, Debug, Default)]
pub struct Signs {
    /// The metrics.
    pub registry: Arc<Registry>,
    /// Whether it can do what it is for.
    pub ready: Arc<AtomicBool>,
}

impl Signs {
    fn pages(self) -> Router {
        Router::new()
            .route("/metrics", routing::get(metrics))
            .route("/health", routing::get(|| async { "ok" }))
            .route("/ready", routing::get(ready))
            .with_state(self)
    }
}

/// What the handlers share.
#[derive(Clone)]
struct Pages {
    observed: Observed,
    stop: CancellationToken,
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
        let listen = move || {
            let listener = foretoken_protocol::address::listen(address)?;
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
        let signs = Signs {
            registry: Arc::clone(&observed.registry),
            ready: Arc::clone(&observed.ready),
        };
        let pages = Pages {
            observed,
            stop: stop.clone(),
        };
        let own = Router::new()
            .route("/status", routing::get(status))
            .route("/rounds", routing::get(rounds))
            .with_state(pages);
        self.run(signs.pages().merge(own), stop).await
    }

    /// Serves what there is of a process without a model, until `stop`; needs a tokio runtime.
    pub async fn serve_signs(self, signs: Signs, stop: CancellationToken) -> io::Result<()> {
        self.run(signs.pages(), stop).await
    }

    async fn run(self, app: Router, stop: CancellationToken) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.listener)?;
        let serving =
            axum::serve(listener, app).with_graceful_shutdown(stop.clone().cancelled_owned());
        tokio::select! {
            served = async { serving.await } => served,
            // A listener that does not read its last lines must not hold the service up.
            () = async { stop.cancelled().await; sleep(FAREWELL).await } => Ok(()),
        }
    }
}

async fn metrics(State(signs): State<Signs>) -> impl IntoResponse {
    let mut text = String::new();
    match encode(&mut text, &signs.registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn status(State(Pages { observed, .. }): State<Pages>) -> impl IntoResponse {
    Json(
        observed
            .board
            .report(observed.ready.load(Ordering::Relaxed)),
    )
}

/// What a listener wants.
#[derive(Deserialize)]
struct Wish {
    #[serde(default)]
    tokens: bool,
}

/// Rounds until the listener goes or the service stops.
async fn rounds(State(pages): State<Pages>, Query(wish): Query<Wish>) -> Response {
    let listener = match pages.observed.feed.listen(wish.tokens) {
        Ok(listener) => listener,
        Err(private) => {
            return (StatusCode::FORBIDDEN, format!("{private}\n")).into_response();
        }
    };
    let lines = stream::unfold((listener, pages.stop), |(mut listener, stop)| async {
        let lines = tokio::select! {
            lines = listener.lines() => lines?,
            () = stop.cancelled() => return None,
        };
        Some((Ok::<_, io::Error>(lines), (listener, stop)))
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    (kind, Body::from_stream(lines)).into_response()
}

async fn ready(State(signs): State<Signs>) -> impl IntoResponse {
    if signs.ready.load(Ordering::Relaxed) {
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
    use crate::{
        report::ModelReport,
        rounds::{Line, Round},
    };

    fn observed(ready: &Arc<AtomicBool>, registry: Registry) -> Observed {
        Observed {
            registry: Arc::new(registry),
            ready: Arc::clone(ready),
            board: Board::new("t-0", ModelReport::default()),
            feed: Feed::new("target", "t-0", false),
        }
    }

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
        let observed = observed(&ready, registry);
        let observation = Observation::bind("127.0.0.1:0").unwrap();
        let address = observation.address();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(observation.serve(observed, stop.clone()));
        let ask = |path: &'static str| tokio::task::spawn_blocking(move || get(address, path));
        assert!(ask("/metrics").await.unwrap().contains("steps_total 3"));
        assert!(ask("/health").await.unwrap().starts_with("HTTP/1.1 200"));
        assert!(ask("/ready").await.unwrap().starts_with("HTTP/1.1 503"));
        assert!(ask("/status").await.unwrap().contains(r#""ready":false"#));
        ready.store(true, Ordering::Relaxed);
        assert!(ask("/ready").await.unwrap().starts_with("HTTP/1.1 200"));
        let said = ask("/status").await.unwrap();
        for part in [
            "application/json",
            r#""version":1"#,
            r#""instance":"t-0""#,
            r#""ready":true"#,
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
        stop.cancel();
        serving.await.unwrap().unwrap();
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn rounds_come_as_lines_until_the_listener_goes_or_the_service_stops() {
        let observed = observed(&Arc::default(), Registry::default());
        let feed = observed.feed.clone();
        let observation = Observation::bind("127.0.0.1:0").unwrap();
        let address = observation.address();
        let stop = CancellationToken::new();
        let serving = tokio::spawn(observation.serve(observed, stop.clone()));
        let listen = move || {
            let mut stream = TcpStream::connect(address).unwrap();
            write!(stream, "GET /rounds HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut head = vec![0; 4096];
            let mut seen = String::new();
            while !seen.contains("hello") {
                let len = stream.read(&mut head).unwrap();
                assert!(len > 0, "{seen}");
                seen.push_str(std::str::from_utf8(&head[..len]).unwrap());
            }
            stream
        };
        let first = tokio::task::spawn_blocking(listen).await.unwrap();
        assert!(feed.is_heard());
        drop(first);
        while feed.is_heard() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // One that never reads again does not hold up the end.
        let second = tokio::task::spawn_blocking(listen).await.unwrap();
        for session in 0..20_000 {
            feed.tell(Line::Round(Round {
                session,
                ..Round::default()
            }));
        }
        stop.cancel();
        serving.await.unwrap().unwrap();
        drop(second);
        let asked = tokio::task::spawn_blocking(move || {
            TcpStream::connect(address)
                .is_ok_and(|mut stream| stream.read(&mut [0]).is_ok_and(|n| n > 0))
        });
        assert!(!asked.await.unwrap(), "it still answers");
    }

    #[tokio::test]
    async fn token_ids_are_refused_with_what_would_allow_them() {
        let observation = Observation::bind("127.0.0.1:0").unwrap();
        let address = observation.address();
        let stop = CancellationToken::new();
        let observed = observed(&Arc::default(), Registry::default());
        let serving = tokio::spawn(observation.serve(observed, stop.clone()));
        let answer = tokio::task::spawn_blocking(move || get(address, "/rounds?tokens=true"));
        let answer = answer.await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
        assert!(answer.contains("--observe-tokens"), "{answer}");
        stop.cancel();
        serving.await.unwrap().unwrap();
    }
}
