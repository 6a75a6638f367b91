//! Reading keys and values of either number format.

#![expect(
    unsafe_code,
    reason = "kernels over raw pages, entered behind run-time detection"
)]

use super::super::simd::Simd;
use crate::runner::PAGE_TOKENS;

/// A stored number format.
pub(super) trait Stored: Copy {
    /// Loads 16 values.
    unsafe fn values<S: Simd>(from: *const Self) -> S::F;
    /// Sums of `dim` products of `T` queries with the keys of `P` pages.
    unsafe fn products<S: Simd, const T: usize, const P: usize>(
        query: *const f32,
        dim: usize,
        keys: &[*const Self],
    ) -> [[S::F; P]; T];
}

impl Stored for f32 {
    #[inline(always)]
    unsafe fn values<S: Simd>(from: *const f32) -> S::F {
        // SAFETY: the caller names 16 values.
        unsafe { S::load(from) }
    }

    #[inline(always)]
    unsafe fn products<S: Simd, const T: usize, const P: usize>(
        query: *const f32,
        dim: usize,
        keys: &[*const f32],
    ) -> [[S::F; P]; T] {
        // SAFETY: T queries of `dim` values, P pages of `dim` lines of 16 keys.
        unsafe {
            let mut sums = [[S::splat(0.0); P]; T];
            for d in 0..dim {
                let mut k = [S::splat(0.0); P];
                for p in 0..P {
                    k[p] = S::load(keys[p].add(d * PAGE_TOKENS));
                }
                for t in 0..T {
                    let q = S::splat(*query.add(t * dim + d));
                    for p in 0..P {
                        sums[t][p] = S::fma(q, k[p], sums[t][p]);
                    }
                }
            }
            sums
        }
    }
}

impl Stored for u16 {
    #[inline(always)]
    unsafe fn values<S: Simd>(from: *const u16) -> S::F {
        // SAFETY: the caller names 16 values.
        unsafe { S::load_bf16(from) }
    }

    #[inline(always)]
    unsafe fn products<S: Simd, const T: usize, const P: usize>(
        query: *const f32,
        dim: usize,
        keys: &[*const u16],
    ) -> [[S::F; P]; T] {
        // SAFETY: T queries of `dim` values, P pages of `dim / 2` lines of 16 pairs of keys.
        unsafe {
            let mut sums = [[S::splat(0.0); P]; T];
            for d in (0..dim).step_by(2) {
                let mut k = [(S::splat(0.0), S::splat(0.0)); P];
                for p in 0..P {
                    k[p] = S::load_bf16_pairs(keys[p].add(d * PAGE_TOKENS));
                }
                for t in 0..T {
                    let first = S::splat(*query.add(t * dim + d));
                    let second = S::splat(*query.add(t * dim + d + 1));
                    for p in 0..P {
                        sums[t][p] = S::fma(first, k[p].0, sums[t][p]);
                        sums[t][p] = S::fma(second, k[p].1, sums[t][p]);
                    }
                }
            }
            sums
        }
    }
}
