//! Answers, as the two APIs word them.

pub(crate) mod logprobs;
pub(crate) mod offsets;
mod speculation;
pub(crate) mod stream;

use std::{borrow::Cow, time::Duration};

use foretoken_speculation::TokenId;
use serde::Serialize;
use serde_json::{Value, json};

use self::{
    logprobs::{Listed, Logprobs},
    offsets::Offsets,
    speculation::speculation,
};
use crate::{
    choice::{Finish, Piece},
    generation::Tally,
    request::{Job, Output, Prompt, Shape},
};

/// What all parts of one answer repeat.
#[derive(Clone, Debug)]
pub(crate) struct Envelope {
    /// `chatcmpl-...` or `cmpl-...`.
    pub(crate) id: String,
    /// Seconds since 1970.
    pub(crate) created: u64,
    pub(crate) fingerprint: Option<String>,
}

impl Envelope {
    pub(crate) fn new(shape: Shape, request_id: &str, created: u64) -> Self {
        let prefix = match shape {
            Shape::Chat => "chatcmpl",
            Shape::Completion => "cmpl",
        };
        Self {
            id: format!("{prefix}-{request_id}"),
            created,
            fingerprint: None,
        }
    }
}

/// A choice as it comes in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Collected {
    pub(crate) piece: Piece,
    pub(crate) end: Option<(Finish, Box<Tally>)>,
}

impl Collected {
    pub(crate) fn add(&mut self, piece: Piece) {
        self.piece.text.push_str(&piece.text);
        self.piece.tokens.extend(piece.tokens);
        self.piece.logprobs.extend(piece.logprobs);
    }
}

/// The whole answer of a request that does not stream.
#[derive(Serialize)]
pub(crate) struct Whole<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: Option<&'a str>,
    choices: Vec<WholeChoice<'a>>,
    usage: Value,
    timings: Value,
}

/// One of its choices.
#[derive(Serialize)]
struct WholeChoice<'a> {
    index: usize,
    #[serde(flatten)]
    text: Text<'a>,
    logprobs: Option<Listed>,
    finish_reason: Option<&'static str>,
    stop_reason: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<Vec<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokens: Option<Vec<u32>>,
}

/// The text of a choice, under the name that the API gives it.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Text<'a> {
    Message {
        role: &'static str,
        content: Cow<'a, str>,
        refusal: Option<()>,
    },
    Text(Cow<'a, str>),
}

impl<'a> Whole<'a> {
    pub(crate) fn new(job: &'a Job, envelope: &'a Envelope, choices: &'a [Collected]) -> Self {
        let object = match job.shape {
            Shape::Chat => "chat.completion",
            Shape::Completion => "text_completion",
        };
        let list = choices.iter().enumerate();
        let ends = choices.iter().filter_map(|choice| choice.end.as_ref());
        let tallies: Vec<&Tally> = ends.map(|(_, tally)| &**tally).collect();
        Self {
            id: &envelope.id,
            object,
            created: envelope.created,
            model: &job.model.name,
            system_fingerprint: envelope.fingerprint.as_deref(),
            choices: list.map(|(i, c)| WholeChoice::new(job, i, c)).collect(),
            usage: usage(job, &tallies),
            timings: timings(job, &tallies),
        }
    }
}

