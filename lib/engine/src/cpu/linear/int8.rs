//! int8 panels against activations quantised to int8.
//!
//! Weights and activations have one scale per group of 128 inputs, symmetric, to +-127. Within a
//! group sums are exact integers, so all paths agree there; groups are added in f32 in order.
//! Between Gaussian rows of 3,072 the relative error of an output is 0.8 % with groups of 32, 1.05 %
//! with 128 and 1.4 % with a scale per row (simulated). 128 needs a quarter of the conversions and
//! scales that 32 does, and keeps an outlier from costing more than its own group.
//!
//! VNNI multiplies unsigned by signed bytes, so its activations are shifted by 128 and the sums
//! start at -128 times the sum of the group's weights. AVX2 does too, but its sums of 16 bits would overflow:
//! signs would have to be moved from activations to weights, for each row anew. So weights are widened to 16
//! bits, once for all rows of a tile, and activations before: four to twelve rows take 5 to 9 % less time (Zen 3).

#![expect(
    unsafe_code,
    reason = "kernels over raw panels, entered behind run-time detection"
)]

use std::marker::PhantomData;
use std::ops::Range;

use super::super::activations::TILE_ROWS;
use super::super::memory::Buffer;
use super::super::simd::portable::Portable;
use super::super::simd::{Kernel, LANES, Simd};
#[cfg(target_arch = "x86_64")]
use super::amx;
use super::tile::{Ahead, Tile, finish, walk};
use super::{Activations, Job};
use crate::isa::Isa;

/// Inputs that share a scale.
pub(super) const GROUP: usize = 128;
/// Inputs whose products one instruction adds up.
pub(super) const QUAD: usize = 4;

/// Rows from which tiles are quicker than vectors, where there are tiles. Both give the same bits.
#[cfg(target_arch = "x86_64")]
const TILES_FROM: usize = 6;

/// How a path takes quantised activations, and so weights.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// As they are, in quads.
    Signed,
    /// Shifted by 128, in quads.
    Unsigned,
    /// Widened to 16 bits, in pairs.
    Words,
}

impl Form {
    pub(super) fn of(isa: Isa) -> Self {
        match isa {
            Isa::Avx2 | Isa::Avx512 => Self::Words,
            Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => Self::Unsigned,
            Isa::Portable => Self::Signed,
        }
    }
}

/// Makes the int8 form of the activations, unless it is there.
pub(super) struct Quantise<'a> {
    pub(super) x: &'a mut Activations,
    pub(super) form: Form,
}

impl Kernel for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let x = self.x;
        if x.int8_ready {
            return;
        }
        let (rows, cols, stride) = (x.rows(), x.cols(), x.padded_cols());
        let groups = cols.div_ceil(GROUP);
        let wanted = rows.next_multiple_of(TILE_ROWS) * stride;
        if x.int8.len() < wanted {
            x.int8 = Buffer::zeroed(wanted);
        }
        if x.int8_scales.len() < rows * groups {
            x.int8_scales = Buffer::zeroed(rows * groups);
        }
        if self.form == Form::Words && x.words.len() < wanted {
            x.words = Buffer::zeroed(wanted);
        }
        let mut bytes = std::mem::take(&mut x.int8);
        let mut scales = std::mem::take(&mut x.int8_scales);
        let flip = if self.form == Form::Unsigned { 0x80 } else { 0 };
        for row in 0..rows {
            let from = &x.values()[row * cols..][..cols];
            let to = &mut bytes[row * stride..][..stride];
            to[cols..].fill(flip);
            for (g, (from, to)) in from.chunks(GROUP).zip(to.chunks_mut(GROUP)).enumerate() {
                // SAFETY: runs with the path's features.
                scales[row * groups + g] = unsafe { quantise::<S>(from, to, flip) };
            }
            if self.form == Form::Words {
                for (word, byte) in x.words[row * stride..].iter_mut().zip(&*to) {
                    *word = i16::from(*byte as i8);
                }
            }
        }
        (x.int8, x.int8_scales) = (bytes, scales);
        x.int8_ready = true;
    }
}

