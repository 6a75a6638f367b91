//! Which tokens survive min-p, top-k and top-p.
//!
//! Tokens are ordered by logit, the lower id first among equals; every truncation keeps a prefix
//! of that order, so a support is one number: the key of its last token.

use alloc::vec::Vec;

use super::{SamplingParams, argmax, weight};
use crate::TokenId;

/// A number that is larger for likelier tokens: the logit in order-preserving bits, then the
/// complement of the token. Not-a-numbers count as minus infinity.
#[inline]
pub(super) fn key(logit: f32, token: usize) -> u64 {
    let logit = if logit.is_nan() {
        f32::NEG_INFINITY
    } else {
        logit + 0.0
    };
    let bits = logit.to_bits();
    let ordered = if bits >> 31 == 0 {
        bits | 1 << 31
    } else {
        !bits
    };
    u64::from(ordered) << 32 | u64::from(!(token as u32))
}

/// The token of a key.
#[inline]
pub(super) fn token(key: u64) -> TokenId {
    TokenId(!(key as u32))
}

/// The key of the last token that is kept; `keys` is filled with the keys of all that are, in any
/// order.
pub(super) fn cut(logits: &[f32], params: &SamplingParams, keys: &mut Vec<u64>) -> u64 {
    let top = argmax::maximum(logits);
    let inverse = 1.0 / params.temperature;
    keys.clear();
    keys.extend(logits.iter().enumerate().map(|(i, &l)| key(l, i)));
    keys.sort_unstable_by(|a, b| b.cmp(a));
    if params.min_p > 0.0 {
        let floor = libm::logf(params.min_p);
        keys.retain(|&k| (logits[token(k).index()] - top) * inverse >= floor);
    }
    if params.top_k > 0 {
        keys.truncate(params.top_k as usize);
    }
    if params.top_p < 1.0 {
        let weigh = |k: u64| weight::weight((logits[token(k).index()] - top) * inverse);
        let total: f64 = keys.iter().map(|&k| weigh(k)).sum();
        let mut sum = 0.0;
        let wanted = f64::from(params.top_p) * total;
        let kept = keys.iter().take_while(|&&k| {
            let more = sum < wanted;
            sum += weigh(k);
            more
        });
        let kept = kept.count();
        keys.truncate(kept.max(1));
    }
    keys.last().copied().unwrap_or(u64::MAX)
}
