//! Log-probabilities in both APIs' forms.

use foretoken_artifacts::Tokenizer;
use foretoken_protocol::generate::TokenLogprobs;
use foretoken_speculation::TokenId;
use serde_json::{Map, Value, json};

use crate::{
    choice::Told,
    request::{Job, Shape},
};

/// Stands for minus infinity, which JSON cannot say; vLLM's value.
const LEAST: f32 = -9999.0;

/// Builds the `logprobs` of a choice, whole or piece by piece.
pub(crate) struct Logprobs<'a> {
    job: &'a Job,
    /// Characters of text before the next token, for `text_offset`.
    offset: usize,
    /// Chat: entries of `content`.
    content: Vec<Value>,
    /// Completions: parallel lists.
    tokens: Vec<String>,
    own: Vec<Option<f32>>,
    top: Vec<Value>,
    offsets: Vec<usize>,
}

impl<'a> Logprobs<'a> {
    pub(crate) fn new(job: &'a Job) -> Self {
        Self::starting_at(job, 0)
    }

    /// For a later piece of a stream.
    pub(crate) fn starting_at(job: &'a Job, offset: usize) -> Self {
        Self {
            job,
            offset,
            content: Vec::new(),
            tokens: Vec::new(),
            own: Vec::new(),
            top: Vec::new(),
            offsets: Vec::new(),
        }
    }

    /// Where the next piece starts.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// Adds the prompt's tokens, of which the first has no probability.
    pub(crate) fn push_prompt(&mut self, tokens: &[TokenId], logprobs: &[TokenLogprobs]) {
        let told = std::iter::once(None).chain(logprobs.iter().map(Some));
        for (&token, logprobs) in tokens.iter().zip(told.chain(std::iter::repeat(None))) {
            self.push_completion(token, logprobs);
        }
    }

    /// Adds tokens of the output.
    pub(crate) fn push(&mut self, told: &[Told]) {
        for told in told {
            match self.job.shape {
                Shape::Chat => self.push_chat(told),
                Shape::Completion => self.push_completion(told.token, Some(&told.logprobs)),
            }
        }
    }

    fn push_chat(&mut self, told: &Told) {
        let tokenizer = &self.job.model.tokenizer;
        let entry = |token: TokenId, logprob: f32| {
            let mut map = Map::new();
            map.insert("token".into(), json!(shown(tokenizer, token)));
            map.insert("logprob".into(), json!(finite(logprob)));
            map.insert("bytes".into(), json!(tokenizer.token_bytes(token)));
            map
        };
        let most = self.job.output.logprobs.unwrap_or(0) as usize;
        let top = told.logprobs.top.iter().take(most);
        let top: Vec<Value> = top.map(|&(t, l)| Value::Object(entry(t, l))).collect();
        let mut one = entry(told.token, told.logprobs.logprob);
        one.insert("top_logprobs".into(), Value::Array(top));
        self.content.push(Value::Object(one));
    }

    fn push_completion(&mut self, token: TokenId, logprobs: Option<&TokenLogprobs>) {
        let tokenizer = &self.job.model.tokenizer;
        let text = shown(tokenizer, token);
        self.offsets.push(self.offset);
        self.offset += text.chars().count();
        self.own.push(logprobs.map(|l| finite(l.logprob)));
        let most = self.job.output.logprobs.unwrap_or(0) as usize;
        self.top.push(match logprobs {
            None => Value::Null,
            Some(l) => {
                let mut map: Map<String, Value> = Map::new();
                for &(t, logprob) in l.top.iter().take(most) {
                    // Of several tokens with one text the likeliest is told.
                    map.entry(shown(tokenizer, t))
                        .or_insert(json!(finite(logprob)));
                }
                map.entry(text.clone()).or_insert(json!(finite(l.logprob)));
                Value::Object(map)
            }
        });
        self.tokens.push(text);
    }

    /// What was added, as the API words it.
    pub(crate) fn take(&mut self) -> Value {
        match self.job.shape {
            Shape::Chat => {
                json!({"content": std::mem::take(&mut self.content), "refusal": null})
            }
            Shape::Completion => json!({
                "tokens": std::mem::take(&mut self.tokens),
                "token_logprobs": std::mem::take(&mut self.own),
                "top_logprobs": std::mem::take(&mut self.top),
                "text_offset": std::mem::take(&mut self.offsets),
            }),
        }
    }
}

/// A token's own text; part of a character shows as U+FFFD.
pub(crate) fn shown(tokenizer: &Tokenizer, token: TokenId) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned()
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() {
        logprob.max(LEAST)
    } else {
        LEAST
    }
}
