//! The probabilities of a row's tokens.
//!
//! `p = exp((logit - top) / temperature) / total`, in `f64`. Weights are added up in
//! lanes by their place, so that vector instructions can do it; tokens that are cut off have none, so
//! that the total is the same whether they are visited or not.

#![expect(
    clippy::inline_always,
    reason = "it has to be compiled for the caller's instructions"
)]

use alloc::vec::Vec;

use super::{argmax, support};

/// Sums kept side by side.
const LANES: usize = 16;

/// A row whose tokens get weights.
#[derive(Clone, Copy, Debug)]
pub struct LawRow<'a> {
    pub(super) logits: &'a [f32],
    /// The largest of them.
    pub(super) top: f64,
    /// One over the temperature.
    pub(super) inverse: f64,
    /// Tokens with smaller keys are cut off.
    pub(super) cut: u64,
}

/// Fills in the weights of a row and gives their sum. As with [`BoundRow`](super::BoundRow), who knows
/// what the processor has may hand [`Scratch`](super::Scratch) a function that does the same by
/// calling [`LawRow::weigh`] where wider vector instructions are enabled.
pub type WeighRow = fn(&LawRow<'_>, &mut [f64]) -> f64;

impl LawRow<'_> {
    /// Fills `weights`, one for each logit: 1 for the likeliest token, 0 for those that are cut off
    /// and for what is not a number. Gives their sum. Always inlined, so that it is compiled for the
    /// instructions its caller has; the result has the same bits with all of them.
    #[inline(always)]
    pub fn weigh(&self, weights: &mut [f64]) -> f64 {
        let mut lanes = [0.0; LANES];
        let least = support::logit(self.cut);
        let (blocks, rest) = self.logits.as_chunks::<LANES>();
        let (filled, last) = weights.as_chunks_mut::<LANES>();
        for (number, (block, weights)) in blocks.iter().zip(filled).enumerate() {
            if self.cut != support::EVERYTHING && argmax::maximum(block) < least {
                *weights = [0.0; LANES];
                continue;
            }
            for (weight, &logit) in weights.iter_mut().zip(block) {
                *weight = self.weight(logit);
            }
            self.cut_off(number, block, weights);
            for (lane, weight) in lanes.iter_mut().zip(weights) {
                *lane += *weight;
            }
        }
        for (weight, &logit) in last.iter_mut().zip(rest) {
            *weight = self.weight(logit);
        }
        self.cut_off(blocks.len(), rest, last);
        for (lane, weight) in lanes.iter_mut().zip(last) {
            *lane += *weight;
        }
        lanes.iter().sum()
    }

    /// Takes the weights from the tokens of the `number`-th block that are cut off.
    #[inline(always)]
    fn cut_off(&self, number: usize, block: &[f32], weights: &mut [f64]) {
        if self.cut == support::EVERYTHING {
            return;
        }
        for (lane, (weight, &logit)) in weights.iter_mut().zip(block).enumerate() {
            if support::key(logit, number * LANES + lane) < self.cut {
                *weight = 0.0;
            }
        }
    }

    /// The weight of a token with this logit.
    #[inline(always)]
    fn weight(&self, logit: f32) -> f64 {
        exp((f64::from(logit) - self.top) * self.inverse)
    }

    /// Turns the tokens of `keys` into weights; all others keep theirs. Gives their sum.
    fn weigh_few(&self, keys: &mut [u64], weights: &mut [f64]) -> f64 {
        let mut lanes = [0.0; LANES];
        // As they are added up in a row.
        keys.sort_unstable_by_key(|&key| support::token(key));
        for &key in keys.iter() {
            let index = support::token(key).index();
            let weight = self.weight(support::logit(key));
            if let Some(place) = weights.get_mut(index) {
                *place = weight;
                lanes[index % LANES] += weight;
            }
        }
        lanes.iter().sum()
    }

    /// The weights of a row some of whose logits are infinite: all mass is on these.
    fn weigh_infinite(&self, weights: &mut [f64]) -> f64 {
        let mut sum = 0.0;
        for (index, (weight, &logit)) in weights.iter_mut().zip(self.logits).enumerate() {
            if logit == f32::INFINITY && support::key(logit, index) >= self.cut {
                *weight = 1.0;
                sum += 1.0;
            }
        }
        sum
    }
}

/// Fills `probabilities`, one for each token of `row`. If few tokens are kept, they are `few`.
pub(super) fn law(
    row: &LawRow<'_>,
    weigh: WeighRow,
    few: Option<&mut Vec<u64>>,
    probabilities: &mut Vec<f64>,
) {
    if row.top == f64::INFINITY || few.is_some() {
        probabilities.clear();
    }
    // What is left of another row is overwritten.
    probabilities.resize(row.logits.len(), 0.0);
    let total = match few {
        _ if row.top == f64::INFINITY => row.weigh_infinite(probabilities),
        Some(keys) => {
            let total = row.weigh_few(keys, probabilities);
            for &key in keys.iter() {
                if let Some(p) = probabilities.get_mut(support::token(key).index()) {
                    *p *= 1.0 / total;
                }
            }
            return;
        }
        None => weigh(row, probabilities),
    };
    let share = 1.0 / total;
    for p in probabilities.iter_mut() {
        *p *= share;
    }
}

