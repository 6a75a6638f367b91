//! A model without weights: a deterministic language with a set acceptance rate and a set latency.

use std::time::Duration;

use foretoken_speculation::TokenId;

use crate::runner::{Logits, ModelRunner, PageCopy, RunnerError, RunnerInfo, SlotMove, StepPlan};

/// A simulated model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimOptions {
    /// The language: a target and a draft of equal language, vocabulary and end token agree as
    /// far as `role` says.
    pub language: u64,
    /// Entries of the vocabulary, at least 16.
    pub vocab_size: usize,
    /// How sequences end, if they do.
    pub end: Option<End>,
    /// Whether it speaks the language itself or guesses.
    pub role: Role,
    /// Longest sequence.
    pub max_positions: usize,
    /// Pages of the KV pool.
    pub pages: usize,
    /// Most rows of a step.
    pub max_rows: usize,
    /// What a step costs.
    pub latency: Latency,
}

impl Default for SimOptions {
    /// A target of 512 tokens that never ends and takes no time.
    fn default() -> Self {
        Self {
            language: 0,
            vocab_size: 512,
            end: None,
            role: Role::Target,
            max_positions: 4096,
            pages: 1024,
            max_rows: 256,
            latency: Latency::default(),
        }
    }
}

/// The token that ends a text, and how often the language chooses it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End {
    /// The token.
    pub token: TokenId,
    /// Fraction of contexts after which it is the likeliest token, 0 to 1; 0: it never occurs.
    pub rate: f64,
}

/// What a simulated model knows of its language.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Everything.
    Target,
    /// In a fraction of contexts the same logits as the target, in the others different ones.
    Draft {
        /// The fraction, 0 to 1: its acceptance rate.
        agreement: f64,
    },
}

/// Time of a step: `base + rows * per_row + context * per_context_token`, where the context is the
/// sum of the lengths of all sequences in the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Of every step.
    pub base: Duration,
    /// Of every row.
    pub per_row: Duration,
    /// Of every token that is attended to, once per sequence.
    pub per_context_token: Duration,
}

/// A simulated model, see [`SimOptions`].
#[derive(Debug)]
pub struct SimRunner {
    info: RunnerInfo,
}

impl SimRunner {
    /// Builds the model; values out of range are clamped.
    pub fn new(options: SimOptions) -> Self {
        let _ = options;
        unimplemented!()
    }
}

impl ModelRunner for SimRunner {
    fn info(&self) -> &RunnerInfo {
        &self.info
    }

    fn forward(&mut self, _plan: &StepPlan, _logits: &mut Logits) -> Result<(), RunnerError> {
        unimplemented!()
    }

    fn copy_pages(&mut self, _copies: &[PageCopy]) {}

    fn move_slots(&mut self, _moves: &[SlotMove]) {}
}
