//! Which tokens survive min-p, top-k and top-p.
//!
//! Tokens are ordered by logit, the lower id first among equals; every truncation keeps a prefix
//! of that order, so a support is one number: the key of its last token. Sorting a vocabulary to
//! find it would take longer than a step of a small model: only the tokens around the cut are.

use alloc::vec::Vec;

use super::{SamplingParams, argmax, weight};
use crate::TokenId;

/// The cut that nothing is below.
pub(super) const EVERYTHING: u64 = 0;

/// Distances from the likeliest token, in nats, within which tokens are collected; one after the
/// other, until there are enough.
const REACHES: [f32; 4] = [-4.0, -8.0, -16.0, f32::NEG_INFINITY];
/// Buckets that a nucleus is measured with; the last one holds all that is farther.
const BUCKETS: usize = 257;
/// A power of two, so that distances times this are exact.
const BUCKETS_PER_NAT: f32 = 16.0;
/// Weights of tokens this much less likely than the likeliest, in nats, round to zero.
const WEIGHTLESS: f32 = -26.0;
/// Tokens per step of a scan.
const BLOCK: usize = 32;
/// Supports up to this size are best evaluated token by token.
pub(super) const FEW: usize = 128;

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

/// The key of the last token that is kept, and how many are. If these are few, `keys` is filled
/// with theirs, in any order. Of no logits at all nothing is kept.
pub(super) fn cut(logits: &[f32], params: &SamplingParams, keys: &mut Vec<u64>) -> Support {
    let scale = Scale {
        top: argmax::maximum(logits),
        inverse: 1.0 / params.temperature,
    };
    let floor = if params.min_p > 0.0 {
        libm::logf(params.min_p)
    } else {
        f32::NEG_INFINITY
    };
    let top_p = f64::from(params.top_p);
    if params.top_k > 0 {
        collect_likeliest(logits, params.top_k as usize, scale, floor, keys);
        if params.top_p < 1.0 {
            let total: f64 = keys.iter().map(|&key| scale.weight(key)).sum();
            keep_nucleus(keys, 0.0, top_p * total, scale);
        }
    } else if params.top_p < 1.0 {
        return nucleus(logits, top_p, scale, floor, keys);
    } else {
        collect_above(logits, scale, floor, keys);
    }
    Support {
        cut: keys.iter().copied().min().unwrap_or(u64::MAX),
        len: keys.len(),
    }
}

/// Which tokens may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Support {
    /// Key of the least likely one.
    pub(super) cut: u64,
    /// How many there are.
    pub(super) len: usize,
}

impl Support {
    /// That of a row which nothing is cut off from.
    pub(super) const EVERYTHING: Self = Self {
        cut: EVERYTHING,
        len: usize::MAX,
    };
}

/// The nucleus of the tokens at `floor` or above. One pass adds up weights by distance from the
/// likeliest; only the tokens at the distance where the sum gets there have to be sorted.
fn nucleus(logits: &[f32], top_p: f64, scale: Scale, floor: f32, keys: &mut Vec<u64>) -> Support {
    let in_reach = |logit| {
        let scaled = scale.of(logit);
        if scaled >= floor {
            scaled
        } else {
            f32::NEG_INFINITY
        }
    };
    let mut buckets = [Bucket::default(); BUCKETS];
    let (mut weights, mut indices) = ([0.0; BLOCK], [0; BLOCK]);
    for block in logits.chunks(BLOCK) {
        if scale.of(argmax::maximum(block)) < WEIGHTLESS {
            continue;
        }
        weight::weights(block, in_reach, &mut weights);
        for (index, &logit) in indices.iter_mut().zip(block) {
            *index = bucket_of(in_reach(logit));
        }
        for (&index, &weight) in indices.iter().zip(&weights).take(block.len()) {
            let bucket = &mut buckets[index as usize];
            bucket.weight += weight;
            bucket.count += 1;
        }
    }
    let needed = top_p * buckets.iter().map(|bucket| bucket.weight).sum::<f64>();
    let (mut last, mut before) = (0, Bucket::default());
    while last + 1 < BUCKETS && before.weight + buckets[last].weight < needed {
        before.weight += buckets[last].weight;
        before.count += buckets[last].count;
        last += 1;
    }
    let mut first = last;
    if before.count as usize <= FEW {
        // The support may be small enough for all of its keys.
        before = Bucket::default();
        first = 0;
    }
    let farthest = if last + 1 < BUCKETS {
        (last + 1) as f32 / -BUCKETS_PER_NAT
    } else {
        f32::NEG_INFINITY
    };
    collect(logits, scale, farthest, keys, |scaled| {
        scaled >= floor && (first..=last).contains(&(bucket_of(scaled) as usize))
    });
    keep_nucleus(keys, before.weight, needed, scale);
    Support {
        cut: keys.last().copied().unwrap_or(u64::MAX),
        len: before.count as usize + keys.len(),
    }
}

