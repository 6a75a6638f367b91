//! Keys, values and weights in either number format, and their arithmetic.

#![expect(
    unsafe_code,
    reason = "kernels over raw pages, entered behind run-time detection"
)]

use super::super::simd::{Simd, add_products};
use crate::runner::PAGE_TOKENS;

/// How queries and weights are kept for products with a stored number format, on path `S`: as they are,
/// unless it says otherwise.
///
/// # Safety
/// All functions must run where `S` may, and pointers must be valid for what they name.
pub(super) unsafe trait Form<S: Simd>: Copy {
    /// Words of a query of `dim` values.
    fn words(dim: usize) -> usize {
        dim
    }

    /// Appends a query, times `scale`.
    #[inline(always)]
    unsafe fn put_query(to: &mut Vec<u32>, query: &[f32], scale: f32) {
        to.extend(query.iter().map(|x| (x * scale).to_bits()));
    }

    /// Puts 16 weights in their form: those of position `at`, a multiple of 16, and after.
    #[inline(always)]
    unsafe fn put_weights(to: *mut f32, at: usize, weights: S::F) {
        // SAFETY: the caller names room for 16 weights at `at`.
        unsafe { S::store(to.add(at), weights) }
    }
}

/// A stored number format with its arithmetic on path `S`.
///
/// Values are added by pairs of positions, `2j` and `2j + 1`; of a pair that a row sees only one
/// half of, the other half has weight and value zero.
///
/// # Safety
/// All functions must run where `S` may, and pointers must be valid for what they name.
pub(super) unsafe trait Stored<S: Simd>: Form<S> {
    /// Values of two positions in 16 dimensions.
    type Values: Copy;
    /// Weights of two positions.
    type Weights: Copy;

    /// Whether the values of 64 dimensions and the sums of six queries fit the registers.
    const SIX: bool = false;

    /// Sums of `dim` products of `T` queries with the keys of `P` pages.
    unsafe fn products<const T: usize, const P: usize>(
        query: *const u32,
        dim: usize,
        keys: &[*const Self],
    ) -> [[S::F; P]; T];
    /// Weights of position `at`, even, and the next.
    unsafe fn weights(from: *const f32, at: usize) -> Self::Weights;
    /// Values of slot `slot`, even, of a page and the next, from dimension `d` on. `from` is the
    /// page's first value, a slot has `padded` of them.
    unsafe fn values(from: *const Self, slot: usize, padded: usize, d: usize) -> Self::Values;
    /// The same of any two slots; zeros for one that is not there.
    unsafe fn gather(
        slots: [Option<(*const Self, usize)>; 2],
        padded: usize,
        d: usize,
    ) -> Self::Values;
    /// Adds two positions' weighted values, in order.
    unsafe fn add(sum: S::F, weights: Self::Weights, values: Self::Values) -> S::F;
}

/// Weights as `f32` keep them.
#[inline(always)]
unsafe fn splat_two<S: Simd>(from: *const f32) -> (S::F, S::F) {
    // SAFETY: the caller names two weights.
    unsafe { (S::splat(*from), S::splat(*from.add(1))) }
}

/// Adds two products, the first one first.
#[inline(always)]
unsafe fn add_two<S: Simd>(sum: S::F, weights: (S::F, S::F), values: (S::F, S::F)) -> S::F {
    // SAFETY: runs where `S` may.
    unsafe { S::fma(weights.1, values.1, S::fma(weights.0, values.0, sum)) }
}

// What gathers is no closure: those are compiled without the features of the path they are used on.

/// Values of one slot, or zeros.
#[inline(always)]
unsafe fn f32_slot<S: Simd>(slot: Option<(*const f32, usize)>, padded: usize, d: usize) -> S::F {
    // SAFETY: the caller names a slot of a page.
    unsafe {
        match slot {
            Some((from, slot)) => S::load(from.add(slot * padded + d)),
            None => S::splat(0.0),
        }
    }
}

/// The same of pairs of slots that lie side by side.
#[inline(always)]
unsafe fn bf16_slot<S: Simd>(slot: Option<(*const u16, usize)>, padded: usize, d: usize) -> S::F {
    // SAFETY: the caller names a slot of a page.
    unsafe {
        let Some((from, slot)) = slot else {
            return S::splat(0.0);
        };
        let both = <u16 as Stored<S>>::values(from, slot / 2 * 2, padded, d);
        if slot % 2 == 0 { both.0 } else { both.1 }
    }
}

