//! Routes, and what all of them have in common: keys, ids, limits, counting.

mod completions;
mod pages;

use std::{sync::Arc, time::Instant};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Request, State},
    http::{HeaderMap, HeaderName, HeaderValue, Method, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{MethodRouter, get, post},
};
use foretoken_speculation::TraceContext;
use foretoken_telemetry::{SpanKind, Trace, attribute};
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;

use crate::{
    config::RouterConfig,
    cors,
    error::ApiError,
    model::Model,
    request::{
        fields::{Fields, parse_body},
        sampling::Limits,
    },
    server::{MAX_FIELDS, MAX_HEAD},
    service::Shared,
};

/// The header that names a request, in and out.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The header that names the trace of a request (W3C Trace Context).
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
/// Bodies from this size on are not worked on between two chunks of a stream.
const LARGE_BODY: usize = 16 << 10;
/// Longest id taken over from a client.
const LONGEST_ID: usize = 128;

/// The id of a request, for logs and answers.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);

/// The whole application.
pub(crate) fn app(shared: Arc<Shared>) -> Router {
    let wrong = |method: Method, uri: axum::http::Uri| async move {
        ApiError::wrong_method(method.as_str(), uri.path())
    };
    let origins = cors::layer(
        &shared.config.allowed_origins,
        [REQUEST_ID, header::RETRY_AFTER],
    );
    let route = |methods: MethodRouter<Arc<Shared>>| methods.fallback(wrong);
    Router::new()
        .route("/v1/chat/completions", route(post(completions::chat)))
        .route("/v1/completions", route(post(completions::completion)))
        .route("/v1/models", route(get(pages::models)))
        .route("/v1/models/{*name}", route(get(pages::model)))
        .route("/tokenize", route(post(pages::tokenize)))
        .route("/detokenize", route(post(pages::detokenize)))
        .route("/health", route(get(pages::health)))
        .route("/live", route(get(pages::live)))
        .route("/ready", route(get(pages::ready)))
        .route("/metrics", route(get(pages::metrics)))
        .fallback(|method: Method, uri: axum::http::Uri| async move {
            ApiError::unknown_route(method.as_str(), uri.path())
        })
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), around))
        // Outermost: what browsers ask brings no key, and errors are for pages to read too.
        .layer(origins)
        .with_state(shared)
}

/// Runs around every route.
async fn around(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    let path = known_path(request.uri().path());
    let id = request_id(request.headers());
    let trace = begin_trace(&shared, path, &request);
    request.extensions_mut().insert(trace.clone());
    request.extensions_mut().insert(RequestId(id.clone()));
    if needs_key(path) {
        shared.asked.note();
    }
    let (fields, bytes) = size(request.headers());
    let mut response = if fields > MAX_FIELDS || bytes > MAX_HEAD {
        ApiError::head_too_large(fields, bytes).into_response()
    } else if needs_key(path) && !shared.keys.allow(key(request.headers())) {
        ApiError::unauthorized().into_response()
    } else if cors::may_be_foreign(&request, &shared.config.allowed_origins) {
        ApiError::foreign_page().into_response()
    } else {
        next.run(request).await
    };
    if let Ok(value) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    let status = response.status();
    if let Some(span) = trace.span() {
        span.set("http.response.status_code", i64::from(status.as_u16()));
        span.set(attribute::REQUEST, id.clone());
        if status.is_server_error() {
            span.fail(status.to_string());
        }
    }
    shared.metrics.responded(path, status.as_u16());
    tracing::debug!(request = id, path, status = status.as_u16(), "answered");
    response
}

/// Begins the trace of a request that asks for tokens, or goes on with its caller's.
fn begin_trace(shared: &Shared, path: &'static str, request: &Request) -> Trace {
    let name = match (request.method(), path) {
        (&Method::POST, "/v1/chat/completions") => "POST /v1/chat/completions",
        (&Method::POST, "/v1/completions") => "POST /v1/completions",
        _ => return Trace::default(),
    };
    let caller = request.headers().get(TRACEPARENT);
    let caller = caller.and_then(|value| TraceContext::parse(value.to_str().ok()?));
    let trace = shared
        .tracer
        .begin(name, SpanKind::Server, caller, Instant::now());
    if let Some(span) = trace.span() {
        span.set("http.request.method", "POST");
        span.set("http.route", path);
    }
    trace
}