/// Quantises a group, returns its scale.
#[inline(always)]
unsafe fn quantise<S: Simd>(from: &[f32], to: &mut [u8], flip: u8) -> f32 {
    let (whole, rest) = from.as_chunks::<LANES>();
    let to = to.as_mut_ptr();
    // SAFETY: the caller's contract; loads and stores stay within the slices.
    unsafe {
        // The order of the operands leaves NaN out.
        let mut top = S::max(
            S::abs(S::load_some(rest.as_ptr(), rest.len())),
            S::splat(0.0),
        );
        for x in whole {
            top = S::max(S::abs(S::load(x.as_ptr())), top);
        }
        let largest = S::largest(top);
        let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
        let inverse = S::splat(inverse);
        for (i, x) in whole.iter().enumerate() {
            let rounded = S::round(S::mul(S::load(x.as_ptr()), inverse));
            S::store_i8(to.add(i * LANES), LANES, rounded, flip);
        }
        if !rest.is_empty() {
            let x = S::load_some(rest.as_ptr(), rest.len());
            let rounded = S::round(S::mul(x, inverse));
            S::store_i8(to.add(whole.len() * LANES), rest.len(), rounded, flip);
        }
        largest / 127.0
    }
}

/// Dot products of quads of int8 in 16 lanes of i32.
///
/// # Safety
/// As for [`Simd`], with the path's int8 instructions too.
unsafe trait Dot8: Simd {
    /// Sixteen i32.
    type I: Copy;
    /// How many of them registers have room for.
    const SUMS: usize;
    /// Bytes of an activation.
    const INPUT: usize;

    /// The first activation.
    fn first(x: &Activations) -> *const u8;
    /// Where a group's sums start, given -128 times the sums of its weights.
    unsafe fn start(sums: *const i32) -> Self::I;
    /// Adds products of `R` rows: of the quad of activations at `x`, and every `stride` bytes after it,
    /// with the 64 weights at each place of `w`, which are 16 outputs of 4 inputs.
    unsafe fn dot<const R: usize, const W: usize>(
        sums: &mut [[Self::I; W]; R],
        w: [*const u8; W],
        x: *const u8,
        stride: usize,
    );
    /// As f32.
    unsafe fn float(sum: Self::I) -> Self::F;
}

/// Multiplies some panels with all rows.
///
/// # Safety
/// As for [`Job::run`], with the int8 form made.
pub(super) unsafe fn run(job: &Job<'_>, panels: Range<usize>) {
    // SAFETY: the machine has the path that the weights were packed for.
    unsafe {
        match job.w.isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx if job.x.rows() >= TILES_FROM => amx::run_bytes(job, panels),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => x86::enter_vnni(job, panels),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 => x86::enter_avx2(job, panels),
            _ => walk(Tile8::<Portable>(job, PhantomData), job, panels),
        }
    }
}

struct Tile8<'a, S>(&'a Job<'a>, PhantomData<S>);

impl<S> Clone for Tile8<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for Tile8<'_, S> {}

