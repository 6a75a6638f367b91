//! bf16 keys and values multiplied as they are, by `vdpbf16ps`: queries and weights are rounded to
//! bf16, products are summed in f32.
//!
//! Half the multiplications of the widening form. Rounding a weight moves it by at most one part
//! in 256, as much as the values themselves were rounded.

#![expect(
    unsafe_code,
    reason = "AVX512-BF16 instructions behind run-time detection"
)]
#![cfg_attr(
    not(test),
    expect(clippy::wildcard_imports, reason = "dozens of intrinsics")
)]

use std::arch::x86_64::*;

use super::super::simd::LANES;
use super::super::simd::avx512::{Avx512, dot_bf16};
use super::Run;
use super::block::attend;
use super::stored::{Form, Stored};
use super::vectors::Vectors;
use crate::runner::PAGE_TOKENS;

/// A stored bf16 value.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Dotted(u16);

impl Dotted {
    /// Stored values as these.
    pub(super) fn all(data: &[u16]) -> &[Self] {
        // SAFETY: `Dotted` is a `u16`.
        unsafe { std::slice::from_raw_parts(data.as_ptr().cast::<Self>(), data.len()) }
    }
}

/// Computes a task over bf16 pages.
///
/// # Safety
/// As for [`attend`], on a machine with AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn enter(run: &Run<'_>, data: &[u16]) {
    // SAFETY: this function enables the path's features.
    unsafe { attend::<Avx512, Dotted, _>(run, Dotted::all(data), Vectors) }
}

/// Rounds 16 values to bf16.
#[inline(always)]
unsafe fn round(x: __m512) -> __m256i {
    // SAFETY: AVX512-BF16 by contract; the types differ in name only.
    unsafe { std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(x)) }
}

// SAFETY: only used inside functions that enable the path's features.
unsafe impl Form<Avx512> for Dotted {
    fn words(dim: usize) -> usize {
        dim / 2
    }

    #[inline(always)]
    unsafe fn put_query(to: &mut Vec<u32>, query: &[f32], scale: f32) {
        for part in query.chunks(LANES) {
            let mut pairs = [0_u32; LANES / 2];
            let mask = ((1_u32 << part.len()) - 1) as __mmask16;
            // SAFETY: masked lanes are not touched, and eight words hold 16 bf16.
            unsafe {
                let x = _mm512_maskz_loadu_ps(mask, part.as_ptr());
                let rounded = round(_mm512_mul_ps(x, _mm512_set1_ps(scale)));
                _mm256_storeu_si256(pairs.as_mut_ptr().cast(), rounded);
            }
            to.extend_from_slice(&pairs[..part.len() / 2]);
        }
    }

    /// Two to a word, from word `at / 2` on: never past weights still to be made.
    #[inline(always)]
    unsafe fn put_weights(to: *mut f32, at: usize, weights: __m512) {
        // SAFETY: the caller names room for 16 weights at `at`, so for 8 words at `at / 2`.
        unsafe { _mm256_storeu_si256(to.add(at / 2).cast(), round(weights)) }
    }
}

// SAFETY: as above.
unsafe impl Stored<Avx512> for Dotted {
    type Values = __m512i;
    type Weights = __m512i;

    const SIX: bool = true;

    #[inline(always)]
    unsafe fn products<const T: usize, const P: usize>(
        query: *const u32,
        dim: usize,
        keys: &[*const Dotted],
    ) -> [[__m512; P]; T] {
        // SAFETY: T queries of `dim / 2` words, P pages of as many lines of 16 pairs of keys.
        unsafe {
            let mut sums = [[_mm512_setzero_ps(); P]; T];
            for d in 0..dim / 2 {
                let mut k = [_mm512_setzero_si512(); P];
                for p in 0..P {
                    k[p] = _mm512_loadu_si512(keys[p].add(d * 2 * PAGE_TOKENS).cast());
                }
                for t in 0..T {
                    let q = _mm512_set1_epi32(*query.add(t * (dim / 2) + d) as i32);
                    for p in 0..P {
                        sums[t][p] = dot_bf16(sums[t][p], q, k[p]);
                    }
                }
            }
            sums
        }
    }

    #[inline(always)]
    unsafe fn weights(from: *const f32, at: usize) -> __m512i {
        // SAFETY: the caller names two weights.
        unsafe { _mm512_set1_epi32((*from.add(at / 2)).to_bits() as i32) }
    }

    #[inline(always)]
    unsafe fn values(from: *const Dotted, slot: usize, padded: usize, d: usize) -> __m512i {
        // SAFETY: the caller names two slots of a page.
        unsafe { _mm512_loadu_si512(from.add(slot * padded + 2 * d).cast()) }
    }

    #[inline(always)]
    unsafe fn gather(
        slots: [Option<(*const Dotted, usize)>; 2],
        padded: usize,
        d: usize,
    ) -> __m512i {
        // A slot's values, in the low halves of the lanes.
        let load = |slot: Option<(*const Dotted, usize)>| {
            // SAFETY: AVX-512 by contract; the caller names a slot of a page.
            unsafe {
                let Some((from, slot)) = slot else {
                    return _mm512_setzero_si512();
                };
                let both = Self::values(from, slot / 2 * 2, padded, d);
                if slot % 2 == 0 {
                    _mm512_and_si512(both, _mm512_set1_epi32(0xffff))
                } else {
                    _mm512_srli_epi32::<16>(both)
                }
            }
        };
        // SAFETY: AVX-512 by contract.
        unsafe { _mm512_or_si512(load(slots[0]), _mm512_slli_epi32::<16>(load(slots[1]))) }
    }

    #[inline(always)]
    unsafe fn add(sum: __m512, weights: __m512i, values: __m512i) -> __m512 {
        // SAFETY: AVX512-BF16 by contract.
        unsafe { dot_bf16(sum, weights, values) }
    }
}
