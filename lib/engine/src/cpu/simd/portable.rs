//! Lanes as an array: any processor, and what other architectures vectorise by themselves.

#![expect(unsafe_code, reason = "implements the unsafe trait over raw pointers")]

use half::bf16;

use super::{LANES, Simd};

/// Plain Rust.
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct Portable;

#[inline(always)]
fn map(f: impl Fn(usize) -> f32) -> [f32; LANES] {
    std::array::from_fn(f)
}

// SAFETY: uses no special instructions; pointers are the caller's duty.
unsafe impl Simd for Portable {
    type F = [f32; LANES];

    const PANEL_VECTORS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::F {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        // SAFETY: the caller names 16 valid lanes.
        unsafe { from.cast::<[f32; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_some(from: *const f32, n: usize) -> Self::F {
        // SAFETY: the caller names n valid lanes.
        map(|i| if i < n { unsafe { *from.add(i) } } else { 0.0 })
    }

    #[inline(always)]
    unsafe fn load_bf16_first(from: *const u16) -> Self::F {
        // SAFETY: the caller names 32 valid values.
        map(|i| bf16::from_bits(unsafe { *from.add(2 * i) }).to_f32())
    }

    #[inline(always)]
    unsafe fn load_bf16_second(from: *const u16) -> Self::F {
        // SAFETY: as above.
        map(|i| bf16::from_bits(unsafe { *from.add(2 * i + 1) }).to_f32())
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Self::F) {
        // SAFETY: the caller names 16 valid lanes.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(x) }
    }

    #[inline(always)]
    unsafe fn store_some(to: *mut f32, n: usize, x: Self::F) {
        for (i, x) in x.into_iter().enumerate().take(n) {
            // SAFETY: the caller names n valid lanes.
            unsafe { *to.add(i) = x }
        }
    }

    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] + b[i])
    }

    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] - b[i])
    }

    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] * b[i])
    }

    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] / b[i])
    }

    // Not `mul_add`: without an FMA unit that is a library call per lane.
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        map(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        map(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F {
        map(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    unsafe fn round(x: Self::F) -> Self::F {
        map(|i| x[i].round_ties_even())
    }

    #[inline(always)]
    unsafe fn abs(x: Self::F) -> Self::F {
        map(|i| x[i].abs())
    }

    #[inline(always)]
    unsafe fn store_i8(to: *mut u8, n: usize, x: Self::F, flip: u8) {
        for (i, x) in x.into_iter().enumerate().take(n) {
            // SAFETY: the caller names n valid bytes.
            unsafe { *to.add(i) = (x as i32 as u8) ^ flip }
        }
    }

    #[inline(always)]
    unsafe fn scale_by_power(x: Self::F, n: Self::F) -> Self::F {
        map(|i| x[i] * f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    unsafe fn zero_below(x: Self::F, test: Self::F, limit: Self::F) -> Self::F {
        map(|i| if test[i] < limit[i] { 0.0 } else { x[i] })
    }

    #[inline(always)]
    unsafe fn sum(x: Self::F) -> f32 {
        x.iter().sum()
    }

    #[inline(always)]
    unsafe fn largest(x: Self::F) -> f32 {
        x.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b))
    }

    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}

    #[inline(always)]
    unsafe fn prefetch_far(_at: *const u8) {}
}
