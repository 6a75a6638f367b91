//! Lanes as one AVX-512 register.

#![expect(unsafe_code, reason = "AVX-512 instructions behind run-time detection")]
#![cfg_attr(
    not(test),
    expect(clippy::wildcard_imports, reason = "dozens of intrinsics")
)]

use std::arch::x86_64::*;

use super::{Kernel, LANES, Simd};

/// AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct Avx512;

/// Runs a kernel with AVX-512 enabled.
///
/// # Safety
/// The machine must have the features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function enables the path's features.
    unsafe { kernel.run::<Avx512>() }
}

/// Adds the products of 16 pairs of bf16 with another 16 to 16 sums.
///
/// # Safety
/// The machine must have AVX512-BF16, and the function this is inlined into must enable it.
#[inline(always)]
pub(in crate::cpu) unsafe fn dot_bf16(sum: __m512, a: __m512i, b: __m512i) -> __m512 {
    // SAFETY: AVX512-BF16 by contract; the types differ in name only.
    unsafe {
        let a = std::mem::transmute::<__m512i, __m512bh>(a);
        let b = std::mem::transmute::<__m512i, __m512bh>(b);
        _mm512_dpbf16_ps(sum, a, b)
    }
}

#[inline(always)]
fn mask(n: usize) -> __mmask16 {
    debug_assert!(n <= LANES);
    ((1_u32 << n) - 1) as __mmask16
}

// SAFETY: every function needs AVX-512, which is the trait's contract.
unsafe impl Simd for Avx512 {
    type F = __m512;

    const PANEL_VECTORS: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: as above; the caller names 16 valid lanes.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_some(from: *const f32, n: usize) -> __m512 {
        // SAFETY: as above; masked lanes are not touched.
        unsafe { _mm512_maskz_loadu_ps(mask(n), from) }
    }

    #[inline(always)]
    unsafe fn load_bf16_first(from: *const u16) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_loadu_si512(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_bf16_second(from: *const u16) -> __m512 {
        // SAFETY: as above.
        unsafe {
            let keep = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(from.cast()), keep))
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: __m512) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to, x) }
    }

    #[inline(always)]
    unsafe fn store_some(to: *mut f32, n: usize, x: __m512) {
        // SAFETY: as above; masked lanes are not touched.
        unsafe { _mm512_mask_storeu_ps(to, mask(n), x) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn round(x: __m512) -> __m512 {
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x) }
    }

    #[inline(always)]
    unsafe fn abs(x: __m512) -> __m512 {
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_abs_ps(x) }
    }

    #[inline(always)]
    unsafe fn store_i8(to: *mut u8, n: usize, x: __m512, flip: u8) {
        // SAFETY: as above; masked lanes are not touched. NaN converts to `i32::MIN`, whose last
        // byte is zero.
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x));
            let bytes = _mm_xor_si128(bytes, _mm_set1_epi8(flip as i8));
            if n == LANES {
                _mm_storeu_si128(to.cast(), bytes);
            } else {
                _mm_mask_storeu_epi8(to.cast(), mask(n), bytes);
            }
        }
    }

    #[inline(always)]
    unsafe fn scale_by_power(x: __m512, n: __m512) -> __m512 {
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_scalef_ps(x, n) }
    }

    #[inline(always)]
    unsafe fn zero_below(x: __m512, test: __m512, limit: __m512) -> __m512 {
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(test, limit), x) }
    }

    #[inline(always)]
    unsafe fn sum(x: __m512) -> f32 {
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_reduce_add_ps(x) }
    }

    #[inline(always)]
    unsafe fn largest(x: __m512) -> f32 {
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_reduce_max_ps(x) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a hint; any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch_far(at: *const u8) {
        // SAFETY: a hint; any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }
}
