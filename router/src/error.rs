//! Errors as the `OpenAI` API words them: a status, and `{"error": {message, type, param, code}}`.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::server::{MAX_FIELDS, MAX_HEAD};

/// An answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    /// The field at fault.
    pub(crate) param: Option<String>,
    /// For programs.
    pub(crate) code: Option<&'static str>,
    /// When to come back, in seconds.
    pub(crate) retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            param: None,
            code: None,
            retry_after: None,
        }
    }

    /// The request is at fault.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// A field of the request is at fault: names it, its value and what is allowed.
    pub(crate) fn field(name: &str, value: &serde_json::Value, allowed: &str) -> Self {
        let message = format!("{name} is {}; it must be {allowed}", shortened(value));
        Self {
            param: Some(name.to_owned()),
            ..Self::invalid(message)
        }
    }

    /// The prompt leaves no room for output.
    pub(crate) fn too_long(prompt: usize, limit: u32, param: &str) -> Self {
        Self {
            param: Some(param.to_owned()),
            code: Some("context_length_exceeded"),
            ..Self::invalid(format!(
                "this model's maximum context length is {limit} tokens, and the prompt has \
                 {prompt}; it must have at most {}",
                limit.saturating_sub(1)
            ))
        }
    }

    /// The prompt is longer than this router takes.
    pub(crate) fn too_many_tokens(prompt: usize, most: usize, param: &str) -> Self {
        Self {
            param: Some(param.to_owned()),
            code: Some("prompt_too_long"),
            ..Self::invalid(format!(
                "the prompt has {prompt} tokens; this server takes at most {most}: shorten it"
            ))
        }
    }

    /// The prompt's text is so long that its tokens need no counting.
    pub(crate) fn hopelessly_long(bytes: usize, limit: u32, param: &str) -> Self {
        Self {
            param: Some(param.to_owned()),
            code: Some("context_length_exceeded"),
            ..Self::invalid(format!(
                "this model's maximum context length is {limit} tokens, and the prompt has {bytes} \
                 bytes, which are more tokens than that; shorten it"
            ))
        }
    }

    pub(crate) fn unknown_model(name: &str, known: &[&str]) -> Self {
        let message = format!(
            "model '{name}' does not exist; there are: {}",
            known.join(", ")
        );
        Self {
            param: Some("model".to_owned()),
            code: Some("model_not_found"),
            ..Self::new(StatusCode::NOT_FOUND, message)
        }
    }

    pub(crate) fn unknown_route(method: &str, path: &str) -> Self {
        let message = format!("there is no {method} {path}");
        Self {
            code: Some("unknown_url"),
            ..Self::new(StatusCode::NOT_FOUND, message)
        }
    }

    pub(crate) fn wrong_method(method: &str, path: &str) -> Self {
        let message = format!("{path} does not take {method}");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, message)
    }

    pub(crate) fn body_too_large(limit: usize) -> Self {
        let message = format!("the request body is larger than {limit} bytes");
        Self {
            code: Some("body_too_large"),
            ..Self::new(StatusCode::PAYLOAD_TOO_LARGE, message)
        }
    }

    pub(crate) fn head_too_large(fields: usize, bytes: usize) -> Self {
        let message = format!(
            "the request has {fields} header fields of {bytes} bytes; at most {MAX_FIELDS} of \
             {MAX_HEAD} bytes are taken"
        );
        Self {
            code: Some("headers_too_large"),
            ..Self::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, message)
        }
    }

    pub(crate) fn too_many_requests(most: usize) -> Self {
        let message =
            format!("{most} requests are being answered, which is as many as can be: try again");
        Self {
            code: Some("too_many_requests"),
            retry_after: Some(1),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, message)
        }
    }

    pub(crate) fn body_too_slow(patience: Duration) -> Self {
        let seconds = patience.as_secs_f64();
        let message = format!("the request body did not come within {seconds} s");
        Self {
            code: Some("request_timeout"),
            ..Self::new(StatusCode::REQUEST_TIMEOUT, message)
        }
    }

    pub(crate) fn unauthorized() -> Self {
        Self {
            code: Some("invalid_api_key"),
            ..Self::new(
                StatusCode::UNAUTHORIZED,
                "a valid API key is required: send 'Authorization: Bearer KEY'",
            )
        }
    }

    /// A page of another origin asks without its browser having asked whether it may.
    pub(crate) fn foreign_page() -> Self {
        Self {
            code: Some("foreign_page"),
            ..Self::new(
                StatusCode::FORBIDDEN,
                "web pages of this origin are not named (--allowed-origin); what a page of the router's own origin \
                 sends needs 'Content-Type: application/json'",
            )
        }
    }

    /// There are targets, and each holds as many requests as it can.
    pub(crate) fn full(model: &str) -> Self {
        let message = format!(
            "all targets of model '{model}' are full: as many requests wait as they take; try again soon"
        );
        Self {
            code: Some("targets_full"),
            retry_after: Some(1),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, message)
        }
    }

    /// Nobody can serve the request now.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Self {
            code: Some("no_target_ready"),
            retry_after: Some(1),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, message)
        }
    }

    /// The router is at fault.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        }
    }

    /// The body.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::from(self.to_json().to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// A value for a message: whole if short.
fn shortened(value: &serde_json::Value) -> String {
    const LIMIT: usize = 80;
    let text = value.to_string();
    if text.chars().count() <= LIMIT {
        return text;
    }
    let head: String = text.chars().take(LIMIT).collect();
    format!("{head}...")
}
