//! `/v1/chat/completions` and `/v1/completions`.

use std::{
    pin::Pin,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::{
    Extension, Json,
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use foretoken_telemetry::{Trace, attribute};
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use tokio::time::Instant;

use super::{RequestId, limits, named_model, place, with_body};
use crate::{
    choice::{News, news},
    error::ApiError,
    generation::Generation,
    request::{self, Job, Shape},
    response::{self, Collected, Envelope, Whole, stream::Chunks},
    service::Shared,
};

/// `POST /v1/chat/completions`.
pub(super) async fn chat(
    State(shared): State<Arc<Shared>>,
    Extension(id): Extension<RequestId>,
    Extension(trace): Extension<Trace>,
    body: Body,
) -> Result<Response, ApiError> {
    answer(shared, (id, trace), Shape::Chat, body).await
}

/// `POST /v1/completions`.
pub(super) async fn completion(
    State(shared): State<Arc<Shared>>,
    Extension(id): Extension<RequestId>,
    Extension(trace): Extension<Trace>,
    body: Body,
) -> Result<Response, ApiError> {
    answer(shared, (id, trace), Shape::Completion, body).await
}

async fn answer(
    shared: Arc<Shared>,
    (RequestId(id), trace): (RequestId, Trace),
    shape: Shape,
    body: Body,
) -> Result<Response, ApiError> {
    let arrived = Instant::now();
    let place = place(&shared)?;
    let job = with_body(Arc::clone(&shared), body, move |shared, body| {
        let model = named_model(shared, body)?;
        let limits = limits(shared, &model);
        let job = match shape {
            Shape::Chat => request::chat::job(body, model, limits),
            Shape::Completion => request::completion::job(body, model, limits),
        };
        // Kept until then, even if the client does not wait for it.
        job.map(|job| (Arc::new(job), place))
    });
    let (job, place) = job.await?;
    if let Some(span) = trace.span() {
        span.add("prepare", arrived.into_std(), Instant::now().into_std(), []);
        span.set(attribute::MODEL, job.model.name.clone());
    }
    let created = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let mut envelope = Envelope::new(shape, &id, created);
    let mut news = all_news(&shared, &job, (&id, &trace), arrived).peekable();
    // The first is that a choice has begun, or that one cannot: an error can still have a status. The
    // others may have to wait for it.
    if let Some(Ok(News::Begun(begun))) = Pin::new(&mut news).peek().await {
        envelope.fingerprint.clone_from(&begun.fingerprint);
    } else {
        news.try_next().await?;
    }
    if job.output.stream {
        let chunks = Chunks::new(Arc::clone(&job), &envelope);
        // The place is given back when the stream has ended or its reader has gone.
        let news = news.inspect(move |_| _ = &place);
        return Ok(streamed(chunks, news.boxed()));
    }
    let mut choices = vec![Collected::default(); job.choices()];
    while let Some(said) = news.try_next().await? {
        if let News::Update(update) = said {
            let choice = &mut choices[update.index];
            choice.add(update.piece);
            choice.end = update.finish;
        }
    }
    Ok(Json(Whole::new(&job, &envelope, &choices)).into_response())
}

/// The news of all choices as they come; the first that fails fails the request.
fn all_news(
    shared: &Arc<Shared>,
    job: &Arc<Job>,
    (id, trace): (&str, &Trace),
    arrived: Instant,
) -> BoxStream<'static, Result<News, ApiError>> {
    let mut streams: Vec<_> = (0..job.choices())
        .map(|index| {
            // One id per choice, so that a target's log tells them apart.
            let id = if index == 0 {
                id.to_owned()
            } else {
                format!("{id}-{index}")
            };
            let request = job.generate_request(&id, index, shared.config.hold);
            let (shared, job) = (Arc::clone(shared), Arc::clone(job));
            let own = Arc::clone(&job);
            let generation = Generation::new(shared, own, request, trace.clone(), arrived);
            news(job, index, generation).boxed()
        })
        .collect();
    match (streams.pop(), streams.is_empty()) {
        (Some(only), true) => only,
        (Some(last), false) => {
            streams.push(last);
            stream::select_all(streams).boxed()
        }
        (None, _) => stream::empty().boxed(),
    }
}

fn streamed(chunks: Chunks, news: BoxStream<'static, Result<News, ApiError>>) -> Response {
    let mut response = Response::new(response::stream::body(chunks, news));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        // Without the charset some clients take it for ISO-8859-1, as HTTP once said of text.
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Asks nginx not to gather chunks.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}
