//! Where tokens begin in the text of a completion.
//!
//! Counted in characters of the text that is returned, which is not that of the tokens one by one:
//! special tokens may not be in it, and a character may be spread over several.

use std::sync::Arc;

use foretoken_artifacts::IncrementalDecoder;
use foretoken_speculation::TokenId;

use super::{echo_of, logprobs::shown};
use crate::request::{Job, Prompt};

/// Counts the characters of a choice's text.
pub(crate) struct Offsets {
    decoder: IncrementalDecoder,
    /// Characters before the next token's.
    at: usize,
    /// Text of the current token.
    fresh: String,
}

impl Offsets {
    /// For the output of a choice, whose text begins after the prompt's.
    pub(crate) fn new(job: &Job, index: usize) -> Self {
        Self {
            decoder: decoder(job, job.output.skip_special).after(&job.prompt_of(index).tokens),
            at: 0,
            fresh: String::new(),
        }
    }

    /// Where the tokens of the prompt begin, if the text begins with it.
    pub(crate) fn of_prompt(&mut self, job: &Job, prompt: &Prompt) -> Vec<usize> {
        let tokenizer = &job.model.tokenizer;
        let text = echo_of(job, prompt);
        // A user's text is returned as it came: of special tokens it has those that stand in it,
        // and not those that were put around it.
        let is_own = !prompt.text.is_empty();
        let mut decoder = decoder(job, is_own || job.output.skip_special);
        let mut rest = text.chars();
        let mut at = 0;
        let mut offsets = Vec::with_capacity(prompt.tokens.len());
        for &token in &*prompt.tokens {
            offsets.push(at);
            self.fresh.clear();
            decoder.push(token, &mut self.fresh);
            if is_own && tokenizer.is_special(token) {
                let special = shown(tokenizer, token);
                if rest.as_str().starts_with(&special) {
                    self.fresh.push_str(&special);
                }
            }
            // Never past the end, should the tokenizer have made a longer text of it.
            at += rest.by_ref().take(self.fresh.chars().count()).count();
        }
        self.at = at + rest.count();
        offsets
    }

    /// Where a token of the output begins.
    pub(crate) fn next(&mut self, token: TokenId) -> usize {
        let at = self.at;
        self.fresh.clear();
        self.decoder.push(token, &mut self.fresh);
        self.at += self.fresh.chars().count();
        at
    }
}

fn decoder(job: &Job, skip_special: bool) -> IncrementalDecoder {
    IncrementalDecoder::new(Arc::clone(&job.model.tokenizer), skip_special)
}
