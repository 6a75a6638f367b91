//! Everything but completions.

use std::sync::Arc;

use axum::{
    Json,
    body::Body,
    extract::{Path, State, rejection::PathRejection},
    http::{StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use foretoken_speculation::TokenId;
use serde_json::{Map, Value, json};

use super::{find_model, limits, max_positions, named_model, place, with_body};
use crate::{
    error::ApiError,
    model::Model,
    request::{
        chat, completion,
        fields::{Fields, token_list},
        sampling::Limits,
        unsupported,
    },
    response::logprobs::shown,
    service::Shared,
};

/// `GET /v1/models`.
pub(super) async fn models(State(shared): State<Arc<Shared>>) -> Json<Value> {
    let list: Vec<Value> = shared
        .models
        .iter()
        .map(|model| describe(&shared, model))
        .collect();
    Json(json!({"object": "list", "data": list}))
}

/// `GET /v1/models/{name}`.
pub(super) async fn model(
    State(shared): State<Arc<Shared>>,
    name: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Json<Value>, ApiError> {
    // One that is no text is nobody's.
    let name = name.map_or_else(|_| uri.path().to_owned(), |Path(name)| name);
    find_model(&shared, &name).map(|model| Json(describe(&shared, &model)))
}

fn describe(shared: &Shared, model: &Model) -> Value {
    let length = max_positions(shared, model);
    json!({
        "id": model.name,
        "object": "model",
        "created": shared.created,
        "owned_by": "foretoken",
        "root": model.folder,
        "parent": null,
        "max_model_len": (length != u32::MAX).then_some(length),
    })
}

/// `POST /tokenize`: ids of a prompt or of chat messages.
pub(super) async fn tokenize(
    State(shared): State<Arc<Shared>>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let place = place(&shared)?;
    let work = move |shared: &Shared, body: &_| {
        // Kept until it is done, even if the client does not wait for it.
        let _place = place;
        tokenized(shared, body)
    };
    with_body(shared, body, work).await.map(Json)
}

fn tokenized(shared: &Shared, body: &Map<String, Value>) -> Result<Value, ApiError> {
    let model = named_model(shared, body)?;
    // Whoever asks how many tokens a text has need not know yet that they are too many.
    let limits = Limits {
        max_positions: u32::MAX,
        ..limits(shared, &model)
    };
    let fields = Fields::new(body);
    unsupported::refuse_present(fields, "truncate_prompt_tokens")?;
    let prompt = if fields.get("messages").is_some() {
        chat::prompt(body, &model, limits)?
    } else {
        let (text, add_special) = text_of(fields)?;
        completion::encode(&model, text, add_special)?
    };
    let ids: Vec<u32> = prompt.tokens.iter().map(|token| token.0).collect();
    let strings = fields.boolean("return_token_strs")?.unwrap_or(false);
    let strings: Option<Vec<String>> = strings.then(|| {
        prompt
            .tokens
            .iter()
            .map(|&token| shown(&model.tokenizer, token))
            .collect()
    });
    let length = max_positions(shared, &model);
    Ok(json!({
        "count": ids.len(),
        "max_model_len": (length != u32::MAX).then_some(length),
        "tokens": ids,
        "token_strs": strings,
    }))
}

/// A text to tokenize, and whether the tokens that begin one are to be added, under vLLM's names or
/// llama.cpp's, with what each does if the second is not said.
fn text_of(fields: Fields<'_>) -> Result<(&str, bool), ApiError> {
    if let Some(text) = fields.text("prompt")? {
        return Ok((text, fields.boolean("add_special_tokens")?.unwrap_or(true)));
    }
    if let Some(text) = fields.text("content")? {
        return Ok((text, fields.boolean("add_special")?.unwrap_or(false)));
    }
    let allowed = "a string (or send messages instead)";
    Err(ApiError::field("prompt", &Value::Null, allowed))
}

/// `POST /detokenize`: the text of ids.
pub(super) async fn detokenize(
    State(shared): State<Arc<Shared>>,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let place = place(&shared)?;
    let work = move |shared: &Shared, body: &_| {
        let _place = place;
        detokenized(shared, body)
    };
    with_body(shared, body, work).await.map(Json)
}

fn detokenized(shared: &Shared, body: &Map<String, Value>) -> Result<Value, ApiError> {
    let model = named_model(shared, body)?;
    let fields = Fields::new(body);
    let tokens = fields
        .tokens("tokens", model.vocab_size())?
        .ok_or_else(|| ApiError::field("tokens", &Value::Null, &token_list(model.vocab_size())))?;
    let bytes = |&token: &TokenId| model.tokenizer.token_bytes(token).len();
    let bytes: usize = tokens.iter().map(bytes).sum();
    // A few ids are a long text: no longer than what `/tokenize` takes.
    let most = shared.config.max_body_bytes;
    if bytes > most {
        let value = fields.get("tokens").cloned().unwrap_or_default();
        let allowed = format!("of at most {most} bytes of text (it has {bytes})");
        return Err(fields.wrong("tokens", &value, &allowed));
    }
    let text = model.tokenizer.decode(&tokens, false);
    // The second is llama.cpp's name.
    Ok(json!({"prompt": text, "content": text}))
}

/// `GET /live`: the process runs.
pub(super) async fn live() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

/// `GET /health`: 503 while the first target is still loading, then 200: a target that is lost
/// later does not make the router unhealthy.
pub(super) async fn health(State(shared): State<Arc<Shared>>) -> Response {
    if shared.targets.ever_ready() {
        Json(json!({"status": "ok"})).into_response()
    } else {
        let mut response = Json(json!({"status": "loading"})).into_response();
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response
    }
}

/// `GET /ready`: whether every model has a target now.
pub(super) async fn ready(State(shared): State<Arc<Shared>>) -> Response {
    let models: Vec<Value> = shared
        .models
        .iter()
        .map(|model| {
            let (ready, listed) = shared.targets.count(Some(&model.name));
            json!({"model": model.name, "targets_ready": ready, "targets_listed": listed})
        })
        .collect();
    let all = models
        .iter()
        .all(|model| model["targets_ready"] != json!(0));
    let status = if all {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Json(json!({"ready": all, "models": models}))).into_response()
}

/// `GET /metrics`.
pub(super) async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let text = shared.metrics.render(shared.targets.count(None));
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}