// SAFETY: uses `S` only.
unsafe impl<S: Simd> Form<S> for f32 {}

// SAFETY: uses `S` only.
unsafe impl<S: Simd> Stored<S> for f32 {
    type Values = (S::F, S::F);
    type Weights = (S::F, S::F);

    #[inline(always)]
    unsafe fn products<const T: usize, const P: usize>(
        query: *const u32,
        dim: usize,
        keys: &[*const f32],
    ) -> [[S::F; P]; T] {
        // SAFETY: T queries of `dim` words, P pages of `dim` lines of 16 keys.
        unsafe {
            let query = query.cast::<f32>();
            let mut sums = [[S::splat(0.0); P]; T];
            for d in 0..dim {
                let mut k = [S::splat(0.0); P];
                for p in 0..P {
                    k[p] = S::load(keys[p].add(d * PAGE_TOKENS));
                }
                add_products::<S, T, P>(&mut sums, query.add(d), dim, k);
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn weights(from: *const f32, at: usize) -> (S::F, S::F) {
        // SAFETY: the caller names two weights.
        unsafe { splat_two::<S>(from.add(at)) }
    }

    #[inline(always)]
    unsafe fn values(from: *const f32, slot: usize, padded: usize, d: usize) -> (S::F, S::F) {
        // SAFETY: the caller names two slots of a page.
        unsafe {
            let first = from.add(slot * padded + d);
            (S::load(first), S::load(first.add(padded)))
        }
    }

    #[inline(always)]
    unsafe fn gather(
        slots: [Option<(*const f32, usize)>; 2],
        padded: usize,
        d: usize,
    ) -> (S::F, S::F) {
        // SAFETY: the caller names slots of pages.
        unsafe {
            (
                f32_slot::<S>(slots[0], padded, d),
                f32_slot::<S>(slots[1], padded, d),
            )
        }
    }

    #[inline(always)]
    unsafe fn add(sum: S::F, weights: (S::F, S::F), values: (S::F, S::F)) -> S::F {
        // SAFETY: runs where `S` may.
        unsafe { add_two::<S>(sum, weights, values) }
    }
}

// SAFETY: uses `S` only.
unsafe impl<S: Simd> Form<S> for u16 {}

// SAFETY: uses `S` only.
unsafe impl<S: Simd> Stored<S> for u16 {
    type Values = (S::F, S::F);
    type Weights = (S::F, S::F);

    #[inline(always)]
    unsafe fn products<const T: usize, const P: usize>(
        query: *const u32,
        dim: usize,
        keys: &[*const u16],
    ) -> [[S::F; P]; T] {
        // SAFETY: T queries of `dim` words, P pages of `dim / 2` lines of 16 pairs of keys.
        unsafe {
            let query = query.cast::<f32>();
            let mut sums = [[S::splat(0.0); P]; T];
            for d in (0..dim).step_by(2) {
                let mut k = [S::splat(0.0); P];
                for p in 0..P {
                    k[p] = S::load_bf16_first(keys[p].add(d * PAGE_TOKENS));
                }
                add_products::<S, T, P>(&mut sums, query.add(d), dim, k);
                for p in 0..P {
                    k[p] = S::load_bf16_second(keys[p].add(d * PAGE_TOKENS));
                }
                add_products::<S, T, P>(&mut sums, query.add(d + 1), dim, k);
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn weights(from: *const f32, at: usize) -> (S::F, S::F) {
        // SAFETY: the caller names two weights.
        unsafe { splat_two::<S>(from.add(at)) }
    }

    #[inline(always)]
    unsafe fn values(from: *const u16, slot: usize, padded: usize, d: usize) -> (S::F, S::F) {
        // SAFETY: the caller names two slots of a page.
        unsafe {
            let pairs = from.add(slot * padded + 2 * d);
            (S::load_bf16_first(pairs), S::load_bf16_second(pairs))
        }
    }

    #[inline(always)]
    unsafe fn gather(
        slots: [Option<(*const u16, usize)>; 2],
        padded: usize,
        d: usize,
    ) -> (S::F, S::F) {
        // SAFETY: the caller names slots of pages.
        unsafe {
            (
                bf16_slot::<S>(slots[0], padded, d),
                bf16_slot::<S>(slots[1], padded, d),
            )
        }
    }

    #[inline(always)]
    unsafe fn add(sum: S::F, weights: (S::F, S::F), values: (S::F, S::F)) -> S::F {
        // SAFETY: runs where `S` may.
        unsafe { add_two::<S>(sum, weights, values) }
    }
}
