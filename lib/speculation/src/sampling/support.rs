//! Which tokens survive min-p, top-k and top-p.
//!
//! Tokens are ordered by logit, the lower id first among equals; every truncation keeps a prefix
//! of that order, so a support is one number: the key of its last token. Sorting a vocabulary to
//! find it would take longer than a step of a small model: only tokens near the likeliest are
//! collected, further ones if those do not suffice, and the cut is found by selection.

use alloc::vec::Vec;

use super::{SamplingParams, argmax, weight};
use crate::TokenId;

/// The cut that nothing is below.
pub(super) const EVERYTHING: u64 = 0;

/// Distances from the likeliest token, in nats, within which tokens are collected; one after the
/// other, until there are enough.
const REACHES: [f32; 4] = [-4.0, -8.0, -16.0, f32::NEG_INFINITY];
/// Tokens per step of a scan.
const BLOCK: usize = 32;
/// Ranges up to this size are sorted.
const SORTED: usize = 32;

/// A number that is larger for likelier tokens: the logit in order-preserving bits, then the
/// complement of the token. Not-a-numbers count as minus infinity.
#[inline]
pub(super) fn key(logit: f32, token: usize) -> u64 {
    // Adding zero turns -0 into 0: they are equal, so the id has to decide.
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
    (u64::from(ordered) << 32) | u64::from(!(token as u32))
}

/// The token of a key.
#[inline]
pub(super) fn token(key: u64) -> TokenId {
    TokenId(!(key as u32))
}

/// The logit of a key.
#[inline]
pub(super) fn logit(key: u64) -> f32 {
    let ordered = (key >> 32) as u32;
    f32::from_bits(if ordered >> 31 == 1 {
        ordered & !(1 << 31)
    } else {
        !ordered
    })
}

/// Log-weights relative to the likeliest token, which has 0.
#[derive(Clone, Copy)]
struct Scale {
    top: f32,
    inverse: f32,
}

impl Scale {
    #[inline]
    fn of(self, logit: f32) -> f32 {
        // The first case is that of two infinities, whose difference is not a number.
        if logit >= self.top {
            0.0
        } else {
            (logit - self.top) * self.inverse
        }
    }

    fn weight(self, key: u64) -> f64 {
        weight::weight(self.of(logit(key)))
    }
}

/// The key of the last token that is kept; `keys` is filled with the keys of all that are, in any
/// order. Of no logits at all nothing is kept.
pub(super) fn cut(logits: &[f32], params: &SamplingParams, keys: &mut Vec<u64>) -> u64 {
    let scale = Scale {
        top: argmax::maximum(logits),
        inverse: 1.0 / params.temperature,
    };
    let floor = if params.min_p > 0.0 {
        libm::logf(params.min_p)
    } else {
        f32::NEG_INFINITY
    };
    let top_k = if params.top_k > 0 {
        params.top_k as usize
    } else {
        usize::MAX
    };
    let nucleus = params.top_p < 1.0;
    let needed = if nucleus && top_k == usize::MAX {
        let total = weight::total(logits, |logit| {
            let scaled = scale.of(logit);
            if scaled >= floor {
                scaled
            } else {
                f32::NEG_INFINITY
            }
        });
        Some(f64::from(params.top_p) * total)
    } else {
        None
    };
    for reach in REACHES {
        collect(logits, scale, reach.max(floor), keys);
        let enough = match needed {
            Some(needed) => keys.iter().map(|&key| scale.weight(key)).sum::<f64>() >= needed,
            None => keys.len() >= top_k,
        };
        if enough || reach <= floor {
            break;
        }
    }
    keep_likeliest(keys, top_k);
    if nucleus {
        let needed = needed.unwrap_or_else(|| {
            f64::from(params.top_p) * keys.iter().map(|&key| scale.weight(key)).sum::<f64>()
        });
        keep_nucleus(keys, needed, |key| scale.weight(key));
    }
    keys.iter().copied().min().unwrap_or(u64::MAX)
}

/// The keys of the `n` likeliest tokens (all, if there are fewer), likeliest first.
pub(super) fn likeliest(logits: &[f32], n: usize, keys: &mut Vec<u64>) {
    let scale = Scale {
        top: argmax::maximum(logits),
        inverse: 1.0,
    };
    for reach in REACHES {
        collect(logits, scale, reach, keys);
        if keys.len() >= n {
            break;
        }
    }
    keep_likeliest(keys, n);
    keys.sort_unstable_by(|a, b| b.cmp(a));
}

/// Fills `keys` with those of tokens not further below the likeliest than `reach`.
fn collect(logits: &[f32], scale: Scale, reach: f32, keys: &mut Vec<u64>) {
    keys.clear();
    let everything = reach == f32::NEG_INFINITY;
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        if !everything && scale.of(argmax::maximum(block)) < reach {
            continue;
        }
        for (offset, &logit) in block.iter().enumerate() {
            if everything || scale.of(logit) >= reach {
                keys.push(key(logit, index * BLOCK + offset));
            }
        }
    }
}

fn keep_likeliest(keys: &mut Vec<u64>, n: usize) {
    if n == 0 {
        keys.clear();
    } else if n < keys.len() {
        keys.select_nth_unstable_by(n - 1, |a, b| b.cmp(a));
        keys.truncate(n);
    }
}

/// Keeps the fewest likeliest keys whose weights add up to `needed`, at least one. Sums of weights
/// are exact, so the order in which selection adds them does not matter.
fn keep_nucleus(keys: &mut Vec<u64>, needed: f64, weigh: impl Fn(u64) -> f64) {
    // All before `low` are kept and weigh `sum`; all from `high` on are not.
    let (mut low, mut high, mut sum) = (0, keys.len(), 0.0);
    while high - low > SORTED {
        let middle = (high - low) / 2;
        keys[low..high].select_nth_unstable_by(middle, |a, b| b.cmp(a));
        let half: f64 = keys[low..=low + middle].iter().map(|&key| weigh(key)).sum();
        if sum + half >= needed {
            high = low + middle + 1;
        } else {
            sum += half;
            low += middle + 1;
        }
    }
    keys[low..high].sort_unstable_by(|a, b| b.cmp(a));
    let mut kept = low;
    while kept < high && (sum < needed || kept == 0) {
        sum += weigh(keys[kept]);
        kept += 1;
    }
    keys.truncate(kept);
}