impl<S: Dot8> Tile for Tile8<'_, S> {
    const VECTORS: usize = S::PANEL_VECTORS;
    const ACCUMULATORS: usize = S::SUMS;
    const FEW_ROWS: usize = if S::PANEL_VECTORS == 2 { 3 } else { 0 };
    const BUSY_ROWS: usize = if S::PANEL_VECTORS == 2 { 6 } else { 2 };
    const BY_PANELS: bool = S::PANEL_VECTORS == 1;

    #[inline(always)]
    unsafe fn tile<const R: usize, const W: usize>(
        self,
        panel: usize,
        row: usize,
        mut ahead: Ahead,
    ) {
        let job = self.0;
        let (inputs, bytes, width) = (job.w.inputs, job.w.panel_bytes, job.w.panel);
        let (stride, groups) = (job.x.padded_cols() * S::INPUT, inputs.div_ceil(GROUP));
        let vectors = S::PANEL_VECTORS;
        // SAFETY: panels and rows exist (the caller's contract), laid out as `pack` says; the
        // int8 form is padded past the last quad.
        unsafe {
            let panels = job.w.data.as_ptr().add(panel * bytes);
            let x = S::first(job.x).add(row * stride);
            let x_scales = job.x.int8_scales.as_ptr().add(row * groups);
            let mut totals = [[S::splat(0.0); W]; R];
            for g in 0..groups {
                let group = panels.add(g * width * (8 + GROUP));
                for line in (0..width * 8).step_by(64) {
                    ahead.line::<S, Self, R>(group.add(line));
                }
                let mut sums = [[S::start(group.add(width * 4).cast()); W]; R];
                for j in 1..W {
                    let at = j / vectors * bytes + width * 4 + j % vectors * LANES * 4;
                    let start = S::start(group.add(at).cast());
                    for sums in &mut sums {
                        sums[j] = start;
                    }
                }
                let quads = group.add(width * 8);
                for q in 0..(inputs - g * GROUP).min(GROUP).div_ceil(QUAD) {
                    let mut w = [quads; W];
                    for j in 0..W {
                        let line = j / vectors * bytes + q * width * QUAD;
                        w[j] = quads.add(line + j % vectors * LANES * QUAD);
                        ahead.line::<S, Self, R>(w[j]);
                    }
                    let x = x.add((g * GROUP + q * QUAD) * S::INPUT);
                    S::dot(&mut sums, w, x, stride);
                }
                for j in 0..W {
                    let at = group.add(j / vectors * bytes + j % vectors * LANES * 4);
                    let scale = S::load(at.cast());
                    for r in 0..R {
                        let x_scale = S::splat(*x_scales.add(r * groups + g));
                        let scaled = S::mul(S::float(sums[r][j]), scale);
                        totals[r][j] = S::fma(scaled, x_scale, totals[r][j]);
                    }
                }
            }
            finish::<S, R, W>(job, &totals, panel, row);
        }
    }
}

// SAFETY: uses no special instructions.
unsafe impl Dot8 for Portable {
    type I = [i32; LANES];
    const SUMS: usize = 4;
    const INPUT: usize = 1;

    #[inline(always)]
    fn first(x: &Activations) -> *const u8 {
        x.int8.as_ptr()
    }

    #[inline(always)]
    unsafe fn start(_sums: *const i32) -> Self::I {
        [0; LANES]
    }

