//! `/v1/completions`.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{
    Job, Prompt, Shape,
    fields::{Fields, token_ids},
    sampling::{self, Given, Limits, MAX_LOGPROBS},
};
use crate::{error::ApiError, model::Model};

/// Tokens of output if the request does not say, as in `OpenAI`'s API.
const DEFAULT_MAX_TOKENS: i64 = 16;

/// Checks a request.
pub(crate) fn job(
    body: &Map<String, Value>,
    model: Arc<Model>,
    limits: Limits,
) -> Result<Job, ApiError> {
    let fields = Fields::new(body);
    let n = fields
        .integer("n", 1, limits.max_choices as i64)?
        .unwrap_or(1);
    if let Some(best) = fields
        .integer("best_of", 1, i64::from(u32::MAX))?
        .filter(|&b| b != n)
    {
        let allowed = "absent or equal to n: choosing among more is not supported";
        return Err(ApiError::field("best_of", &Value::from(best), allowed));
    }
    if let Some(suffix) = fields
        .get("suffix")
        .filter(|suffix| suffix.as_str() != Some(""))
    {
        let allowed = "absent: filling in before a suffix is not supported";
        return Err(ApiError::field("suffix", suffix, allowed));
    }
    let echo = fields.boolean("echo")?.unwrap_or(false);
    let least = i64::from(!echo);
    let max_tokens = sampling::max_tokens(fields, "max_tokens", least)?;
    let given = Given {
        shape: Shape::Completion,
        prompts: prompts(fields, &model, limits)?,
        max_tokens: max_tokens.or(Some(DEFAULT_MAX_TOKENS)),
        logprobs: logprobs(fields)?,
        echo,
        prompt_field: "prompt",
    };
    sampling::job(fields, model, limits, given)
}

/// Alternatives to tell of each token. Chats ask with a boolean, and some clients do so here.
fn logprobs(fields: Fields<'_>) -> Result<Option<u32>, ApiError> {
    if let Some(&Value::Bool(wanted)) = fields.get("logprobs") {
        return Ok(wanted.then_some(1));
    }
    let alternatives = fields.integer("logprobs", 0, MAX_LOGPROBS)?;
    Ok(alternatives.map(|k| k as u32))
}

/// The prompts: a text, a list of texts, a list of ids, or a list of lists of ids.
fn prompts(fields: Fields<'_>, model: &Model, limits: Limits) -> Result<Vec<Prompt>, ApiError> {
    const ALLOWED: &str =
        "a string, a list of strings, a list of token ids, or a list of such lists";
    let add_special = fields.boolean("add_special_tokens")?.unwrap_or(true);
    let Some(value) = fields.get("prompt") else {
        return Err(ApiError::field("prompt", &Value::Null, ALLOWED));
    };
    let wrong = || {
        let last = model.vocab_size().saturating_sub(1);
        fields.wrong(
            "prompt",
            value,
            &format!("{ALLOWED}; ids go from 0 to {last}"),
        )
    };
    let text = |text: &str| {
        limits.check_text(text, model, "prompt")?;
        encode(model, text, add_special)
    };
    let ids = |list: &[Value]| {
        let tokens = token_ids(list, model.vocab_size()).ok_or_else(wrong)?;
        let text = if list.is_empty() {
            "[]".to_owned()
        } else {
            String::new()
        };
        Ok(Prompt {
            tokens: tokens.into(),
            text,
        })
    };
    match value {
        Value::String(one) => Ok(vec![text(one)?]),
        Value::Array(list) if list.len() > limits.max_choices && !list[0].is_number() => {
            let allowed = format!("at most {} prompts", limits.max_choices);
            Err(fields.wrong("prompt", value, &allowed))
        }
        Value::Array(list) => match list.first() {
            Some(Value::Number(_)) => Ok(vec![ids(list)?]),
            Some(Value::String(_)) => list
                .iter()
                .map(|item| text(item.as_str().ok_or_else(wrong)?))
                .collect(),
            Some(Value::Array(_)) => list
                .iter()
                .map(|item| ids(item.as_array().ok_or_else(wrong)?))
                .collect(),
            _ => Err(wrong()),
        },
        _ => Err(wrong()),
    }
}

/// Tokenizes a prompt.
pub(crate) fn encode(model: &Model, text: &str, add_special: bool) -> Result<Prompt, ApiError> {
    let tokens = model
        .tokenizer
        .encode(text, add_special)
        .map_err(|error| ApiError::invalid(error.to_string()))?;
    Ok(Prompt {
        tokens: tokens.into(),
        text: text.to_owned(),
    })
}
