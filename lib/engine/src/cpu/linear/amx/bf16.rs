//! bf16 panels against activations rounded to bf16.

use std::{mem::MaybeUninit, ops::Range};

use super::{Job, LINE, Output, SIDE, Unit};

/// Inputs of a tile.
const DEPTH: usize = 32;

/// Multiplies some panels with all rows.
#[inline(always)]
pub(super) unsafe fn walk<U: Unit>(unit: &mut U, job: &Job<'_>, panels: Range<usize>) {
    let rows = job.x.rows();
    // SAFETY: panels and rows exist (the caller's contract), and the bf16 form is padded to
    // whole tiles.
    unsafe {
        let mut panel = panels.start;
        while panel < panels.end {
            let two_panels = rows <= SIDE && panel + 1 < panels.end;
            if two_panels {
                sixteen_rows::<U, 2>(unit, job, panel, 0);
                panel += 2;
                continue;
            }
            for row in (0..rows).step_by(2 * SIDE) {
                if rows - row > SIDE {
                    two_by_two(unit, job, panel, row);
                } else {
                    sixteen_rows::<U, 1>(unit, job, panel, row);
                }
            }
            panel += 1;
        }
    }
}

/// First weight tile of a panel and first activation tile of a row, with its stride in bytes.
#[inline(always)]
fn operands(job: &Job<'_>, panel: usize, row: usize) -> (*const u8, *const u8, usize) {
    let stride = job.x.padded_cols() * 2;
    let weights = job.w.data[panel * job.w.panel_bytes..].as_ptr();
    (
        weights,
        job.x.bf16[row * stride / 2..].as_ptr().cast(),
        stride,
    )
}

/// Up to 16 rows with `P` panels, one or two.
#[inline(always)]
unsafe fn sixteen_rows<U: Unit, const P: usize>(
    unit: &mut U,
    job: &Job<'_>,
    panel: usize,
    row: usize,
) {
    let (weights, x, stride) = operands(job, panel, row);
    let next = weights.wrapping_add((P - 1) * job.w.panel_bytes);
    // SAFETY: the caller's contract; all offsets stay within the panels and the padded rows.
    unsafe {
        unit.zero::<0>();
        unit.zero::<1>();
        if P == 2 {
            unit.zero::<2>();
            unit.zero::<3>();
        }
        for i in 0..job.w.inputs.div_ceil(DEPTH) {
            let at = i * SIDE * LINE;
            unit.load::<4>(x.add(i * DEPTH * 2), stride);
            unit.load::<5>(weights.add(at), LINE);
            unit.dot::<0, 4, 5>();
            unit.load::<6>(weights.add(at + LINE / 2), LINE);
            unit.dot::<1, 4, 6>();
            if P == 2 {
                unit.load::<7>(next.add(at), LINE);
                unit.dot::<2, 4, 7>();
                unit.load::<5>(next.add(at + LINE / 2), LINE);
                unit.dot::<3, 4, 5>();
            }
        }
        put::<U, 0>(unit, job, panel * 2, row);
        put::<U, 1>(unit, job, panel * 2 + 1, row);
        if P == 2 {
            put::<U, 2>(unit, job, panel * 2 + 2, row);
            put::<U, 3>(unit, job, panel * 2 + 3, row);
        }
    }
}

/// 17 to 32 rows with one panel.
#[inline(always)]
unsafe fn two_by_two<U: Unit>(unit: &mut U, job: &Job<'_>, panel: usize, row: usize) {
    let (weights, x, stride) = operands(job, panel, row);
    // SAFETY: the caller's contract.
    unsafe {
        unit.zero::<0>();
        unit.zero::<1>();
        unit.zero::<2>();
        unit.zero::<3>();
        let below = x.add(SIDE * stride);
        for i in 0..job.w.inputs.div_ceil(DEPTH) {
            let at = i * SIDE * LINE;
            unit.load::<4>(x.add(i * DEPTH * 2), stride);
            unit.load::<6>(weights.add(at), LINE);
            unit.dot::<0, 4, 6>();
            unit.load::<7>(weights.add(at + LINE / 2), LINE);
            unit.dot::<1, 4, 7>();
            unit.load::<5>(below.add(i * DEPTH * 2), stride);
            unit.dot::<2, 5, 6>();
            unit.dot::<3, 5, 7>();
        }
        put::<U, 0>(unit, job, panel * 2, row);
        put::<U, 1>(unit, job, panel * 2 + 1, row);
        put::<U, 2>(unit, job, panel * 2, row + SIDE);
        put::<U, 3>(unit, job, panel * 2 + 1, row + SIDE);
    }
}

/// Writes what of tile `T` is output: `vector` counts 16 outputs.
#[inline(always)]
unsafe fn put<U: Unit, const T: usize>(unit: &mut U, job: &Job<'_>, vector: usize, row: usize) {
    let mut sums = MaybeUninit::<[[f32; SIDE]; SIDE]>::uninit();
    // SAFETY: `sums` holds a tile, whose rows are there; rows and outputs are in range.
    unsafe {
        unit.store::<T>(sums.as_mut_ptr().cast(), SIDE * 4);
        let output = Output::of(job, vector, row);
        for r in 0..(job.x.rows() - row).min(SIDE) {
            output.put(r, sums.as_ptr().cast::<[f32; SIDE]>().add(r).read());
        }
    }
}
