//! Log-probabilities as users see them: of the model's own distribution, before any adjustment.

use alloc::vec::Vec;

use super::{argmax, support, weight};
use crate::TokenId;

/// Log-probabilities at one position.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Logprobs {
    /// Of the token itself.
    pub logprob: f32,
    /// Rank of the token itself, 0 being the likeliest; the lower id comes first among equals.
    pub rank: u32,
    /// The likeliest tokens, descending.
    pub top: Vec<(TokenId, f32)>,
}

/// Log-probability and rank of `token`, and those of the `top` likeliest tokens, under the softmax
/// of `logits`. A token outside the vocabulary has probability 0 and the last rank.
pub fn logprobs(logits: &[f32], token: TokenId, top: usize) -> Logprobs {
    let maximum = argmax::maximum(logits);
    let total: f64 = logits
        .iter()
        .map(|&logit| weight::weight(logit - maximum))
        .sum();
    let log_total = f64::from(maximum) + libm::log(total);
    let logprob = |logit: f32| (f64::from(logit) - log_total) as f32;
    let mut keys: Vec<u64> = logits
        .iter()
        .enumerate()
        .map(|(i, &logit)| support::key(logit, i))
        .collect();
    keys.sort_unstable_by(|a, b| b.cmp(a));
    Logprobs {
        logprob: logits
            .get(token.index())
            .map_or(f32::NEG_INFINITY, |&l| logprob(l)),
        rank: keys
            .iter()
            .position(|&k| support::token(k) == token)
            .unwrap_or(keys.len()) as u32,
        top: keys
            .iter()
            .take(top)
            .map(|&k| {
                (
                    support::token(k),
                    logprob(logits[support::token(k).index()]),
                )
            })
            .collect(),
    }
}
