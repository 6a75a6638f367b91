//! The token with the largest score.
//!
//! The noisy score of a token is `logit / temperature + G` in `f64`. Evaluating `G` for a whole
//! vocabulary would cost two logarithms a token. [`noisy`] needs them for a handful only: those whose
//! upper bound (`bounds`) reaches the best exact score so far, so the result is that of evaluating
//! all.

use super::{bounds::Bounded, ceilings::BLOCK, support};
use crate::{
    TokenId,
    noise::{GUMBEL_MAX, Noise},
};

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

/// The largest logit; minus infinity if there is none. Always inlined, for the sake of callers with
/// wider vectors.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "it has to be compiled for the caller's instructions"
)]
pub(super) fn maximum(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (chunks, rest) = logits.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = larger(logit, *lane);
        }
    }
    // By halves, which vectors can do.
    fold::<8>(&mut lanes);
    fold::<4>(&mut lanes);
    fold::<2>(&mut lanes);
    fold::<1>(&mut lanes);
    rest.iter().fold(lanes[0], |top, &logit| larger(logit, top))
}

/// Takes the second `HALF` lanes into the first ones.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "it has to be compiled for the caller's instructions"
)]
fn fold<const HALF: usize>(lanes: &mut [f32; 16]) {
    for i in 0..HALF {
        lanes[i] = larger(lanes[i], lanes[HALF + i]);
    }
}

/// The larger one; the second if the first is not a number.
#[inline(always)]
#[expect(
    clippy::inline_always,
    reason = "it has to be compiled for the caller's instructions"
)]
pub(super) fn larger(a: f32, b: f32) -> f32 {
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

/// The token with the largest noisy score among those whose key is at least `cut`, given the
/// bounds of all; minus infinity and below only if there is nothing else.
pub(super) fn noisy(
    logits: &[f32],
    temperature: f32,
    noise: &Noise,
    cut: u64,
    bounds: &Bounded<'_>,
) -> TokenId {
    let inverse = 1.0 / f64::from(temperature);
    let mut best = Best::none();
    let mut evaluate = |token: TokenId| {
        if let Some(&logit) = logits.get(token.index())
            && support::key(logit, token.index()) >= cut
        {
            best.offer(logit, inverse, noise, token.0);
        }
        best.threshold()
    };
    // The likeliest winner first: its score rules out nearly all others.
    let threshold = evaluate(bounds.largest());
    bounds.reaching(threshold, |token, _| evaluate(token));
    TokenId(best.token)
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