impl<'a> WholeChoice<'a> {
    fn new(job: &'a Job, index: usize, choice: &'a Collected) -> Self {
        let Output {
            echo,
            return_token_ids,
            return_tokens,
            ..
        } = job.output;
        let prompt = job.prompt_of(index);
        let end = choice.end.as_ref();
        let logprobs = job.output.logprobs.map(|_| {
            let mut offsets = Offsets::new(job, index);
            let mut logprobs = Logprobs::new(job, &mut offsets);
            if echo {
                let told = end.map_or(&[][..], |(_, tally)| &tally.prompt_logprobs);
                logprobs.push_prompt(index, told);
            }
            logprobs.push(&choice.piece.logprobs);
            logprobs.into_listed()
        });
        let content = if echo {
            Cow::Owned(echo_of(job, prompt) + &choice.piece.text)
        } else {
            Cow::Borrowed(choice.piece.text.as_str())
        };
        let text = match job.shape {
            Shape::Chat => Text::Message {
                role: "assistant",
                content,
                refusal: None,
            },
            Shape::Completion => Text::Text(content),
        };
        let finish = end.map(|(finish, _)| finish);
        Self {
            index,
            text,
            logprobs,
            finish_reason: finish.map(Finish::reason),
            stop_reason: stop_reason(job, finish),
            token_ids: return_token_ids.then(|| ids(&choice.piece.tokens)),
            prompt_token_ids: return_token_ids.then(|| ids(&prompt.tokens)),
            tokens: return_tokens.then(|| ids(&choice.piece.tokens)),
        }
    }
}

/// Tokens as numbers.
pub(crate) fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|token| token.0).collect()
}

/// The prompt's text, for `echo`.
pub(crate) fn echo_of(job: &Job, prompt: &Prompt) -> String {
    if prompt.text.is_empty() {
        job.model
            .tokenizer
            .decode(&prompt.tokens, job.output.skip_special)
    } else {
        prompt.text.clone()
    }
}

/// What ended the output: the stop string, the stop token, or null.
pub(crate) fn stop_reason(job: &Job, finish: Option<&Finish>) -> Value {
    match finish {
        Some(Finish::StopString(index)) => json!(job.output.stop_texts.get(*index)),
        Some(Finish::StopToken(token)) => json!(token.0),
        Some(Finish::End | Finish::Length) | None => Value::Null,
    }
}

/// Tokens of prompts that were in a cache; each prompt counts once.
fn cached(job: &Job, tallies: &[&Tally]) -> u32 {
    let per_prompt = tallies.chunks(job.n as usize);
    per_prompt
        .map(|choices| choices.iter().map(|t| t.cached_tokens).min().unwrap_or(0))
        .sum()
}

/// `usage`, over all choices; each prompt counts once.
pub(crate) fn usage(job: &Job, tallies: &[&Tally]) -> Value {
    let prompt: usize = job.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    let completion: u32 = tallies.iter().map(|tally| tally.emitted).sum();
    let cached = cached(job, tallies);
    let mut usage = tokens_used(prompt, completion);
    usage["prompt_tokens_details"] = json!({"cached_tokens": cached});
    usage["foretoken"] = speculation(job, tallies);
    usage
}

/// The part of `usage` that the API asks for.
pub(crate) fn tokens_used(prompt: usize, completion: u32) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion as usize,
    })
}

/// `timings` under llama.cpp's names: times of the slowest choice, tokens of all.
pub(crate) fn timings(job: &Job, tallies: &[&Tally]) -> Value {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let predicted: u32 = tallies.iter().map(|tally| tally.emitted).sum();
    let prefill = tallies.iter().filter_map(|tally| tally.prefill()).max();
    let decode = tallies
        .iter()
        .map(|tally| tally.decode())
        .max()
        .unwrap_or_default();
    let cached = cached(job, tallies);
    let prompt: usize = job.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    // The time is that after the first token of a choice.
    let later: u32 = tallies
        .iter()
        .map(|tally| tally.emitted.saturating_sub(1))
        .sum();
    let per_second =
        (later > 0 && decode > Duration::ZERO).then(|| f64::from(later) / decode.as_secs_f64());
    json!({
        // Those that had to be read.
        "prompt_n": prompt.saturating_sub(cached as usize),
        "cache_n": cached,
        "prompt_ms": prefill.map(ms),
        "predicted_n": predicted,
        "predicted_ms": ms(decode),
        "predicted_per_second": per_second,
        "draft_n": tallies.iter().map(|tally| tally.drafted).sum::<u32>(),
        "draft_n_accepted": tallies.iter().map(|tally| tally.accepted).sum::<u32>(),
    })
}
