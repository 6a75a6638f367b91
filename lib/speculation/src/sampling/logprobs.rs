//! Log-probabilities as users see them: of the model's own distribution, before any adjustment.

use alloc::vec::Vec;

use super::{Scratch, argmax, support, weight::Sum};
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
/// of `logits`, to about 1e-6. A token outside the vocabulary has probability 0 and the last rank.
pub fn logprobs(logits: &[f32], token: TokenId, top: usize, scratch: &mut Scratch) -> Logprobs {
    let maximum = argmax::maximum(logits);
    // Equal infinities have no difference.
    let relative = |logit: f32| {
        if logit >= maximum {
            0.0
        } else {
            logit - maximum
        }
    };
    let mut total = Sum::default();
    total.add(logits, relative);
    let log_total = libm::log(total.value());
    let logprob = |logit: f32| (f64::from(relative(logit)) - log_total) as f32;
    support::likeliest(logits, top, &mut scratch.keys);
    let likeliest = scratch
        .keys
        .iter()
        .map(|&key| (support::token(key), support::logit(key)));
    let (before, own) = match logits.get(token.index()) {
        Some(&own) => (&logits[..token.index()], own),
        None => (logits, f32::NEG_INFINITY),
    };
    let above = logits.iter().filter(|&&logit| logit > own).count();
    let equal = before.iter().filter(|&&logit| logit >= own).count()
        - before.iter().filter(|&&logit| logit > own).count();
    Logprobs {
        logprob: if token.index() < logits.len() {
            logprob(own)
        } else {
            f32::NEG_INFINITY
        },
        rank: (above + equal) as u32,
        top: likeliest
            .map(|(token, logit)| (token, logprob(logit)))
            .collect(),
    }
}