/// Number of header fields, and their bytes.
fn size(headers: &HeaderMap) -> (usize, usize) {
    let bytes = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len();
    (headers.len(), headers.iter().map(bytes).sum())
}

/// The path as a label: a fixed set, whatever clients ask for.
fn known_path(path: &str) -> &'static str {
    const KNOWN: [&str; 9] = [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/health",
        "/live",
        "/ready",
        "/metrics",
    ];
    if path.starts_with("/v1/models/") {
        return "/v1/models";
    }
    KNOWN
        .into_iter()
        .find(|known| *known == path)
        .unwrap_or("other")
}

/// Probes and scrapes bring no keys.
fn needs_key(path: &str) -> bool {
    !matches!(path, "/health" | "/live" | "/ready" | "/metrics")
}

/// The key that a request brings.
fn key(headers: &HeaderMap) -> Option<&str> {
    let given = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, key) = given.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
}

/// The client's id if it is short and printable, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    use std::hash::{BuildHasher, RandomState};
    let given = headers
        .get(REQUEST_ID)
        .and_then(|value| value.to_str().ok());
    if let Some(id) = given.filter(|id| (1..=LONGEST_ID).contains(&id.len())) {
        return id.to_owned();
    }
    let word = || RandomState::new().hash_one(0_u64);
    format!("{:016x}{:016x}", word(), word())
}

/// The bytes of a request's body, if they come in time and are not too many.
async fn body_bytes(config: &RouterConfig, body: Body) -> Result<Bytes, ApiError> {
    let limit = config.max_body_bytes;
    let read = tokio::time::timeout(config.body, axum::body::to_bytes(body, limit));
    let bytes = read
        .await
        .map_err(|_| ApiError::body_too_slow(config.body))?;
    bytes.map_err(|error| {
        let too_large = std::error::Error::source(&error)
            .is_some_and(|source| source.to_string().contains("length limit"));
        if too_large {
            ApiError::body_too_large(limit)
        } else {
            ApiError::invalid(format!("the request body cannot be read: {error}"))
        }
    })
}

/// Reads a request's body and works on it. Large bodies take long to tokenize; they get a thread
/// of their own, so that streams are not held up.
async fn with_body<T: Send + 'static>(
    shared: Arc<Shared>,
    body: Body,
    work: impl FnOnce(&Shared, &Map<String, Value>) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let bytes = body_bytes(&shared.config, body).await?;
    let large = bytes.len() > LARGE_BODY;
    let work = move || work(&shared, &parse_body(&bytes)?);
    if !large {
        return work();
    }
    let failed = |_| ApiError::internal("reading the request failed");
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

/// A place among the requests that are answered at once, until it is dropped.
fn place(shared: &Shared) -> Result<OwnedSemaphorePermit, ApiError> {
    let place = Arc::clone(&shared.places).try_acquire_owned();
    place.map_err(|_| ApiError::too_many_requests(shared.config.max_requests))
}

/// The model that a body names.
fn named_model(shared: &Shared, body: &Map<String, Value>) -> Result<Arc<Model>, ApiError> {
    match Fields::new(body).text("model")? {
        Some(name) if !name.is_empty() => find_model(shared, name),
        _ => shared
            .models
            .first()
            .cloned()
            .ok_or_else(|| ApiError::unknown_model("", &[])),
    }
}

fn find_model(shared: &Shared, name: &str) -> Result<Arc<Model>, ApiError> {
    shared
        .models
        .iter()
        .find(|model| model.name == name)
        .cloned()
        .ok_or_else(|| {
            let known: Vec<&str> = shared
                .models
                .iter()
                .map(|model| model.name.as_str())
                .collect();
            ApiError::unknown_model(name, &known)
        })
}

/// What a request for a model may be.
fn limits(shared: &Shared, model: &Model) -> Limits {
    let config = &shared.config;
    Limits {
        max_choices: config.max_choices,
        max_messages: config.max_messages,
        max_prompt_tokens: config.max_prompt_tokens,
        max_stops: config.max_stops,
        max_logit_biases: config.max_logit_biases,
        max_positions: max_positions(shared, model),
    }
}

/// Longest sequence of a model: what its targets can hold, else what its configuration says.
fn max_positions(shared: &Shared, model: &Model) -> u32 {
    let served = shared.targets.max_positions(&model.name);
    served
        .or(model.generation.max_positions)
        .unwrap_or(u32::MAX)
}
