//! How logits become a token.
//!
//! ```text
//! logits -> bias, bans -> penalties -> temperature -> min-p -> top-k -> top-p -> argmax(log p + G)
//! ```
//!
//! The order is vLLM's, so that the same request means the same distribution. [`Sampler`] holds
//! what belongs to a request, [`Scratch`] what can be shared by all of a thread.
//!
//! The argmax needs no normaliser: it compares `logit / temperature + G` in `f64`, ties going to
//! the lowest token. Temperature 0 is the argmax of the adjusted logits.

mod argmax;
mod bounds;
mod ceilings;
mod history;
mod law;
mod logprobs;
mod rank;
mod sampler;
mod support;
mod weight;

use alloc::{
    string::{String, ToString},
    vec::Vec,
};

pub use self::{
    bounds::{BoundRow, Bounds, NoisyRow},
    ceilings::Ceiling,
    history::History,
    law::{LawRow, WeighRow},
    logprobs::{Logprobs, logprobs},
    rank::{RankBy, Ranked, Ranking},
    sampler::{Sampler, Scratch},
};
use crate::TokenId;

/// Temperatures below this are greedy: the noise could not change the argmax of any real model.
pub const GREEDY_BELOW: f32 = 1e-5;

/// How a request samples. Names and meanings are those of the `OpenAI` and vLLM APIs.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingParams {
    /// Divides the logits; 0 is greedy (ties to the lowest id).
    pub temperature: f32,
    /// Keeps the k likeliest tokens; 0 keeps all.
    pub top_k: u32,
    /// Keeps the smallest set of likeliest tokens whose probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this likely relative to the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Divides (positive) or multiplies (negative) logits of tokens seen in prompt or output; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token seen in the output.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once per occurrence in the output.
    pub frequency_penalty: f32,
    /// Added to logits, before temperature.
    pub logit_bias: Vec<(TokenId, f32)>,
    /// Tokens that cannot be emitted before the output has `min_tokens` tokens.
    pub banned_until_min: Vec<TokenId>,
    /// See `banned_until_min`.
    pub min_tokens: u32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            banned_until_min: Vec::new(),
            min_tokens: 0,
        }
    }
}

impl SamplingParams {
    /// Most tokens that `logit_bias` may name at an endpoint, and `banned_until_min`. A target has no
    /// such limit: what it decides about is its own.
    pub const MOST_NAMED: usize = 4096;

    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of range, with its value and what is allowed.
    pub fn validate(&self) -> Result<(), InvalidSampling> {
        let in_range = |field, value: f32, ok: bool, allowed| {
            if ok {
                Ok(())
            } else {
                Err(InvalidSampling {
                    field,
                    value: value.to_string(),
                    allowed,
                })
            }
        };
        let t = self.temperature;
        in_range(
            "temperature",
            t,
            t.is_finite() && t >= 0.0,
            "a number of at least 0",
        )?;
        let p = self.top_p;
        in_range("top_p", p, p > 0.0 && p <= 1.0, "above 0 and at most 1")?;
        let p = self.min_p;
        in_range("min_p", p, (0.0..=1.0).contains(&p), "from 0 to 1")?;
        let r = self.repetition_penalty;
        in_range(
            "repetition_penalty",
            r,
            r.is_finite() && r > 0.0,
            "a number above 0",
        )?;
        let a = self.presence_penalty;
        in_range(
            "presence_penalty",
            a,
            (-2.0..=2.0).contains(&a),
            "from -2 to 2",
        )?;
        let a = self.frequency_penalty;
        in_range(
            "frequency_penalty",
            a,
            (-2.0..=2.0).contains(&a),
            "from -2 to 2",
        )?;
        for &(_, bias) in &self.logit_bias {
            in_range(
                "logit_bias",
                bias,
                (-100.0..=100.0).contains(&bias),
                "from -100 to 100",
            )?;
        }
        Ok(())
    }

    /// Whether no noise is involved.
    pub fn is_greedy(&self) -> bool {
        self.temperature < GREEDY_BELOW
    }

    /// Whether the distribution depends on which tokens came before.
    #[expect(clippy::float_cmp, reason = "neutral values are exact")]
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
    }

    /// Whether some tokens may be cut off by likelihood.
    pub fn truncates(&self) -> bool {
        self.top_k > 0 || self.top_p < 1.0 || self.min_p > 0.0
    }
}

/// A sampling parameter out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, but has to be {allowed}")]
pub struct InvalidSampling {
    /// Name of the parameter, as in requests.
    pub field: &'static str,
    /// What was given.
    pub value: String,
    /// What is allowed.
    pub allowed: &'static str,
}

#[cfg(test)]
mod tests;
