//! Operations on rows: norms, rotary embedding, activations, sums.
//!
//! They run on the calling thread: a step's rows fit the level-1 cache, and waking another thread
//! costs more than the work.

#![expect(
    unsafe_code,
    reason = "enters vector kernels, which bound their accesses by the slices"
)]

mod nonlinear;
mod norm;
mod rotary;

pub use nonlinear::Activation;
pub use rotary::{Heads, RopeTable};

use super::simd::{Kernel, LANES, Simd, dispatch};
use super::{Cpu, PackError, SourceType, WeightView};
use crate::runner::StepPlan;

/// A table of rows looked up by token (or position), kept in its source format.
#[derive(Clone, Debug)]
pub struct Embedding {
    cols: usize,
    source: SourceType,
    bytes: Vec<u8>,
}

impl Embedding {
    /// Copies the table.
    ///
    /// # Errors
    /// If the view's bytes do not match its shape.
    pub fn new(view: &WeightView<'_>) -> Result<Self, PackError> {
        view.check()?;
        Ok(Self {
            cols: view.cols,
            source: view.source,
            bytes: view.bytes.to_vec(),
        })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.bytes
            .len()
            .checked_div(self.cols * self.source.bytes())
            .unwrap_or(0)
    }

    /// Values per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Writes row `index` to `out`.
    ///
    /// # Panics
    /// If there is no such row or `out` has another length.
    pub fn row(&self, index: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "embedding width");
        let width = self.cols * self.source.bytes();
        self.source
            .widen(&self.bytes[index * width..][..width], out);
    }
}

impl Cpu {
    /// Embeds each token of the plan into `out`, row after row.
    ///
    /// # Panics
    /// If a token is outside the table: the caller has checked the plan.
    pub fn embed(&self, table: &Embedding, plan: &StepPlan, out: &mut [f32]) {
        for (token, out) in plan.tokens.iter().zip(out.chunks_exact_mut(table.cols)) {
            table.row(token.0 as usize, out);
        }
    }

    /// `x += y`.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        assert_eq!(x.len(), y.len(), "summands");
        dispatch(self.isa, Add { x, y });
    }

    /// Index of the largest value, the first of equals; NaN never wins, and 0 stands for a row
    /// without values.
    pub fn argmax(&self, row: &[f32]) -> usize {
        let largest = dispatch(self.isa, Largest(row));
        // Equal, not near: the maximum is one of the values.
        row.iter().position(|x| *x >= largest).unwrap_or(0)
    }
}

/// Loads a vector or part of one.
///
/// # Safety
/// As for [`Simd::load_some`].
#[inline(always)]
unsafe fn load<S: Simd>(from: *const f32, lanes: usize) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        if lanes == LANES {
            S::load(from)
        } else {
            S::load_some(from, lanes)
        }
    }
}

/// Stores a vector or part of one.
///
/// # Safety
/// As for [`Simd::store_some`].
#[inline(always)]
unsafe fn store<S: Simd>(to: *mut f32, lanes: usize, x: S::F) {
    // SAFETY: the caller's contract.
    unsafe {
        if lanes == LANES {
            S::store(to, x);
        } else {
            S::store_some(to, lanes, x);
        }
    }
}

struct Add<'a> {
    x: &'a mut [f32],
    y: &'a [f32],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (x, y) = (self.x.as_mut_ptr(), self.y.as_ptr());
        let n = self.x.len();
        let whole = n / LANES * LANES;
        // SAFETY: both slices have `n` values.
        unsafe {
            for at in (0..whole).step_by(LANES) {
                S::store(x.add(at), S::add(S::load(x.add(at)), S::load(y.add(at))));
            }
            let (x, rest) = (x.add(whole), n - whole);
            let sum = S::add(S::load_some(x, rest), S::load_some(y.add(whole), rest));
            S::store_some(x, rest, sum);
        }
    }
}

/// Largest value of a row, minus infinity for none.
struct Largest<'a>(&'a [f32]);

impl Kernel for Largest<'_> {
    type Output = f32;

    #[inline(always)]
    unsafe fn run<S: Simd>(self) -> f32 {
        let (vectors, rest) = self.0.as_chunks::<LANES>();
        // SAFETY: every chunk has 16 values.
        let top = unsafe {
            let mut top = S::splat(f32::NEG_INFINITY);
            for vector in vectors {
                // NaN is the first operand where it can be: the second one wins.
                top = S::max(S::load(vector.as_ptr()), top);
            }
            S::largest(top)
        };
        rest.iter().fold(top, |a, b| a.max(*b))
    }
}

#[cfg(test)]
mod tests;
