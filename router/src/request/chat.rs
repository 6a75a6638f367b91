//! `/v1/chat/completions`.

use std::sync::Arc;

use foretoken_artifacts::template::RenderOptions;
use serde_json::{Map, Value};

use super::{
    Job, Prompt, Shape,
    completion::encode,
    fields::{Fields, is_empty},
    sampling::{self, Given, Limits, MAX_LOGPROBS, at_most},
    unsupported,
};
use crate::{error::ApiError, model::Model};

/// Checks a request.
pub(crate) fn job(
    body: &Map<String, Value>,
    model: Arc<Model>,
    limits: Limits,
) -> Result<Job, ApiError> {
    let fields = Fields::new(body);
    // The second is the older name.
    let max_tokens = sampling::max_tokens(fields, "max_completion_tokens", 1)?
        .or(sampling::max_tokens(fields, "max_tokens", 1)?);
    let logprobs = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0, MAX_LOGPROBS)?;
    if let Some(top) = top.filter(|&top| top > 0 && !logprobs) {
        let allowed = "absent or 0 unless logprobs is true";
        return Err(ApiError::field("top_logprobs", &Value::from(top), allowed));
    }
    let given = Given {
        shape: Shape::Chat,
        prompts: vec![prompt(body, &model, limits)?],
        max_tokens,
        logprobs: logprobs.then_some(top.unwrap_or(0) as u32),
        echo: false,
        prompt_field: "messages",
    };
    sampling::job(fields, model, limits, given)
}

/// The prompt that the model's template makes of the messages, if it can be within `limits`.
pub(crate) fn prompt(
    body: &Map<String, Value>,
    model: &Model,
    limits: Limits,
) -> Result<Prompt, ApiError> {
    let fields = Fields::new(body);
    unsupported::refuse_of_chats(fields)?;
    let messages = messages(fields)?;
    let number = messages.as_array().map_or(0, Vec::len);
    at_most(fields, "messages", number, limits.max_messages)?;
    refuse_calls(fields)?;
    let options = RenderOptions {
        add_generation_prompt: fields.boolean("add_generation_prompt")?.unwrap_or(true),
        tools: tools(fields)?,
        variables: variables(fields)?,
    };
    let text = model
        .template
        .render(&messages, &options)
        .map_err(|error| ApiError {
            param: Some("messages".to_owned()),
            ..ApiError::invalid(error.to_string())
        })?;
    limits.check_text(&text, model, "messages")?;
    let special = fields.boolean("add_special_tokens")?;
    encode(
        model,
        &text,
        special.unwrap_or(model.template.wants_special_tokens()),
    )
}

/// What a request tells the template besides: `chat_template_kwargs`, and what `OpenAI`'s API has for all.
pub(super) fn variables(fields: Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut variables = match fields.get("chat_template_kwargs") {
        None => Map::new(),
        Some(Value::Object(map)) => map.clone(),
        Some(value) => return Err(fields.wrong("chat_template_kwargs", value, "an object")),
    };
    if let Some(effort) = fields.text("reasoning_effort")? {
        let effort = || Value::from(effort);
        variables.entry("reasoning_effort").or_insert_with(effort);
    }
    Ok(variables)
}

/// Tools are shown to the template only if no call is to come back: calls are not parsed.
fn tools(fields: Fields<'_>) -> Result<Option<Value>, ApiError> {
    let Some(tools) = fields.get("tools").filter(|tools| !is_empty(tools)) else {
        return Ok(None);
    };
    if fields.get("tool_choice").and_then(Value::as_str) == Some("none") {
        return Ok(Some(tools.clone()));
    }
    let allowed = "absent unless tool_choice is \"none\": tool calls are not supported";
    Err(fields.wrong("tools", tools, allowed))
}

/// Refuses what only a call could answer.
fn refuse_calls(fields: Fields<'_>) -> Result<(), ApiError> {
    if let Some(functions) = fields.get("functions").filter(|list| !is_empty(list)) {
        let allowed = "absent: function calls are not supported";
        return Err(fields.wrong("functions", functions, allowed));
    }
    for name in ["tool_choice", "function_call"] {
        let forces = |choice: &&Value| !matches!(choice.as_str(), Some("none" | "auto"));
        if let Some(choice) = fields.get(name).filter(forces) {
            let allowed = "absent, \"none\" or \"auto\": calls are not supported";
            return Err(fields.wrong(name, choice, allowed));
        }
    }
    Ok(())
}

/// The messages, each content a string: parts of text are joined by line breaks.
pub(super) fn messages(fields: Fields<'_>) -> Result<Value, ApiError> {
    const ALLOWED: &str = "a list of at least one object with role and content";
    let value = fields.get("messages").unwrap_or(&Value::Null);
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| ApiError::field("messages", value, ALLOWED))?;
    let checked = list.iter().enumerate().map(|(i, message)| {
        let wrong = |part: &str, value: &Value, allowed: &str| {
            ApiError::field(&format!("messages[{i}]{part}"), value, allowed)
        };
        let object = message
            .as_object()
            .ok_or_else(|| wrong("", message, "an object with role and content"))?;
        let role = object.get("role").unwrap_or(&Value::Null);
        if role.as_str().is_none_or(str::is_empty) {
            return Err(wrong(
                ".role",
                role,
                "a string such as \"user\" or \"system\"",
            ));
        }
        let mut object = object.clone();
        let content = match object.get("content").unwrap_or(&Value::Null) {
            Value::String(text) => text.clone(),
            // One that called something, or refused, may have said nothing, and so may what it called.
            Value::Null if role == "assistant" || role == "tool" => String::new(),
            Value::Array(parts) => text_of_parts(parts).ok_or_else(|| {
                wrong(
                    ".content",
                    &object["content"],
                    "text, or parts of type text",
                )
            })?,
            other => {
                return Err(wrong(
                    ".content",
                    other,
                    "text, or a list of parts of type text",
                ));
            }
        };
        object.insert("content".to_owned(), Value::String(content));
        // Clients send messages back with all the fields there are; templates ask which are there.
        object.retain(|name, value| {
            let calls_nothing = name == "tool_calls" && value.as_array().is_some_and(Vec::is_empty);
            !(value.is_null() || calls_nothing)
        });
        let calls = object.get_mut("tool_calls").and_then(Value::as_array_mut);
        calls.into_iter().flatten().for_each(read_arguments);
        Ok(Value::Object(object))
    });
    checked.collect()
}

/// Makes the arguments of a call, which the API has as a text of JSON, what templates expect: an object.
/// Its fields come in alphabetical order, as those of tools do.
fn read_arguments(call: &mut Value) {
    let Some(arguments) = call.pointer_mut("/function/arguments") else {
        return;
    };
    let read = match &*arguments {
        Value::Null => Some(Value::Object(Map::new())),
        Value::String(text) if text.is_empty() => Some(Value::Object(Map::new())),
        Value::String(text) => serde_json::from_str(text).ok().filter(Value::is_object),
        _ => None,
    };
    if let Some(read) = read {
        *arguments = read;
    }
}

fn text_of_parts(parts: &[Value]) -> Option<String> {
    let texts: Option<Vec<&str>> = parts
        .iter()
        .map(|part| match part.get("type").and_then(Value::as_str) {
            None => part.as_str(),
            Some("text" | "input_text" | "output_text") => part.get("text").and_then(Value::as_str),
            Some("refusal") => part.get("refusal").and_then(Value::as_str),
            _ => None,
        })
        .collect();
    texts.map(|texts| texts.join("\n"))
}
