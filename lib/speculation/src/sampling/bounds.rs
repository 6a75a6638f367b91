//! Upper bounds of noisy scores.
//!
//! The noisy score of a token is `logit / temperature + G` in `f64`, and evaluating `G` costs two
//! logarithms. `-ln u >= 1 - u`, so `G <= -ln(1 - u)`, and the logarithm of `1 - u = (!w + 1/2) /
//! 2^32` is at least its piecewise linear interpolation between powers of two, which is the bit
//! pattern of the number as an `f32`. That bound is a few vector instructions on the token's random
//! bits.

use alloc::vec::Vec;

use super::argmax::maximum;
use crate::noise::Noise;

/// Tokens per step of the scan.
pub(super) const BLOCK: usize = 64;
/// Philox counters per step of the scan: each gives the words of four tokens.
const COUNTERS: usize = BLOCK / 4;

/// A row of logits whose tokens get noise.
#[derive(Clone, Copy, Debug)]
pub struct NoisyRow<'a> {
    pub(super) logits: &'a [f32],
    /// One over the temperature.
    pub(super) inverse: f32,
    pub(super) noise: &'a Noise,
}

/// Upper bounds of a row's noisy scores, in blocks of a fixed number of tokens, the last one padded with
/// minus infinity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounds {
    values: Vec<f32>,
    /// The largest bound of each block.
    tops: Vec<f32>,
}

/// Fills in the bounds of a row. This is the one part of sampling that takes many instructions per
/// entry of the vocabulary. This crate cannot ask the processor what it has; who can
/// may hand [`Scratch`](super::Scratch) a function that does the same by calling
/// [`NoisyRow::bound`] where wider vector instructions are enabled.
pub type BoundRow = fn(&NoisyRow<'_>, &mut Bounds);

impl NoisyRow<'_> {
    /// Fills `bounds`. Always inlined, so that it is compiled for the instructions its caller has;
    /// the result has the same bits with all of them.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "it has to be compiled for the caller's instructions"
    )]
    pub fn bound(&self, bounds: &mut Bounds) {
        let (blocks, rest) = self.logits.as_chunks::<BLOCK>();
        let mut padded = [f32::NEG_INFINITY; BLOCK];
        padded[..rest.len()].copy_from_slice(rest);
        let count = blocks.len() + 1;
        bounds.values.resize(count * BLOCK, 0.0);
        bounds.tops.resize(count, 0.0);
        let values = bounds.values.as_chunks_mut::<BLOCK>().0;
        let to = values.iter_mut().zip(&mut bounds.tops);
        for (index, (block, (values, top))) in blocks.iter().chain([&padded]).zip(to).enumerate() {
            self.block(block, index, values);
            *top = maximum(values);
        }
    }

    /// Fills in the bounds of the `index`-th block.
    #[inline(always)]
    fn block(&self, logits: &[f32; BLOCK], index: usize, bounds: &mut [f32; BLOCK]) {
        /// `24 + 127`: the bits of an `f32`, over 2^23, are its binary logarithm plus 127, or less;
        /// 24 are the bits of a word that fit its mantissa.
        const OFFSET: f32 = 151.0 * core::f32::consts::LN_2;
        const PER_BIT: f32 = core::f32::consts::LN_2 / (1 << 23) as f32;
        let words = self.noise.words::<COUNTERS>((index * COUNTERS) as u32);
        for lane in 0..COUNTERS {
            for (j, row) in words.iter().enumerate() {
                let complement = (!row[lane] >> 8) as i32;
                let bits = (complement as f32).to_bits() as i32;
                bounds[4 * lane + j] = OFFSET - bits as f32 * PER_BIT;
            }
        }
        for (bound, &logit) in bounds.iter_mut().zip(logits) {
            *bound += logit * self.inverse;
        }
    }
}

impl Bounds {
    /// The blocks with their largest bounds.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (f32, &[f32; BLOCK])> {
        let blocks = self.values.as_chunks::<BLOCK>().0;
        self.tops.iter().copied().zip(blocks)
    }

    /// The largest bounds of the blocks.
    pub(super) fn tops(&self) -> &[f32] {
        &self.tops
    }

    /// The token with the largest bound; the lowest of several.
    pub(super) fn largest(&self) -> usize {
        let mut best = (f32::NEG_INFINITY, 0);
        for (index, &top) in self.tops.iter().enumerate() {
            if top > best.0 {
                best = (top, index);
            }
        }
        let block = self.values.get(best.1 * BLOCK..).unwrap_or_default();
        let offset = block.iter().position(|&bound| bound >= best.0);
        best.1 * BLOCK + offset.unwrap_or(0)
    }
}
