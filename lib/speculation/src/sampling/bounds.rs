//! Upper bounds of noisy scores.
//!
//! The noisy score of a token is `logit / temperature + G` in `f64`, and evaluating `G` costs two
//! logarithms. A bound on the noise (`ceilings`) gives one on the score.

use alloc::vec::Vec;

use super::{
    argmax::maximum,
    ceilings::{BLOCK, Ceiling},
};
use crate::noise::Noise;

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

/// Fills in the bounds of a row, and first those of its noise if others are there. This is the one
/// part of sampling that takes many instructions per entry of the vocabulary. This crate cannot ask
/// the processor what it has; who can may hand [`Scratch`](super::Scratch) a function that does the
/// same by calling [`NoisyRow::bound`] where wider vector instructions are enabled.
pub type BoundRow = fn(&NoisyRow<'_>, &mut Ceiling, &mut Bounds);

impl NoisyRow<'_> {
    /// Fills `bounds`, and `ceiling` first if it is not that of this row's noise. Always inlined, so
    /// that it is compiled for the instructions its caller has; the result has the same bits with all
    /// of them.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "it has to be compiled for the caller's instructions"
    )]
    pub fn bound(&self, ceiling: &mut Ceiling, bounds: &mut Bounds) {
        let (blocks, rest) = self.logits.as_chunks::<BLOCK>();
        let mut padded = [f32::NEG_INFINITY; BLOCK];
        padded[..rest.len()].copy_from_slice(rest);
        let count = blocks.len() + 1;
        ceiling.make(self.noise, count);
        bounds.values.resize(count * BLOCK, 0.0);
        bounds.tops.resize(count, 0.0);
        let values = bounds.values.as_chunks_mut::<BLOCK>().0;
        let to = values.iter_mut().zip(&mut bounds.tops);
        let noise = ceiling.values.as_chunks::<BLOCK>().0;
        let from = blocks.iter().chain([&padded]).zip(noise);
        for ((logits, noise), (values, top)) in from.zip(to) {
            for ((value, &noise), &logit) in values.iter_mut().zip(noise).zip(logits) {
                *value = noise + logit * self.inverse;
            }
            *top = maximum(values);
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
