//! Answers, as the two APIs word them.

pub(crate) mod logprobs;
pub(crate) mod stream;

use std::time::Duration;

use serde_json::{Map, Value, json};

use self::logprobs::Logprobs;
use crate::{
    choice::{Finish, Piece},
    generation::Tally,
    request::{Job, Shape},
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
    pub(crate) end: Option<(Finish, Tally)>,
}

impl Collected {
    pub(crate) fn add(&mut self, piece: Piece) {
        self.piece.text.push_str(&piece.text);
        self.piece.tokens.extend(piece.tokens);
        self.piece.logprobs.extend(piece.logprobs);
    }
}

/// The whole answer of a request that does not stream.
pub(crate) fn whole(job: &Job, envelope: &Envelope, choices: &[Collected]) -> Value {
    let object = match job.shape {
        Shape::Chat => "chat.completion",
        Shape::Completion => "text_completion",
    };
    let list: Vec<Value> = choices
        .iter()
        .enumerate()
        .map(|(index, choice)| whole_choice(job, index, choice))
        .collect();
    let tallies: Vec<&Tally> = choices
        .iter()
        .filter_map(|c| c.end.as_ref().map(|(_, tally)| tally))
        .collect();
    json!({
        "id": envelope.id,
        "object": object,
        "created": envelope.created,
        "model": job.model.name,
        "system_fingerprint": envelope.fingerprint,
        "choices": list,
        "usage": usage(job, &tallies),
        "timings": timings(job, &tallies),
    })
}

fn whole_choice(job: &Job, index: usize, choice: &Collected) -> Value {
    let prompt = job.prompt_of(index);
    let mut logprobs = Logprobs::new(job);
    let mut text = String::new();
    let mut listed = Value::Null;
    if job.output.echo {
        text = echoed(job, index);
        if job.output.logprobs.is_some() {
            let prompt_logprobs = choice.end.as_ref().map(|(_, tally)| &tally.prompt_logprobs);
            let told = prompt_logprobs.map_or(&[][..], Vec::as_slice);
            logprobs.push_prompt(&prompt.tokens, told);
        }
    }
    text.push_str(&choice.piece.text);
    if job.output.logprobs.is_some() {
        logprobs.push(&choice.piece.logprobs);
        listed = logprobs.take();
    }
    let mut out = Map::new();
    out.insert("index".into(), json!(index));
    match job.shape {
        Shape::Chat => {
            let message = json!({"role": "assistant", "content": text, "refusal": null});
            out.insert("message".into(), message);
        }
        Shape::Completion => {
            out.insert("text".into(), json!(text));
        }
    }
    out.insert("logprobs".into(), listed);
    let finish = choice.end.as_ref().map(|(finish, _)| finish);
    out.insert("finish_reason".into(), json!(finish.map(Finish::reason)));
    out.insert("stop_reason".into(), stop_reason(job, finish));
    let ids = || json!(choice.piece.tokens.iter().map(|t| t.0).collect::<Vec<_>>());
    if job.output.return_token_ids {
        out.insert("token_ids".into(), ids());
        let prompt: Vec<u32> = prompt.tokens.iter().map(|t| t.0).collect();
        out.insert("prompt_token_ids".into(), json!(prompt));
    }
    if job.output.return_tokens {
        out.insert("tokens".into(), ids());
    }
    Value::Object(out)
}

/// The prompt's text, for `echo`.
pub(crate) fn echoed(job: &Job, index: usize) -> String {
    let prompt = job.prompt_of(index);
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

/// `usage`, over all choices; each prompt counts once.
pub(crate) fn usage(job: &Job, tallies: &[&Tally]) -> Value {
    let prompt: usize = job.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    let completion: u32 = tallies.iter().map(|tally| tally.emitted).sum();
    let per_prompt = tallies.chunks(job.n as usize);
    let cached: u32 = per_prompt
        .map(|choices| choices.iter().map(|t| t.cached_tokens).min().unwrap_or(0))
        .sum();
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion as usize,
        "prompt_tokens_details": {"cached_tokens": cached},
        "foretoken": speculation(job, tallies),
    })
}

/// What speculation did, over all choices and all targets that served them.
fn speculation(job: &Job, tallies: &[&Tally]) -> Value {
    let rounds: u32 = tallies.iter().map(|tally| tally.rounds).sum();
    let accepted: u32 = tallies.iter().map(|tally| tally.accepted).sum();
    let drafted: u32 = tallies.iter().map(|tally| tally.drafted).sum();
    let acceptance_length = (rounds > 0).then(|| 1.0 + f64::from(accepted) / f64::from(rounds));
    let served = tallies.iter().find_map(|tally| tally.policy.clone());
    json!({
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_length": acceptance_length,
        // Two's complement, so that a negative seed comes back as it was given.
        "seed": job.seed.0 as i64,
        "policy": served.or_else(|| job.policy.clone()),
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
    let cached: u32 = tallies
        .iter()
        .map(|tally| tally.cached_tokens)
        .max()
        .unwrap_or(0);
    let prompt: usize = job.prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    let per_second = (decode > Duration::ZERO).then(|| f64::from(predicted) / decode.as_secs_f64());
    json!({
        "prompt_n": prompt,
        "cache_n": cached,
        "prompt_ms": prefill.map(ms),
        "predicted_n": predicted,
        "predicted_ms": ms(decode),
        "predicted_per_second": per_second,
        "draft_n": tallies.iter().map(|tally| tally.drafted).sum::<u32>(),
        "draft_n_accepted": tallies.iter().map(|tally| tally.accepted).sum::<u32>(),
    })
}
