//! What users ask for, checked.
//!
//! ```text
//! body --parse_body--> fields --chat | completion--> Job --Choice per prompt and n--> GenerateRequest
//! ```
//!
//! Everything that can be wrong with a request is found here, before a target hears of it.
//! Unknown fields are ignored, as vLLM does; known ones whose effect is not supported are
//! refused rather than ignored.

pub(crate) mod chat;
pub(crate) mod completion;
pub(crate) mod fields;
pub(crate) mod sampling;
pub(crate) mod unsupported;

use std::{sync::Arc, time::Duration};

use foretoken_artifacts::StopStrings;
use foretoken_protocol::generate::{GenerateRequest, HOLD_FOR_WHOLE};
use foretoken_speculation::{Seed, TokenId, sampling::SamplingParams};

use crate::model::Model;

/// Which of the two APIs words the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Chat,
    Completion,
}

/// A prompt in both forms.
#[derive(Clone, Debug)]
pub(crate) struct Prompt {
    pub(crate) tokens: Arc<[TokenId]>,
    /// As the user wrote it; tokens are decoded only for `echo`.
    pub(crate) text: String,
}

/// A request, checked.
pub(crate) struct Job {
    pub(crate) model: Arc<Model>,
    pub(crate) shape: Shape,
    pub(crate) prompts: Vec<Prompt>,
    /// Choices per prompt.
    pub(crate) n: u32,
    pub(crate) sampling: SamplingParams,
    pub(crate) seed: Seed,
    /// Says that its choices belong together.
    pub(crate) owner: u64,
    /// Tokens of output per prompt, already within the model's length.
    pub(crate) max_tokens: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) stop_token_ids: Vec<TokenId>,
    /// Policy the user asked for.
    pub(crate) policy: Option<String>,
    pub(crate) lookahead: Option<u32>,
    pub(crate) cache_prompt: bool,
    /// Secret that what is kept of the prompt is kept under.
    pub(crate) cache_salt: Option<String>,
    pub(crate) output: Output,
}

/// Which chunks of a stream tell usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamedUsage {
    /// None.
    Never,
    /// One at the end.
    AtEnd,
    /// Besides, each tells its choice's so far: how many tokens a chunk brought varies.
    Always,
}

/// How the answer is to look.
#[derive(Clone, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a field of the request"
)]
pub(crate) struct Output {
    pub(crate) stream: bool,
    /// Which chunks of a stream tell usage.
    pub(crate) usage: StreamedUsage,
    /// Begins the text with the prompt (completions).
    pub(crate) echo: bool,
    /// Log-probabilities, with this many alternatives.
    pub(crate) logprobs: Option<u32>,
    pub(crate) stop: Arc<StopStrings>,
    /// The stop strings themselves, by index.
    pub(crate) stop_texts: Vec<String>,
    /// The stop string or token is part of the text.
    pub(crate) include_stop: bool,
    pub(crate) skip_special: bool,
    /// Ids as `token_ids` (vLLM's name).
    pub(crate) return_token_ids: bool,
    /// Ids as `tokens` (llama.cpp's name).
    pub(crate) return_tokens: bool,
    /// Tokens of log-probabilities are told by their ids: pieces of characters all look alike.
    pub(crate) ids_as_texts: bool,
    /// No output is wanted, only the prompt back (`max_tokens: 0` with `echo`).
    pub(crate) nothing: bool,
}

impl Output {
    /// Whether ids are told, under whichever name.
    pub(crate) fn wants_ids(&self) -> bool {
        self.return_token_ids || self.return_tokens
    }
}

impl Job {
    /// Choices of the request, over all prompts.
    pub(crate) fn choices(&self) -> usize {
        self.prompts.len() * self.n as usize
    }

    /// What a target is asked for choice `index` (prompt by prompt, n each). Tokens of a stream may
    /// wait for later ones as long as `hold` says.
    pub(crate) fn generate_request(
        &self,
        request_id: &str,
        index: usize,
        hold: Duration,
    ) -> GenerateRequest {
        let (prompt, choice) = (index / self.n as usize, index % self.n as usize);
        let tokens = self.prompts[prompt].tokens.to_vec();
        GenerateRequest {
            request_id: request_id.to_owned(),
            owner: self.owner,
            prompt_len: tokens.len(),
            tokens,
            sampling: self.sampling.clone(),
            seed: self.seed_of(prompt).derive(choice as u32),
            max_tokens: self.max_tokens[prompt],
            ignore_eos: self.ignore_eos,
            stop_token_ids: self.stop_token_ids.clone(),
            logprobs: self.output.logprobs,
            prompt_logprobs: self.output.echo && self.output.logprobs.is_some(),
            policy: self.policy.clone(),
            lookahead: self.lookahead,
            cache_prompt: self.cache_prompt,
            cache_salt: self.cache_salt.clone(),
            endpoints: Vec::new(),
            tell_stats: !self.output.stop_texts.is_empty(),
            hold: if self.output.stream {
                hold
            } else {
                HOLD_FOR_WHOLE
            },
            trace: None,
        }
    }

    /// The seed of a prompt's first choice. Prompts may be alike, and are no better than one then if
    /// their noise is; the first one's is the request's, and there are fewer choices than such numbers.
    fn seed_of(&self, prompt: usize) -> Seed {
        match prompt as u32 {
            0 => self.seed,
            prompt => self.seed.derive(u32::MAX - prompt),
        }
    }

    /// The prompt of choice `index`.
    pub(crate) fn prompt_of(&self, index: usize) -> &Prompt {
        &self.prompts[index / self.n as usize]
    }

    /// Whether a token ends the output.
    pub(crate) fn ends_output(&self, token: TokenId) -> bool {
        self.stop_token_ids.contains(&token) || (!self.ignore_eos && self.model.is_eos(token))
    }
}

#[cfg(test)]
mod tests;
