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
    noise::{self, GUMBEL_MAX, Noise},
};

/// Tokens per step of the scan.
const BLOCK: usize = 64;
/// Philox counters per step of the scan: each gives the words of four tokens.
const COUNTERS: usize = BLOCK / 4;
/// More than the rounding errors of a bound, apart from those relative to the score.
const SLACK: f64 = 1e-3;
/// More than the rounding error of a bound relative to the score.
const RELATIVE_SLACK: f64 = 1e-6;
/// Supports up to this size are evaluated token by token.
const SPARSE: usize = 256;

/// The token with the largest logit; the lowest of several.
pub(super) fn greedy(logits: &[f32]) -> TokenId {
    let top = maximum(logits);
    TokenId(logits.iter().position(|&logit| logit == top).unwrap_or(0) as u32)
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
        if score > self.score || (score == self.score && token < self.token) {
            *self = Self { score, token };
        }
    }

    /// A bound below this cannot belong to a better token.
    fn threshold(&self) -> f32 {
        let slack = SLACK + RELATIVE_SLACK * libm::fabs(self.score);
        let threshold = (self.score - slack) as f32;
        // Infinite scores leave nothing to compare: evaluate whatever is left.
        if threshold.is_finite() {
            threshold
        } else {
            f32::NEG_INFINITY
        }
    }
}

/// The token with the largest noisy score.
pub(super) fn noisy(
    logits: &[f32],
    temperature: f32,
    noise: &Noise,
    bounds: &mut Vec<f32>,
) -> TokenId {
    let inverse = 1.0 / f64::from(temperature);
    bounds.resize(logits.len().next_multiple_of(BLOCK), 0.0);
    let (logit_blocks, rest) = logits.as_chunks::<BLOCK>();
    let (bound_blocks, _) = bounds.as_chunks_mut::<BLOCK>();
    let mut top = (f32::NEG_INFINITY, 0);
    let mut blocks = bound_blocks.iter_mut().enumerate();
    let mut padded = [f32::NEG_INFINITY; BLOCK];
    padded[..rest.len()].copy_from_slice(rest);
    for (block, ((index, bound), logit)) in blocks
        .by_ref()
        .zip(logit_blocks.iter().chain([&padded]))
        .enumerate()
    {
        debug_assert_eq!(block, index);
        let largest = bound_block(logit, inverse as f32, noise, index, bound);
        if largest > top.0 {
            top = (largest, index);
        }
    }
    let mut best = Best::none();
    let evaluate = |best: &mut Best, token: usize| {
        if let Some(&logit) = logits.get(token) {
            best.offer(logit, inverse, noise, token as u32);
        }
    };
    // The likeliest winner first: its score rules out nearly all others.
    let block = top.1 * BLOCK;
    let candidates = bounds.get(block..block + BLOCK).unwrap_or_default();
    if let Some(offset) = candidates.iter().position(|&bound| bound == top.0) {
        evaluate(&mut best, block + offset);
    }
    for (index, bound) in bounds.as_chunks::<BLOCK>().0.iter().enumerate() {
        let mut threshold = best.threshold();
        if maximum(bound) < threshold {
            continue;
        }
        for (offset, &bound) in bound.iter().enumerate() {
            if bound >= threshold {
                evaluate(&mut best, index * BLOCK + offset);
                threshold = best.threshold();
            }
        }
    }
    TokenId(best.token)
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

/// The token with the largest noisy score among those whose key is at least `cut`. `keys` are the
/// keys of these, in any order.
pub(super) fn noisy_above(
    logits: &[f32],
    temperature: f32,
    noise: &Noise,
    cut: u64,
    keys: &mut [u64],
) -> TokenId {
    let _ = (cut, noise::GUMBEL_MAX, GUMBEL_MAX, SPARSE);
    let inverse = 1.0 / f64::from(temperature);
    let mut best = Best::none();
    for &key in keys.iter() {
        let token = support::token(key);
        best.offer(logits[token.index()], inverse, noise, token.0);
    }
    TokenId(best.token)
}