/// Tokens at about the same distance from the likeliest.
#[derive(Clone, Copy, Default)]
struct Bucket {
    weight: f64,
    count: u32,
}

/// The bucket of a log-weight; likelier tokens are in earlier ones. Rounded by an addition that
/// leaves the integer in the low bits, since conversions would cost more than all else.
#[inline]
fn bucket_of(scaled: f32) -> u32 {
    const TO_INTEGER: f32 = 8_388_608.0;
    const LAST: f32 = (BUCKETS - 1) as f32;
    let distance = scaled * -BUCKETS_PER_NAT;
    let distance = if distance < LAST { distance } else { LAST };
    (distance + TO_INTEGER).to_bits() - TO_INTEGER.to_bits()
}

/// The keys of the `n` likeliest tokens (all, if there are fewer), likeliest first.
pub(super) fn likeliest(logits: &[f32], n: usize, keys: &mut Vec<u64>) {
    let scale = Scale {
        top: argmax::maximum(logits),
        inverse: 1.0,
    };
    collect_likeliest(logits, n, scale, f32::NEG_INFINITY, keys);
    keys.sort_unstable_by(|a, b| b.cmp(a));
}

/// Fills `keys` with those of the `n` likeliest tokens at `floor` or above, in any order.
fn collect_likeliest(logits: &[f32], n: usize, scale: Scale, floor: f32, keys: &mut Vec<u64>) {
    if (1..=FEW).contains(&n) {
        return keep_likeliest(logits, n, scale, floor, keys);
    }
    for reach in REACHES {
        collect_above(logits, scale, reach.max(floor), keys);
        if keys.len() >= n || reach <= floor {
            break;
        }
    }
    if n == 0 {
        keys.clear();
    } else if n < keys.len() {
        keys.select_nth_unstable_by(n - 1, |a, b| b.cmp(a));
        keys.truncate(n);
    }
}

/// The same in one pass, likeliest first: what is not among the best so far is passed over, which
/// soon holds for whole blocks.
fn keep_likeliest(logits: &[f32], n: usize, scale: Scale, floor: f32, keys: &mut Vec<u64>) {
    keys.clear();
    let everything = floor == f32::NEG_INFINITY;
    // What the next one has to exceed: of equal ones the first is kept.
    let mut bar = None;
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        if bar.is_some_and(|bar| argmax::maximum(block) <= bar) {
            continue;
        }
        for (offset, &logit) in block.iter().enumerate() {
            let passed_over = bar.is_some_and(|bar| logit <= bar || logit.is_nan());
            if passed_over || !(everything || scale.of(logit) >= floor) {
                continue;
            }
            let key = key(logit, index * BLOCK + offset);
            let place = keys.partition_point(|&kept| kept > key);
            keys.truncate(n - 1);
            keys.insert(place, key);
            if keys.len() == n {
                bar = keys.last().map(|&last| self::logit(last));
            }
        }
    }
}

/// Fills `keys` with those of tokens whose log-weight is at least `reach`.
fn collect_above(logits: &[f32], scale: Scale, reach: f32, keys: &mut Vec<u64>) {
    let everything = reach == f32::NEG_INFINITY;
    collect(logits, scale, reach, keys, |scaled| {
        everything || scaled >= reach
    });
}

/// Fills `keys` with those of tokens that are wanted by their log-weight, none of which is below
/// `farthest`.
fn collect(
    logits: &[f32],
    scale: Scale,
    farthest: f32,
    keys: &mut Vec<u64>,
    wanted: impl Fn(f32) -> bool,
) {
    keys.clear();
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        if scale.of(argmax::maximum(block)) < farthest {
            continue;
        }
        for (offset, &logit) in block.iter().enumerate() {
            if wanted(scale.of(logit)) {
                keys.push(key(logit, index * BLOCK + offset));
            }
        }
    }
}

/// Sorts `keys` and keeps the fewest likeliest whose weights bring `sum` to `needed`. Sums of
/// weights are exact, so the order in which they were added up does not matter.
fn keep_nucleus(keys: &mut Vec<u64>, mut sum: f64, needed: f64, scale: Scale) {
    keys.sort_unstable_by(|a, b| b.cmp(a));
    let mut kept = 0;
    while kept < keys.len() && sum < needed {
        sum += scale.weight(keys[kept]);
        kept += 1;
    }
    keys.truncate(kept);
}
