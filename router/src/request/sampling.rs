//! The fields that both APIs share.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use foretoken_artifacts::StopStrings;
use foretoken_speculation::{
    Seed, TokenId,
    policy::{Lookahead, Policy, SsdOptions},
    sampling::SamplingParams,
};
use serde_json::Value;

use super::{
    Job, Output, Prompt, Shape, StreamedUsage,
    fields::{Fields, is_empty},
    unsupported,
};
use crate::{error::ApiError, model::Model};

/// Most alternatives per token, as in `OpenAI`'s API.
pub(crate) const MAX_LOGPROBS: i64 = 20;
/// Largest lookahead a request may ask for; targets allow no more either.
const MAX_LOOKAHEAD: i64 = 32;
/// Bits of a drawn seed: as many as a JSON number carries everywhere.
const SEED_BITS: u32 = 53;

/// Most bytes of a stop string: what may be the beginning of one is held back.
const LONGEST_STOP: usize = 4096;
/// Most bytes of all stop strings of a request: what looks for them is 17 times as large.
const MOST_STOP_BYTES: usize = 64 << 10;

/// Most bytes of a `cache_salt`.
const LONGEST_SALT: usize = 1024;

/// What a request gets that its caller decides.
pub(super) struct Given {
    pub(super) shape: Shape,
    pub(super) prompts: Vec<Prompt>,
    /// Name and value of the field that bounds the output, `None` for what is left.
    pub(super) max_tokens: Option<i64>,
    pub(super) logprobs: Option<u32>,
    pub(super) echo: bool,
    /// Name of the field the prompt came from.
    pub(super) prompt_field: &'static str,
}

/// Limits of the router and the model's targets.
#[derive(Clone, Copy)]
#[expect(
    clippy::struct_field_names,
    reason = "the names are those of the configuration"
)]
pub(crate) struct Limits {
    pub(crate) max_choices: usize,
    pub(crate) max_messages: usize,
    /// 0: no limit but the model's.
    pub(crate) max_prompt_tokens: u32,
    pub(crate) max_stops: usize,
    pub(crate) max_logit_biases: usize,
    /// Longest sequence.
    pub(crate) max_positions: u32,
}

impl Limits {
    /// Refuses a text that is too long whatever its tokens are, before they are counted.
    pub(super) fn check_text(self, text: &str, model: &Model, field: &str) -> Result<(), ApiError> {
        if text.len() <= model.longest_text(self.max_positions) {
            return Ok(());
        }
        Err(ApiError::hopelessly_long(
            text.len(),
            self.max_positions,
            field,
        ))
    }
}

/// Reads the shared fields and completes the job.
pub(super) fn job(
    fields: Fields<'_>,
    model: Arc<Model>,
    limits: Limits,
    given: Given,
) -> Result<Job, ApiError> {
    unsupported::refuse(fields)?;
    let n = fields
        .integer("n", 1, limits.max_choices as i64)?
        .unwrap_or(1) as u32;
    if given.prompts.len() * n as usize > limits.max_choices {
        let allowed = format!(
            "such that prompts x n is at most {} (there are {} prompts)",
            limits.max_choices,
            given.prompts.len()
        );
        return Err(ApiError::field("n", &Value::from(n), &allowed));
    }
    let nothing = given.max_tokens == Some(0);
    let max_tokens = lengths(&given, limits)?;
    let ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
    let stop_token_ids = fields
        .tokens("stop_token_ids", model.vocab_size())?
        .unwrap_or_default();
    at_most(
        fields,
        "stop_token_ids",
        stop_token_ids.len(),
        limits.max_stops,
    )?;
    let sampling = sampling(fields, &model, &stop_token_ids)?;
    let biases = sampling.logit_bias.len();
    at_most(fields, "logit_bias", biases, limits.max_logit_biases)?;
    if let Some(most) = max_tokens
        .iter()
        .min()
        .filter(|&&most| sampling.min_tokens > most)
    {
        let allowed = format!("at most max_tokens, which is {most} here");
        return Err(ApiError::field(
            "min_tokens",
            &Value::from(sampling.min_tokens),
            &allowed,
        ));
    }
    // vLLM and llama.cpp take -1 for any.
    let seed = fields
        .integer("seed", i64::MIN, i64::MAX)?
        .filter(|&seed| seed != -1);
    let Speculation { policy, lookahead } = speculation(fields)?;
    Ok(Job {
        output: output(fields, &given, limits, nothing)?,
        shape: given.shape,
        prompts: given.prompts,
        n,
        sampling,
        seed: seed.map_or_else(
            || Seed(draw() >> (u64::BITS - SEED_BITS)),
            |seed| Seed(seed as u64),
        ),
        // 0 is nobody.
        owner: draw().max(1),
        max_tokens,
        ignore_eos,
        stop_token_ids,
        policy,
        lookahead,
        cache_prompt: fields.boolean("cache_prompt")?.unwrap_or(true),
        cache_salt: cache_salt(fields)?,
        model,
    })
}

