//! Upper bounds of noisy scores.
//!
//! The noisy score of a token is `logit / temperature + G` in `f64`, and evaluating `G` costs two
//! logarithms. A bound on the noise (`ceilings`) gives one on the score. Without noise the bound is the
//! score.

use alloc::vec::Vec;

use super::{
    argmax::larger,
    ceilings::{BLOCK, Ceiling, Ceilings},
};
use crate::{TokenId, noise::Noise};

/// Tokens that are bounded side by side.
const LANES: usize = 16;
/// How many one after the other in the same lane have their largest bound kept.
const DEPTH: usize = 16;

/// A row of logits whose tokens get noise, or none.
#[derive(Clone, Copy, Debug)]
pub struct NoisyRow<'a> {
    pub(super) logits: &'a [f32],
    /// One over the temperature.
    pub(super) inverse: f32,
    pub(super) noise: Option<&'a Noise>,
}

/// The largest upper bounds of a row's noisy scores, of a fixed number of tokens each: those that have the
/// same lane in a group, so that nothing has to be compared across lanes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounds {
    pub(super) tops: Vec<f32>,
}

/// A row with its bounds. Those of single tokens are made again where they are wanted, which few are:
/// keeping all of them would take longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounded<'a> {
    row: NoisyRow<'a>,
    noise: &'a [f32],
    /// The largest bounds.
    pub(super) tops: &'a [f32],
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
        ceiling.make(self.noise, self.logits.len().div_ceil(BLOCK));
        let groups = self.logits.chunks(LANES * DEPTH);
        bounds.tops.resize(groups.len() * LANES, 0.0);
        let noise = ceiling.values.chunks(LANES * DEPTH);
        let tops = bounds.tops.as_chunks_mut::<LANES>().0;
        for ((logits, noise), tops) in groups.zip(noise).zip(tops) {
            let mut top = [f32::NEG_INFINITY; LANES];
            let (whole, rest) = logits.as_chunks::<LANES>();
            for (logits, noise) in whole.iter().zip(noise.as_chunks::<LANES>().0) {
                for ((top, &logit), &noise) in top.iter_mut().zip(logits).zip(noise) {
                    *top = larger(self.bound_of(logit, noise), *top);
                }
            }
            let last = noise.get(whole.len() * LANES..).unwrap_or_default();
            for ((top, &logit), &noise) in top.iter_mut().zip(rest).zip(last) {
                *top = larger(self.bound_of(logit, noise), *top);
            }
            *tops = top;
        }
    }

    #[inline]
    fn bound_of(&self, logit: f32, noise: f32) -> f32 {
        noise + logit * self.inverse
    }
}

impl Bounds {
    /// Makes the bounds of `row` as `bound` does.
    pub(super) fn of<'a>(
        &'a mut self,
        row: NoisyRow<'a>,
        ceilings: &'a mut Ceilings,
        bound: BoundRow,
    ) -> Bounded<'a> {
        let ceiling = ceilings.of(row.noise, row.logits.len());
        bound(&row, ceiling, self);
        Bounded {
            row,
            noise: &ceiling.values,
            tops: &self.tops,
        }
    }
}

impl Bounded<'_> {
    /// Tells of the tokens whose bound is at least `least`, in any order, with their bounds; from each
    /// on it is what `found` returns.
    pub(super) fn reaching(&self, mut least: f32, mut found: impl FnMut(TokenId, f32) -> f32) {
        for (group, tops) in self.tops.as_chunks::<LANES>().0.iter().enumerate() {
            // Most groups have none, which vectors see at once if all are counted.
            if tops.iter().filter(|&&top| top >= least).count() == 0 {
                continue;
            }
            for (lane, &top) in tops.iter().enumerate() {
                if top < least {
                    continue;
                }
                let first = group * LANES * DEPTH + lane;
                for token in (0..DEPTH).map(|depth| first + depth * LANES) {
                    let bound = self.of(token);
                    if bound >= least {
                        least = found(TokenId(token as u32), bound);
                    }
                }
            }
        }
    }

    /// The largest bound of each lane.
    pub(super) fn lanes(&self) -> [f32; LANES] {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for tops in self.tops.as_chunks::<LANES>().0 {
            for (lane, &top) in lanes.iter_mut().zip(tops) {
                *lane = larger(top, *lane);
            }
        }
        lanes
    }

    /// A token with the largest bound.
    pub(super) fn largest(&self) -> TokenId {
        let mut best = TokenId(0);
        let top = self.lanes().into_iter().fold(f32::NEG_INFINITY, larger);
        self.reaching(top, |token, _| {
            best = token;
            f32::INFINITY
        });
        best
    }

    /// The bound of a token; minus infinity of one that is not there.
    fn of(&self, token: usize) -> f32 {
        match (self.row.logits.get(token), self.noise.get(token)) {
            (Some(&logit), Some(&noise)) => self.row.bound_of(logit, noise),
            _ => f32::NEG_INFINITY,
        }
    }
}
