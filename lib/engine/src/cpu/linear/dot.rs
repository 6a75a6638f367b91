//! bf16 panels against activations rounded to bf16, by `vdpbf16ps`.

#![expect(
    unsafe_code,
    reason = "AVX512-BF16 instructions behind run-time detection"
)]

use std::ops::Range;

use super::super::activations::TILE_ROWS;
use super::super::memory::Buffer;
use super::super::simd::{Kernel, Simd};
use super::{Activations, Job};

/// Makes the bf16 form of the activations, unless it is there.
pub(super) struct Round<'a>(pub(super) &'a mut Activations);

impl Kernel for Round<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let x = self.0;
        if x.bf16_ready {
            return;
        }
        let (rows, cols, stride) = (x.rows(), x.cols(), x.padded_cols());
        let wanted = rows.next_multiple_of(TILE_ROWS) * stride;
        if x.bf16.len() < wanted {
            x.bf16 = Buffer::zeroed(wanted);
        }
        let mut rounded = std::mem::take(&mut x.bf16);
        let to = rounded.chunks_exact_mut(stride);
        for (from, to) in x.values().chunks_exact(cols.max(1)).zip(to) {
            for (to, from) in to.iter_mut().zip(from) {
                *to = round(*from);
            }
            to[cols..].fill(0);
        }
        x.bf16 = rounded;
        x.bf16_ready = true;
    }
}

/// Nearest bf16, ties to even; NaN stays NaN.
#[inline(always)]
fn round(x: f32) -> u16 {
    let bits = x.to_bits();
    let up = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
    (if x.is_nan() { bits | 0x0040_0000 } else { up } >> 16) as u16
}

/// Multiplies some panels with all rows.
///
/// # Safety
/// As for [`Job::run`], with the bf16 form made.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn run(job: &Job<'_>, panels: Range<usize>) {
    // SAFETY: only packed for machines that have AVX512-BF16.
    unsafe { x86::enter(job, panels) }
}

/// Multiplies some panels with all rows.
///
/// # Safety
/// Never called: no other architecture packs for this format.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn run(_job: &Job<'_>, _panels: Range<usize>) {}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #![cfg_attr(
        not(test),
        expect(clippy::wildcard_imports, reason = "dozens of intrinsics")
    )]

    use std::arch::x86_64::*;
    use std::ops::Range;

    use super::super::super::simd::LANES;
    use super::super::super::simd::avx512::{Avx512, dot_bf16};
    use super::super::Job;
    use super::super::tile::{Ahead, Tile, finish, walk};

    /// Runs the walk with AVX512-BF16 enabled.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(super) unsafe fn enter(job: &Job<'_>, panels: Range<usize>) {
        // SAFETY: the caller's contract.
        unsafe { walk(DotTile(job), job, panels) }
    }

    #[derive(Clone, Copy)]
    struct DotTile<'a>(&'a Job<'a>);

    impl Tile for DotTile<'_> {
        const VECTORS: usize = 2;
        const ACCUMULATORS: usize = 24;
        const BUSY_ROWS: usize = 6;

        #[inline(always)]
        unsafe fn tile<const R: usize, const W: usize>(
            self,
            panel: usize,
            row: usize,
            mut ahead: Ahead,
        ) {
            let job = self.0;
            let (bytes, stride) = (job.w.panel_bytes, job.x.padded_cols() / 2);
            // SAFETY: panels and rows exist (the caller's contract); a panel has a line of 64
            // values for each pair of inputs, and the bf16 form has zeros after an odd last one.
            unsafe {
                let panels = job.w.data.as_ptr().add(panel * bytes);
                let x = job.x.bf16.as_ptr().add(row * stride * 2);
                let mut sums = [[_mm512_setzero_ps(); W]; R];
                for i in 0..job.w.inputs.div_ceil(2) {
                    let mut w = [_mm512_setzero_si512(); W];
                    for j in 0..W {
                        let at = panels.add(j / 2 * bytes + (i * 2 + j % 2) * LANES * 4);
                        ahead.line::<Avx512, Self, R>(at);
                        w[j] = _mm512_loadu_si512(at.cast());
                    }
                    for r in 0..R {
                        let x = pair(x.add((r * stride + i) * 2));
                        for j in 0..W {
                            sums[r][j] = dot_bf16(sums[r][j], x, w[j]);
                        }
                    }
                }
                finish::<Avx512, R, W>(job, &sums, panel, row);
            }
        }
    }

    /// A pair of bf16 in all lanes.
    #[inline(always)]
    unsafe fn pair(at: *const u16) -> __m512i {
        // SAFETY: AVX-512 by contract; the caller names two values.
        unsafe {
            let pair = at.cast::<[u8; 4]>().read();
            _mm512_set1_epi32(i32::from_ne_bytes(pair))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_agrees_with_the_reference() {
        let specials = [
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MIN_POSITIVE / 4.0,
            1e38,
        ];
        let many = (0..200_000_u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9)));
        for x in many.chain(specials).filter(|x| !x.is_nan()) {
            assert_eq!(round(x), half::bf16::from_f32(x).to_bits(), "{x}");
        }
        assert!(half::bf16::from_bits(round(f32::NAN)).is_nan());
    }
}