/// vLLM's `cache_salt`, told apart from an absent one: an empty secret would protect nobody.
fn cache_salt(fields: Fields<'_>) -> Result<Option<String>, ApiError> {
    let salt = fields.text("cache_salt")?;
    if let Some(salt) = salt.filter(|salt| salt.is_empty() || salt.len() > LONGEST_SALT) {
        let allowed = format!("a secret of 1 to {LONGEST_SALT} bytes");
        return Err(ApiError::field("cache_salt", &Value::from(salt), &allowed));
    }
    Ok(salt.map(str::to_owned))
}

/// The request's own `foretoken` object.
#[derive(Default)]
struct Speculation {
    policy: Option<String>,
    lookahead: Option<u32>,
}

fn speculation(fields: Fields<'_>) -> Result<Speculation, ApiError> {
    let Some(own) = fields.object("foretoken")? else {
        return Ok(Speculation::default());
    };
    own.only(&["policy", "lookahead"])?;
    let policies = [
        Policy::Autoregressive.name(),
        Policy::Speculative(Lookahead::Fixed(0)).name(),
        Policy::Ssd(SsdOptions::default()).name(),
    ];
    let lookahead = own.integer("lookahead", 0, MAX_LOOKAHEAD)?;
    Ok(Speculation {
        policy: own.one_of("policy", &policies)?.map(str::to_owned),
        lookahead: lookahead.map(|k| k as u32),
    })
}

/// A field that says how many tokens of output there may be, `least` at least; -1, as llama.cpp has it,
/// are as many as there is room for.
pub(super) fn max_tokens(
    fields: Fields<'_>,
    name: &str,
    least: i64,
) -> Result<Option<i64>, ApiError> {
    let most = i64::from(u32::MAX);
    let allowed =
        format!("an integer from {least} to {most}, or -1 for as many as there is room for");
    let wanted = fields.integer_that(name, &allowed, |number| {
        number == -1 || (least..=most).contains(&number)
    })?;
    Ok(wanted.map(|number| if number == -1 { most } else { number }))
}

/// Tokens of output for each prompt: what is asked for, within what the model has room for.
fn lengths(given: &Given, limits: Limits) -> Result<Vec<u32>, ApiError> {
    let lengths = given.prompts.iter().map(|prompt| {
        let len = prompt.tokens.len();
        if len == 0 {
            let value = Value::String(prompt.text.clone());
            return Err(ApiError::field(
                given.prompt_field,
                &value,
                "at least one token long",
            ));
        }
        if len >= limits.max_positions as usize {
            return Err(ApiError::too_long(
                len,
                limits.max_positions,
                given.prompt_field,
            ));
        }
        let most = limits.max_prompt_tokens as usize;
        if most > 0 && len > most {
            return Err(ApiError::too_many_tokens(len, most, given.prompt_field));
        }
        let room = limits.max_positions - len as u32;
        let wanted = given
            .max_tokens
            .map_or(room, |most| u32::try_from(most).unwrap_or(u32::MAX));
        // With nothing wanted the target still has to make a step over the prompt.
        Ok(wanted.clamp(1, room))
    });
    lengths.collect()
}

fn sampling(
    fields: Fields<'_>,
    model: &Model,
    stop_token_ids: &[TokenId],
) -> Result<SamplingParams, ApiError> {
    let makers = &model.generation.sampling;
    let min_tokens = fields
        .integer("min_tokens", 0, i64::from(u32::MAX))?
        .unwrap_or(0) as u32;
    let banned_until_min = if min_tokens == 0 {
        Vec::new()
    } else {
        let mut banned = model.generation.eos.clone();
        banned.extend_from_slice(stop_token_ids);
        banned.sort_unstable();
        banned.dedup();
        banned
    };
    let top_k = fields.integer("top_k", -1, i64::from(u32::MAX))?;
    Ok(SamplingParams {
        temperature: fields
            .number("temperature", 0.0, 2.0)?
            .or(makers.temperature)
            .unwrap_or(1.0),
        top_k: top_k.map(|k| k.max(0) as u32).or(makers.top_k).unwrap_or(0),
        top_p: fields
            .positive("top_p", 1.0)?
            .or(makers.top_p)
            .unwrap_or(1.0),
        min_p: fields
            .number("min_p", 0.0, 1.0)?
            .or(makers.min_p)
            .unwrap_or(0.0),
        repetition_penalty: fields
            .positive("repetition_penalty", 10.0)?
            .or(makers.repetition_penalty)
            .unwrap_or(1.0),
        presence_penalty: fields.number("presence_penalty", -2.0, 2.0)?.unwrap_or(0.0),
        frequency_penalty: fields
            .number("frequency_penalty", -2.0, 2.0)?
            .unwrap_or(0.0),
        logit_bias: logit_bias(fields, model.vocab_size())?,
        banned_until_min,
        min_tokens,
    })
}