/// `exp(x)` for `x <= 0` with a relative error below 1e-15, the same bits on every host; 0 below
/// -708 and for what is not a number. Argument reduction by multiples of ln 2 in two parts (Cody and
/// Waite), then the Taylor polynomial of degree 13, whose remainder on |r| <= ln(2) / 2 is below
/// 5e-18.
#[inline(always)]
fn exp(x: f64) -> f64 {
    /// Adding this leaves the rounded integer in the low bits of the mantissa.
    const TO_INTEGER: f64 = 6_755_399_441_055_744.0;
    const LN_2: f64 = core::f64::consts::LN_2;
    /// So few digits that multiples up to 2^20 are exact.
    const LN_2_HIGH: f64 = f64::from_bits(LN_2.to_bits() & !((1 << 21) - 1));
    /// The rest, with what an `f64` lacks of ln 2.
    const LN_2_LOW: f64 = (LN_2 - LN_2_HIGH) + 2.319_046_813_846_3e-17;
    const LOWEST: f64 = -708.0;
    const COEFFICIENTS: [f64; 13] = [
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ];
    let clamped = if x > LOWEST { x } else { LOWEST };
    let shifted = clamped * core::f64::consts::LOG2_E + TO_INTEGER;
    let n = shifted - TO_INTEGER;
    let r = (clamped - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut sum = 1.0 / 6_227_020_800.0;
    for coefficient in COEFFICIENTS {
        sum = sum * r + coefficient;
    }
    let exponent = shifted.to_bits().wrapping_sub(TO_INTEGER.to_bits());
    let power = f64::from_bits(exponent.wrapping_add(1023) << 52);
    if x >= LOWEST { sum * power } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use std::{vec, vec::Vec};

    use super::*;
    use crate::{
        Seed,
        noise::philox,
        sampling::{Sampler, SamplingParams, Scratch},
    };

    #[test]
    fn exponentials_are_accurate_and_never_exceed_one() {
        for i in 0..400_000 {
            let x = -f64::from(i) * 1.77e-3;
            let exact = libm::exp(x);
            let error = (exp(x) - exact).abs();
            assert!(error <= 1e-15 * exact, "{x}: {error}");
            assert!(exp(x) <= 1.0);
        }
        assert!(exp(0.0) >= 1.0 && exp(-0.0) >= 1.0);
    }

    #[test]
    fn far_and_undefined_arguments_have_no_weight() {
        for x in [-708.1, -1e300, f64::NEG_INFINITY, f64::NAN] {
            assert!(exp(x) == 0.0, "{x}");
        }
    }

    /// Token by token.
    fn simple(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
        let top = f64::from(argmax::maximum(logits));
        let cut = support::cut(logits, params, &mut Vec::new()).cut;
        let inverse = 1.0 / f64::from(params.temperature);
        let mut lanes = [0.0; LANES];
        let mut weights = vec![0.0; logits.len()];
        for (i, &logit) in logits.iter().enumerate() {
            if support::key(logit, i) >= cut && !logit.is_nan() {
                let distance = f64::from(logit) - top;
                weights[i] = if distance.is_nan() {
                    1.0
                } else {
                    exp(distance * inverse)
                };
                lanes[i % LANES] += weights[i];
            }
        }
        let total: f64 = lanes.iter().sum();
        weights
            .iter()
            .map(|weight| weight * (1.0 / total))
            .collect()
    }

    #[test]
    fn distributions_have_the_bits_of_the_simple_form() {
        let mut scratch = Scratch::new();
        let mut p = Vec::new();
        for case in 0..600 {
            let word = |i, salt| philox([i, case, salt, 0], [5, 5])[0];
            let unit = |i, salt| word(i, salt) as f32 / u32::MAX as f32;
            let len = 1 + word(0, 1) % 3000;
            let spread = [0.5, 3.0, 12.0, 300.0][case as usize % 4];
            let mut logits: Vec<f32> = (0..len)
                .map(|i| spread * (unit(i, 2) + unit(i, 3) - 1.0))
                .collect();
            // Ties, and what is no logit.
            for i in 0..word(0, 4) % 9 {
                let at = (word(i, 5) % len) as usize;
                let odd = [f32::NAN, f32::NEG_INFINITY, 0.0, -0.0, 1.5];
                logits[at] = odd[(word(i, 6) % 5) as usize];
            }
            if case % 50 == 7 {
                logits[(word(0, 7) % len) as usize] = f32::INFINITY;
                logits[0] = f32::INFINITY;
            }
            let params = SamplingParams {
                temperature: [0.3, 1.0, 1.7][case as usize % 3],
                top_k: [0, 0, 5, 40, 700][(word(0, 8) % 5) as usize],
                top_p: [1.0, 1.0, 0.95, 0.5][(word(0, 9) % 4) as usize],
                min_p: [0.0, 0.0, 0.02][(word(0, 10) % 3) as usize],
                ..SamplingParams::default()
            };
            if argmax::maximum(&logits) == f32::NEG_INFINITY {
                continue;
            }
            let expected = simple(&logits, &params);
            let sampler = Sampler::new(params.clone(), Seed(1), &[], 0).unwrap();
            sampler.distribution(&logits, &mut scratch, &mut p);
            let bits = |p: &[f64]| p.iter().map(|p| p.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&p), bits(&expected), "case {case}: {params:?}");
            assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        }
    }
}
