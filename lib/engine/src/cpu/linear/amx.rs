//! Panels against activations by AMX tiles: bf16 by bf16, int8 by int8.
//!
//! Weights are loaded once for up to 16 rows, so verification is nearly free up to 16 rows. Panels have
//! the layout of the vector paths: a weight tile is 16 pairs (bf16) or quads (int8) of inputs of half
//! a panel, its lines 128 bytes apart. An output is a chain of tile products over the inputs in order,
//! whatever the rows around it.

#![expect(unsafe_code, reason = "tile instructions behind run-time detection")]
#![cfg_attr(
    not(any(test, target_arch = "x86_64")),
    expect(dead_code, reason = "other processors have no such unit")
)]

mod bf16;
mod int8;

use std::{array, ops::Range};

#[cfg(target_arch = "x86_64")]
use super::super::tiles::Tiles;
use super::super::tiles::{SIDE, Shapes, Unit};
use super::Job;

/// Bytes between the lines of a weight tile: a panel's line.
const LINE: usize = 128;

/// Tiles of a walk: sums in 0 to 3, rows in 4, weights in 5 to 7.
fn shapes(job: &Job<'_>) -> Shapes {
    let (r, w) = ((job.x.rows().min(SIDE), 64), (SIDE, 64));
    [r, r, r, r, r, w, w, w]
}

/// Where a vector of outputs goes, row by row.
struct Output<'a> {
    first: *mut f32,
    /// From row to row.
    stride: usize,
    bias: Option<&'a [f32; SIDE]>,
    /// How many of them are output.
    lanes: usize,
}

impl<'a> Output<'a> {
    /// Of vector number `vector`, from `row` on.
    ///
    /// # Safety
    /// As for [`Job::run`]; the row exists, and so does the panel.
    #[inline(always)]
    unsafe fn of(job: &Job<'a>, vector: usize, row: usize) -> Self {
        let output = vector * SIDE;
        let bias = job.w.bias.get(output..);
        Self {
            // Past the end where nothing of it is output.
            first: job.y.wrapping_add(row * job.stride + output),
            stride: job.stride,
            bias: bias.and_then(<[f32]>::first_chunk),
            lanes: job.w.outputs.saturating_sub(output).min(SIDE),
        }
    }

    /// Writes row `r` of them.
    ///
    /// # Safety
    /// As for [`Output::of`].
    #[inline(always)]
    unsafe fn put(&self, r: usize, mut sums: [f32; SIDE]) {
        if let Some(bias) = self.bias {
            sums = array::from_fn(|lane| sums[lane] + bias[lane]);
        }
        let to = self.first.wrapping_add(r * self.stride);
        // SAFETY: these lanes of the row are output.
        unsafe {
            if self.lanes == SIDE {
                to.cast::<[f32; SIDE]>().write_unaligned(sums);
            } else {
                put_some(to, self.lanes, sums);
            }
        }
    }
}

/// Writes the first `lanes` of `sums`. A function of its own, so that else they stay in a register.
///
/// # Safety
/// `to` must be valid for them.
#[cold]
#[inline(never)]
unsafe fn put_some(to: *mut f32, lanes: usize, sums: [f32; SIDE]) {
    // SAFETY: the caller's contract.
    unsafe { to.copy_from_nonoverlapping(sums.as_ptr(), lanes) }
}

/// Multiplies some panels of bf16 with all rows.
///
/// # Safety
/// As for [`Job::run`], with the bf16 form made.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn run(job: &Job<'_>, panels: Range<usize>) {
    // SAFETY: only packed for machines that have the unit and let this process use it.
    unsafe {
        let mut unit = Tiles::configured(&shapes(job));
        x86::enter(&mut unit, job, panels);
    }
}

/// Multiplies some panels of bf16 with all rows.
///
/// # Safety
/// Never called: no other architecture packs for this format.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn run(_job: &Job<'_>, _panels: Range<usize>) {}

/// Multiplies some panels of int8 with all rows.
///
/// # Safety
/// As for [`Job::run`], with the int8 form made, unsigned.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn run_bytes(job: &Job<'_>, panels: Range<usize>) {
    // SAFETY: the path is only taken on machines that have the unit and let this process use it.
    unsafe {
        let mut unit = Tiles::configured(&shapes(job));
        x86::enter_bytes(&mut unit, job, panels);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::ops::Range;

    use super::super::super::tiles::Tiles;
    use super::super::Job;
    use super::{bf16, int8};

    /// Runs the walk over bf16 on the processor's tiles.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) unsafe fn enter(unit: &mut Tiles, job: &Job<'_>, panels: Range<usize>) {
        // SAFETY: the caller's contract.
        unsafe { bf16::walk(unit, job, panels) }
    }

    /// Runs the walk over int8 on the processor's tiles.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub(super) unsafe fn enter_bytes(unit: &mut Tiles, job: &Job<'_>, panels: Range<usize>) {
        // SAFETY: the caller's contract.
        unsafe { int8::walk(unit, job, panels) }
    }
}

/// The walks on the unit in plain Rust.
#[cfg(test)]
pub(super) mod emulated {
    use super::super::super::tiles::emulated::Tiles;
    use super::{Job, Range, shapes};

    /// Multiplies some panels of bf16 with all rows.
    ///
    /// # Safety
    /// As for [`super::run`].
    pub(in super::super) unsafe fn run(job: &Job<'_>, panels: Range<usize>) {
        // SAFETY: the caller's contract.
        unsafe { super::bf16::walk(&mut Tiles::configured(&shapes(job)), job, panels) }
    }

    /// Multiplies some panels of int8 with all rows.
    ///
    /// # Safety
    /// As for [`super::run_bytes`].
    pub(in super::super) unsafe fn run_bytes(job: &Job<'_>, panels: Range<usize>) {
        // SAFETY: the caller's contract.
        unsafe { super::int8::walk(&mut Tiles::configured(&shapes(job)), job, panels) }
    }
}