fn logit_bias(fields: Fields<'_>, vocab_size: u32) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let Some(value) = fields.get("logit_bias").filter(|bias| !is_empty(bias)) else {
        return Ok(Vec::new());
    };
    let last = vocab_size.saturating_sub(1);
    let allowed = format!(
        "an object of token ids (0 to {last}, as plain numbers) and biases (numbers from -100 to 100)"
    );
    let wrong = || fields.wrong("logit_bias", value, &allowed);
    let mut biases = Vec::new();
    for (token, bias) in value.as_object().ok_or_else(wrong)? {
        let id = token
            .parse::<u32>()
            .ok()
            // One token has one spelling: of `7`, `07` and `+7` only one bias could count.
            .filter(|&id| id < vocab_size && id.to_string() == *token)
            .ok_or_else(wrong)?;
        let bias = bias
            .as_f64()
            .filter(|b| (-100.0..=100.0).contains(b))
            .ok_or_else(wrong)?;
        biases.push((TokenId(id), bias as f32));
    }
    biases.sort_unstable_by_key(|&(token, _)| token);
    Ok(biases)
}

/// Refuses a field with more entries than a router takes.
pub(super) fn at_most(
    fields: Fields<'_>,
    name: &str,
    number: usize,
    most: usize,
) -> Result<(), ApiError> {
    if number <= most {
        return Ok(());
    }
    let value = fields.get(name).cloned().unwrap_or_default();
    let allowed = format!("of at most {most} entries (it has {number})");
    Err(fields.wrong(name, &value, &allowed))
}

/// What `stream_options` ask for. Usage with each chunk, which only vLLM and others have, includes that
/// at the end, unless it is said not to be wanted.
fn streamed_usage(options: Fields<'_>) -> Result<StreamedUsage, ApiError> {
    let continuous = options.boolean("continuous_usage_stats")?.unwrap_or(false);
    let included = options.boolean("include_usage")?.unwrap_or(continuous);
    Ok(match (included, continuous) {
        (false, _) => StreamedUsage::Never,
        (true, false) => StreamedUsage::AtEnd,
        (true, true) => StreamedUsage::Always,
    })
}

fn output(
    fields: Fields<'_>,
    given: &Given,
    limits: Limits,
    nothing: bool,
) -> Result<Output, ApiError> {
    let stream = fields.boolean("stream")?.unwrap_or(false);
    let options = fields.object("stream_options")?;
    if options.is_some() && !stream {
        let value = fields.get("stream_options").cloned().unwrap_or_default();
        return Err(ApiError::field(
            "stream_options",
            &value,
            "absent unless stream is true",
        ));
    }
    let usage = options.map_or(Ok(StreamedUsage::Never), streamed_usage)?;
    let stop = stop_strings(fields, limits)?;
    Ok(Output {
        stream,
        usage,
        echo: given.echo,
        logprobs: given.logprobs,
        stop: Arc::new(StopStrings::new(&stop)),
        stop_texts: stop.into_iter().map(str::to_owned).collect(),
        include_stop: fields
            .boolean("include_stop_str_in_output")?
            .unwrap_or(false),
        skip_special: fields.boolean("skip_special_tokens")?.unwrap_or(true),
        return_token_ids: fields.boolean("return_token_ids")?.unwrap_or(false),
        return_tokens: fields.boolean("return_tokens")?.unwrap_or(false),
        ids_as_texts: fields
            .boolean("return_tokens_as_token_ids")?
            .unwrap_or(false),
        nothing,
    })
}

fn stop_strings<'a>(fields: Fields<'a>, limits: Limits) -> Result<Vec<&'a str>, ApiError> {
    let Some(value) = fields.get("stop") else {
        return Ok(Vec::new());
    };
    let strings: Option<Vec<&'a str>> = match value {
        Value::String(one) => Some(vec![one.as_str()]),
        Value::Array(many) => many.iter().map(Value::as_str).collect(),
        _ => None,
    };
    let strings = strings
        .filter(|strings| strings.iter().all(|s| !s.is_empty()))
        .ok_or_else(|| fields.wrong("stop", value, "a string or a list of strings, none empty"))?;
    at_most(fields, "stop", strings.len(), limits.max_stops)?;
    if let Some(long) = strings.iter().find(|stop| stop.len() > LONGEST_STOP) {
        let allowed = format!("of strings of at most {LONGEST_STOP} bytes");
        return Err(fields.wrong("stop", &Value::from(*long), &allowed));
    }
    let bytes: usize = strings.iter().map(|stop| stop.len()).sum();
    if bytes > MOST_STOP_BYTES {
        let allowed = format!("of at most {MOST_STOP_BYTES} bytes together (it has {bytes})");
        return Err(fields.wrong("stop", value, &allowed));
    }
    Ok(strings)
}

/// A number that is another one for every request.
fn draw() -> u64 {
    // `RandomState` takes its keys from the operating system.
    RandomState::new().hash_one(0_u64)
}
