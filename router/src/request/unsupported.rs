//! Known fields whose effect is not supported: refused rather than ignored.

use serde_json::Value;

use super::fields::{Fields, is_empty};
use crate::error::ApiError;

/// Fields that have to be absent.
const ABSENT: [&str; 8] = [
    "structured_outputs",
    "json_schema",
    "allowed_token_ids",
    "prompt_logprobs",
    "prompt_embeds",
    "truncate_prompt_tokens",
    "audio",
    "web_search_options",
];

/// Fields that change nothing while they are empty, as servers' own defaults have them.
const EMPTY: [&str; 7] = [
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "grammar",
    "logits_processors",
    "bad_words",
];

/// Numbers under llama.cpp's names with the values that change nothing, and what does the like here.
const NEUTRAL: [(&str, f64, &str); 9] = [
    ("repeat_penalty", 1.0, "repetition_penalty"),
    ("dry_multiplier", 0.0, "repetition_penalty"),
    ("mirostat", 0.0, "temperature, top_p or min_p"),
    ("typical_p", 1.0, "top_p or min_p"),
    ("xtc_probability", 0.0, "top_p or min_p"),
    ("dynatemp_range", 0.0, "temperature"),
    ("top_n_sigma", -1.0, "top_p or min_p"),
    ("n_predict", -1.0, "max_tokens"),
    ("n_probs", 0.0, "logprobs"),
];

/// Refuses fields that would change the output of completions and chats.
pub(super) fn refuse(fields: Fields<'_>) -> Result<(), ApiError> {
    ABSENT
        .iter()
        .try_for_each(|name| refuse_present(fields, name))?;
    EMPTY
        .iter()
        .try_for_each(|name| refuse_filled(fields, name, "it is not supported"))?;
    for (name, neutral, instead) in NEUTRAL {
        let is_neutral =
            |value: &&Value| value.as_f64().is_some_and(|x| (x - neutral).abs() < 1e-9);
        if let Some(value) = fields.get(name).filter(|value| !is_neutral(value)) {
            let allowed = format!("absent or {neutral}: it is not supported, use {instead}");
            return Err(fields.wrong(name, value, &allowed));
        }
    }
    refuse_true(fields, "use_beam_search", "searching with beams")?;
    if let Some(value) = fields.get("response_format")
        && value.get("type").and_then(Value::as_str) != Some("text")
    {
        let allowed = "absent or {\"type\": \"text\"}: structured output is not supported";
        return Err(fields.wrong("response_format", value, allowed));
    }
    let text = [Value::from("text")];
    if let Some(value) = fields.get("modalities")
        && value.as_array().is_none_or(|list| **list != text)
    {
        let allowed = "absent or [\"text\"]: only text comes back";
        return Err(fields.wrong("modalities", value, allowed));
    }
    Ok(())
}

/// Refuses fields that would change the prompt of a chat.
pub(super) fn refuse_of_chats(fields: Fields<'_>) -> Result<(), ApiError> {
    refuse_true(fields, "continue_final_message", "continuing a message")?;
    refuse_true(fields, "echo", "giving back the last message")?;
    let why = "prompts are made by the model's own template";
    ["chat_template", "documents"]
        .iter()
        .try_for_each(|name| refuse_filled(fields, name, why))
}

/// Refuses a field whatever it is.
pub(crate) fn refuse_present(fields: Fields<'_>, name: &str) -> Result<(), ApiError> {
    match fields.get(name) {
        Some(value) => Err(fields.wrong(name, value, "absent: it is not supported")),
        None => Ok(()),
    }
}

/// Refuses a field unless it is empty, and says why.
fn refuse_filled(fields: Fields<'_>, name: &str, why: &str) -> Result<(), ApiError> {
    match fields.get(name).filter(|value| !is_empty(value)) {
        Some(value) => Err(fields.wrong(name, value, &format!("absent: {why}"))),
        None => Ok(()),
    }
}

/// Refuses a field that asks for something: `what`.
pub(super) fn refuse_true(fields: Fields<'_>, name: &str, what: &str) -> Result<(), ApiError> {
    if fields.boolean(name)?.unwrap_or(false) {
        let allowed = format!("absent or false: {what} is not supported");
        return Err(fields.wrong(name, &Value::Bool(true), &allowed));
    }
    Ok(())
}
