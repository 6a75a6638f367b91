//! How logits become a token.

use alloc::vec::Vec;

use crate::TokenId;

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
