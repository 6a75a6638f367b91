//! Lanes as two AVX2 registers.

#![expect(unsafe_code, reason = "AVX2 instructions behind run-time detection")]
#![cfg_attr(
    not(test),
    expect(clippy::wildcard_imports, reason = "dozens of intrinsics")
)]

use std::arch::{asm, x86_64::*};

use super::{Kernel, LANES, Simd};

/// AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub(in crate::cpu) struct Avx2;

/// Runs a kernel with AVX2 enabled.
///
/// # Safety
/// The machine must have the features.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: this function enables the path's features.
    unsafe { kernel.run::<Avx2>() }
}

/// Lanes 0-7 and 8-15.
type Two = [__m256; 2];

/// Mask for the first `n` (at most 8) lanes.
#[inline(always)]
unsafe fn mask(n: usize) -> __m256i {
    // SAFETY: AVX2 by the contract of `Simd`.
    unsafe {
        let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), lanes)
    }
}

#[inline(always)]
unsafe fn floats(x: [__m256i; 2]) -> Two {
    // SAFETY: AVX2 by the contract of `Simd`.
    unsafe { [_mm256_castsi256_ps(x[0]), _mm256_castsi256_ps(x[1])] }
}

/// The second values of 8 pairs of bf16. Read anew where the first ones were already: the compiler would
/// keep the pairs meanwhile, in registers that tiles need. Registers of `asm!` take the feature in the function
/// itself.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn high_halves(from: *const u16) -> __m256 {
    let keep = _mm256_set1_epi32(0xffff_0000_u32 as i32);
    let high: __m256i;
    // SAFETY: reads 32 bytes that the caller names, aligned or not.
    unsafe {
        asm!(
            "vpand {high}, {keep}, [{from}]",
            high = lateout(ymm_reg) high,
            keep = in(ymm_reg) keep,
            from = in(reg) from,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    _mm256_castsi256_ps(high)
}

// SAFETY: every function needs AVX2 and FMA, which is the trait's contract.
unsafe impl Simd for Avx2 {
    type F = Two;

    const PANEL_VECTORS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Two {
        // SAFETY: AVX2 by contract.
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Two {
        // SAFETY: as above; the caller names 16 valid lanes.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }

    #[inline(always)]
    unsafe fn load_some(from: *const f32, n: usize) -> Two {
        // SAFETY: as above; masked lanes are not touched.
        unsafe {
            let low = _mm256_maskload_ps(from, mask(n.min(8)));
            [
                low,
                _mm256_maskload_ps(from.wrapping_add(8), mask(n.saturating_sub(8))),
            ]
        }
    }

    #[inline(always)]
    unsafe fn load_bf16_first(from: *const u16) -> Two {
        // SAFETY: as above.
        unsafe {
            let a = _mm256_loadu_si256(from.cast());
            let b = _mm256_loadu_si256(from.add(LANES).cast());
            floats([_mm256_slli_epi32::<16>(a), _mm256_slli_epi32::<16>(b)])
        }
    }

    #[inline(always)]
    unsafe fn load_bf16_second(from: *const u16) -> Two {
        // SAFETY: as above.
        unsafe { [high_halves(from), high_halves(from.add(LANES))] }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Two) {
        // SAFETY: as above.
        unsafe {
            _mm256_storeu_ps(to, x[0]);
            _mm256_storeu_ps(to.add(8), x[1]);
        }
    }

    #[inline(always)]
    unsafe fn store_some(to: *mut f32, n: usize, x: Two) {
        // SAFETY: as above; masked lanes are not touched.
        unsafe {
            _mm256_maskstore_ps(to, mask(n.min(8)), x[0]);
            _mm256_maskstore_ps(to.wrapping_add(8), mask(n.saturating_sub(8)), x[1]);
        }
    }

    #[inline(always)]
    unsafe fn add(a: Two, b: Two) -> Two {
        // SAFETY: AVX2 by contract.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn sub(a: Two, b: Two) -> Two {
        // SAFETY: AVX2 by contract.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn mul(a: Two, b: Two) -> Two {
        // SAFETY: AVX2 by contract.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn div(a: Two, b: Two) -> Two {
        // SAFETY: AVX2 by contract.
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn fma(a: Two, b: Two, c: Two) -> Two {
        // SAFETY: FMA by contract.
        unsafe {
            [
                _mm256_fmadd_ps(a[0], b[0], c[0]),
                _mm256_fmadd_ps(a[1], b[1], c[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn max(a: Two, b: Two) -> Two {
        // SAFETY: AVX2 by contract.
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn min(a: Two, b: Two) -> Two {
        // SAFETY: AVX2 by contract.
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }

    #[inline(always)]
    unsafe fn round(x: Two) -> Two {
        // SAFETY: AVX2 by contract.
        unsafe {
            const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
            [
                _mm256_round_ps::<NEAREST>(x[0]),
                _mm256_round_ps::<NEAREST>(x[1]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn abs(x: Two) -> Two {
        // SAFETY: AVX2 by contract.
        unsafe {
            let sign = _mm256_set1_ps(-0.0);
            [_mm256_andnot_ps(sign, x[0]), _mm256_andnot_ps(sign, x[1])]
        }
    }

    #[inline(always)]
    unsafe fn store_i8(to: *mut u8, n: usize, x: Two, flip: u8) {
        // SAFETY: AVX2 by contract; the caller names `n` valid bytes. NaN converts to `i32::MIN`,
        // whose last byte is zero.
        unsafe {
            let last = _mm256_set1_epi32(0xff);
            let low = _mm256_and_si256(_mm256_cvtps_epi32(x[0]), last);
            let high = _mm256_and_si256(_mm256_cvtps_epi32(x[1]), last);
            // Packing works within halves: lanes 0-3, 8-11 and 4-7, 12-15.
            let words = _mm256_packus_epi32(low, high);
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packus_epi16(
                _mm256_castsi256_si128(words),
                _mm256_extracti128_si256::<1>(words),
            );
            let bytes = _mm_xor_si128(bytes, _mm_set1_epi8(flip as i8));
            if n == LANES {
                _mm_storeu_si128(to.cast(), bytes);
            } else {
                let mut all = [0_u8; LANES];
                _mm_storeu_si128(all.as_mut_ptr().cast(), bytes);
                to.copy_from_nonoverlapping(all.as_ptr(), n);
            }
        }
    }

    #[inline(always)]
    unsafe fn scale_by_power(x: Two, n: Two) -> Two {
        // SAFETY: AVX2 by contract.
        unsafe {
            let bias = _mm256_set1_epi32(127);
            let a = _mm256_add_epi32(_mm256_cvtps_epi32(n[0]), bias);
            let b = _mm256_add_epi32(_mm256_cvtps_epi32(n[1]), bias);
            Self::mul(
                x,
                floats([_mm256_slli_epi32::<23>(a), _mm256_slli_epi32::<23>(b)]),
            )
        }
    }

    #[inline(always)]
    unsafe fn zero_below(x: Two, test: Two, limit: Two) -> Two {
        // SAFETY: AVX2 by contract.
        unsafe {
            let a = _mm256_cmp_ps::<_CMP_NLT_UQ>(test[0], limit[0]);
            let b = _mm256_cmp_ps::<_CMP_NLT_UQ>(test[1], limit[1]);
            [_mm256_and_ps(a, x[0]), _mm256_and_ps(b, x[1])]
        }
    }

    #[inline(always)]
    unsafe fn sum(x: Two) -> f32 {
        // SAFETY: AVX2 by contract.
        unsafe {
            let x = _mm256_add_ps(x[0], x[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ps(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn largest(x: Two) -> f32 {
        // SAFETY: AVX2 by contract.
        unsafe {
            let x = _mm256_max_ps(x[0], x[1]);
            let four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ps(two, _mm_movehdup_ps(two)))
        }
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
