//! The token with the largest score.
//!
//! The noisy score of a token is `logit / temperature + G` in `f64`. Evaluating `G` for a whole
//! vocabulary would cost two logarithms a token. [`noisy`] needs them for a handful only: `-ln u >=
//! 1 - u`, so `G <= -ln(1 - u)`, and the logarithm of `1 - u = (!w + 1/2) / 2^32` is at least its
//! piecewise linear interpolation between powers of two, which is the bit pattern of the number as
//! an `f32`. That bound is a few vector instructions. Only tokens whose bound reaches the best exact
//! score so far are evaluated, so the result is that of evaluating all.

use alloc::vec::Vec;

use super::support;
use crate::{
    TokenId,
    noise::{GUMBEL_MAX, Noise},
};

/// Tokens per step of the scan.
pub(super) const BLOCK: usize = 64;
/// Philox counters per step of the scan: each gives the words of four tokens.
const COUNTERS: usize = BLOCK / 4;
/// More than the rounding errors of a bound, apart from those relative to the score.
const SLACK: f64 = 1e-3;
/// More than the rounding error of a bound relative to the score.
const RELATIVE_SLACK: f64 = 1e-6;

/// The token with the largest logit; the lowest of several.
pub(super) fn greedy(logits: &[f32]) -> TokenId {
    let mut best = (f32::NEG_INFINITY, 0);
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let top = maximum(block);
        if top > best.0 {
            best = (top, index * BLOCK);
        }
    }
    let block = logits.get(best.1..).unwrap_or_default();
    let offset = block.iter().position(|&logit| logit >= best.0).unwrap_or(0);
    TokenId((best.1 + offset) as u32)
}

/// The largest logit; minus infinity if there is none.
pub(super) fn maximum(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = larger(logit, *lane);
        }
    }
    let top = lanes.into_iter().fold(f32::NEG_INFINITY, larger);
    rest.iter().fold(top, |top, &logit| larger(logit, top))
}

/// The larger one; the second if the first is not a number.
#[inline]
fn larger(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

/// Best score so far.
struct Best {
    score: f64,
    token: u32,
}

impl Best {
    fn none() -> Self {
        Self {
            score: f64::NEG_INFINITY,
            token: 0,
        }
    }

    fn offer(&mut self, logit: f32, inverse: f64, noise: &Noise, token: u32) {
        let score = f64::from(logit) * inverse + noise.gumbel(TokenId(token));
        if score > self.score || (score >= self.score && token < self.token) {
            *self = Self { score, token };
        }
    }

    /// A bound below this cannot belong to a better token.
    fn threshold(&self) -> f32 {
        threshold(self.score)
    }
}

/// A bound below this cannot belong to a token with this score or a better one.
pub(super) fn threshold(score: f64) -> f32 {
    let slack = SLACK + RELATIVE_SLACK * libm::fabs(score);
    let threshold = (score - slack) as f32;
    // Infinite scores leave nothing to compare: evaluate whatever is left.
    if threshold.is_finite() {
        threshold
    } else {
        f32::NEG_INFINITY
    }
}

/// The token with the largest noisy score among those whose key is at least `cut`; minus infinity
/// and below only if there is nothing else.
pub(super) fn noisy(
    logits: &[f32],
    temperature: f32,
    noise: &Noise,
    cut: u64,
    bounds: &mut Vec<f32>,
) -> TokenId {
    let inverse = 1.0 / f64::from(temperature);
    let top = bound_all(logits, inverse as f32, noise, bounds);
    let mut best = Best::none();
    let mut evaluate = |token: usize| {
        if let Some(&logit) = logits.get(token)
            && support::key(logit, token) >= cut
        {
            best.offer(logit, inverse, noise, token as u32);
        }
        best.threshold()
    };
    let bounds = bounds.as_chunks::<BLOCK>().0;
    // The likeliest winner first: its score rules out nearly all others.
    let likeliest = bounds[top.1]
        .iter()
        .position(|&bound| bound >= top.0)
        .unwrap_or(0);
    let mut threshold = evaluate(top.1 * BLOCK + likeliest);
    for (index, block) in bounds.iter().enumerate() {
        if maximum(block) < threshold {
            continue;
        }
        for (offset, &bound) in block.iter().enumerate() {
            if bound >= threshold {
                threshold = evaluate(index * BLOCK + offset);
            }
        }
    }
    TokenId(best.token)
}

/// Fills `bounds` with upper bounds of all noisy scores, in blocks of [`BLOCK`], the last one padded
/// with minus infinity; returns the largest and its block.
pub(super) fn bound_all(
    logits: &[f32],
    inverse: f32,
    noise: &Noise,
    bounds: &mut Vec<f32>,
) -> (f32, usize) {
    let (blocks, rest) = logits.as_chunks::<BLOCK>();
    let mut padded = [f32::NEG_INFINITY; BLOCK];
    padded[..rest.len()].copy_from_slice(rest);
    bounds.resize((blocks.len() + 1) * BLOCK, 0.0);
    let mut top = (f32::NEG_INFINITY, 0);
    let bound_blocks = bounds.as_chunks_mut::<BLOCK>().0;
    for (index, (block, bound)) in blocks.iter().chain([&padded]).zip(bound_blocks).enumerate() {
        let largest = bound_block(block, inverse, noise, index, bound);
        if largest > top.0 {
            top = (largest, index);
        }
    }
    top
}

/// Fills `bounds` with upper bounds of the noisy scores of one block; returns the largest.
#[inline]
fn bound_block(
    logits: &[f32; BLOCK],
    inverse: f32,
    noise: &Noise,
    block: usize,
    bounds: &mut [f32; BLOCK],
) -> f32 {
    /// `24 + 127`: the bits of an `f32`, over 2^23, are its binary logarithm plus 127, or less; 24
    /// are the bits of a word that fit its mantissa.
    const OFFSET: f32 = 151.0 * core::f32::consts::LN_2;
    const PER_BIT: f32 = core::f32::consts::LN_2 / (1 << 23) as f32;
    let words = noise.words::<COUNTERS>((block * COUNTERS) as u32);
    for lane in 0..COUNTERS {
        for (j, row) in words.iter().enumerate() {
            let complement = (!row[lane] >> 8) as i32;
            let bits = (complement as f32).to_bits() as i32;
            bounds[4 * lane + j] = OFFSET - bits as f32 * PER_BIT;
        }
    }
    for (bound, &logit) in bounds.iter_mut().zip(logits) {
        *bound += logit * inverse;
    }
    maximum(bounds)
}

/// As [`noisy`], given the keys of all tokens that may win, in any order.
pub(super) fn noisy_among(keys: &[u64], temperature: f32, noise: &Noise) -> TokenId {
    let inverse = 1.0 / f64::from(temperature);
    let mut best = Best::none();
    for &key in keys {
        let logit = support::logit(key);
        // Most of a support is too unlikely to win with any noise.
        if f64::from(logit) * inverse + GUMBEL_MAX >= best.score {
            best.offer(logit, inverse, noise, support::token(key).0);
        }
    }
    TokenId(best.token)
}