    #[inline(always)]
    unsafe fn dot<const R: usize, const W: usize>(
        sums: &mut [[Self::I; W]; R],
        w: [*const u8; W],
        x: *const u8,
        stride: usize,
    ) {
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: the caller names 4 activations of each row.
            let x = unsafe { x.add(r * stride).cast::<[i8; QUAD]>().read_unaligned() };
            for (sums, w) in sums.iter_mut().zip(w) {
                // SAFETY: the caller names 64 weights.
                let w = unsafe { w.cast::<[[i8; QUAD]; LANES]>().read_unaligned() };
                for (sum, w) in sums.iter_mut().zip(w) {
                    let products = w.iter().zip(x).map(|(w, x)| i32::from(*w) * i32::from(x));
                    *sum += products.sum::<i32>();
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn float(sum: Self::I) -> Self::F {
        sum.map(|x| x as f32)
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    #![cfg_attr(
        not(test),
        expect(clippy::wildcard_imports, reason = "dozens of intrinsics")
    )]

    use std::arch::x86_64::*;
    use std::marker::PhantomData;
    use std::ops::Range;

    use super::super::super::Activations;
    use super::super::super::simd::LANES;
    use super::super::super::simd::avx2::Avx2;
    use super::super::super::simd::avx512::Avx512;
    use super::super::Job;
    use super::super::tile::walk;
    use super::{Dot8, QUAD, Tile8};

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    pub(super) unsafe fn enter_vnni(job: &Job<'_>, panels: Range<usize>) {
        // SAFETY: the caller's contract.
        unsafe { walk(Tile8::<Avx512>(job, PhantomData), job, panels) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub(super) unsafe fn enter_avx2(job: &Job<'_>, panels: Range<usize>) {
        // SAFETY: the caller's contract.
        unsafe { walk(Tile8::<Avx2>(job, PhantomData), job, panels) }
    }

    // SAFETY: only used inside `enter_vnni`.
    unsafe impl Dot8 for Avx512 {
        type I = __m512i;
        const SUMS: usize = 24;
        const INPUT: usize = 1;

        #[inline(always)]
        fn first(x: &Activations) -> *const u8 {
            x.int8.as_ptr()
        }

        #[inline(always)]
        unsafe fn start(sums: *const i32) -> __m512i {
            // SAFETY: the caller names 16 sums.
            unsafe { _mm512_loadu_si512(sums.cast()) }
        }

        #[inline(always)]
        unsafe fn dot<const R: usize, const W: usize>(
            sums: &mut [[__m512i; W]; R],
            w: [*const u8; W],
            x: *const u8,
            stride: usize,
        ) {
            // SAFETY: VNNI by contract; the caller names the weights and activations.
            unsafe {
                let w = w.map(|at| _mm512_loadu_si512(at.cast()));
                for r in 0..R {
                    let x = x.add(r * stride).cast::<i32>().read_unaligned();
                    let x = _mm512_set1_epi32(x);
                    for j in 0..W {
                        sums[r][j] = _mm512_dpbusd_epi32(sums[r][j], x, w[j]);
                    }
                }
            }
        }

        #[inline(always)]
        unsafe fn float(sum: __m512i) -> __m512 {
            // SAFETY: AVX-512 by contract.
            unsafe { _mm512_cvtepi32_ps(sum) }
        }
    }

    // SAFETY: only used inside `enter_avx2`.
    unsafe impl Dot8 for Avx2 {
        type I = [__m256i; 2];
        // Beside two halves of a pair's weights, an activation and a product.
        const SUMS: usize = 6;
        const INPUT: usize = 2;

        #[inline(always)]
        fn first(x: &Activations) -> *const u8 {
            x.words.as_ptr().cast()
        }

        #[inline(always)]
        unsafe fn start(_sums: *const i32) -> Self::I {
            // SAFETY: AVX2 by contract.
            unsafe { [_mm256_setzero_si256(); 2] }
        }

        #[inline(always)]
        unsafe fn dot<const R: usize, const W: usize>(
            sums: &mut [[Self::I; W]; R],
            w: [*const u8; W],
            x: *const u8,
            stride: usize,
        ) {
            // SAFETY: AVX2 by contract; the caller names the weights and activations, of which a pair of
            // inputs has half.
            unsafe {
                let widen = |at: *const u8| _mm256_cvtepi8_epi16(_mm_loadu_si128(at.cast()));
                for pair in 0..QUAD / 2 {
                    for (j, at) in w.into_iter().enumerate() {
                        let at = at.add(pair * 2 * LANES);
                        let w = [widen(at), widen(at.add(LANES))];
                        for r in 0..R {
                            let x = x.add(r * stride + pair * 2 * Self::INPUT);
                            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
                            for half in 0..2 {
                                let products = _mm256_madd_epi16(w[half], x);
                                sums[r][j][half] = _mm256_add_epi32(sums[r][j][half], products);
                            }
                        }
                    }
                }
            }
        }

        #[inline(always)]
        unsafe fn float(sum: Self::I) -> Self::F {
            // SAFETY: AVX2 by contract.
            unsafe { [_mm256_cvtepi32_ps(sum[0]), _mm256_cvtepi32_ps(sum[1])] }
        }
    }
}
