//! int8 panels against activations quantised to int8.
//!
//! A group of inputs is two tiles deep. Its sums are exact integers, and the scales are applied by the
//! operations of the vector path in their order: both paths give the same bits.

use std::{array, mem::MaybeUninit, ops::Range};

use super::super::int8::GROUP;
use super::{Job, LINE, Output, SIDE, Unit};

/// Inputs of a tile.
const DEPTH: usize = 64;
/// Rows that are taken while the weights of a group are near.
const ROWS: usize = 2 * SIDE;
/// Bytes of the scales of a panel's group, and of its starting sums.
const HEAD: usize = LINE;

/// What the groups so far come to, of a vector of 16 outputs, by row.
type Totals = [[f32; SIDE]; ROWS];

/// Multiplies some panels with all rows.
#[inline(always)]
pub(super) unsafe fn walk<U: Unit>(unit: &mut U, job: &Job<'_>, panels: Range<usize>) {
    let mut totals = MaybeUninit::<[Totals; 4]>::uninit();
    let totals = totals.as_mut_ptr().cast();
    let mut panel = panels.start;
    while panel < panels.end {
        let pair = panel + 1 < panels.end;
        for row in (0..job.x.rows()).step_by(ROWS) {
            // SAFETY: panels and rows exist (the caller's contract), and the int8 form is padded to
            // whole tiles.
            unsafe {
                if pair {
                    some_rows::<U, 2>(unit, job, totals, panel, row);
                } else {
                    some_rows::<U, 1>(unit, job, totals, panel, row);
                }
            }
        }
        panel += 1 + usize::from(pair);
    }
}

/// Up to [`ROWS`] rows with `P` panels, one or two.
#[inline(always)]
unsafe fn some_rows<U: Unit, const P: usize>(
    unit: &mut U,
    job: &Job<'_>,
    totals: *mut Totals,
    panel: usize,
    row: usize,
) {
    let (inputs, stride) = (job.w.inputs, job.x.padded_cols());
    let groups = inputs.div_ceil(GROUP);
    let rows = (job.x.rows() - row).min(ROWS);
    let first = job.w.data[panel * job.w.panel_bytes..].as_ptr();
    for g in 0..groups {
        let depth = (inputs - g * GROUP).min(GROUP);
        // SAFETY: the caller's contract: groups lie one after the other in a panel, the last one is
        // padded to whole tiles, and so are rows.
        unsafe {
            let near = first.add(g * (2 * HEAD + GROUP / 4 * LINE));
            let far = near.wrapping_add((P - 1) * job.w.panel_bytes);
            for block in (0..rows).step_by(SIDE) {
                let at = row + block;
                let x = job.x.int8.as_ptr().add(at * stride + g * GROUP);
                sum::<U, P>(unit, [near, far], (x, stride), depth);
                let part = Part {
                    job,
                    row: at,
                    rows: (rows - block).min(SIDE),
                    group: g,
                    groups,
                    totals: totals.cast::<[f32; SIDE]>().add(block),
                };
                part.add::<U, 0>(unit, near, panel * 2);
                part.add::<U, 1>(unit, near, panel * 2 + 1);
                if P == 2 {
                    part.add::<U, 2>(unit, far, panel * 2 + 2);
                    part.add::<U, 3>(unit, far, panel * 2 + 3);
                }
            }
        }
    }
}

/// Sums of a group, of up to 16 rows with `P` panels: in tiles 0 and 1, and 2 and 3.
#[inline(always)]
unsafe fn sum<U: Unit, const P: usize>(
    unit: &mut U,
    panels: [*const u8; 2],
    (x, stride): (*const u8, usize),
    depth: usize,
) {
    // SAFETY: the caller's contract; all offsets stay within the panels and the padded rows. Every
    // row starts with the same sums: a stride of nothing.
    unsafe {
        unit.load::<0>(panels[0].add(HEAD), 0);
        unit.load::<1>(panels[0].add(HEAD + LINE / 2), 0);
        if P == 2 {
            unit.load::<2>(panels[1].add(HEAD), 0);
            unit.load::<3>(panels[1].add(HEAD + LINE / 2), 0);
        }
        for i in 0..depth.div_ceil(DEPTH) {
            let at = 2 * HEAD + i * SIDE * LINE;
            unit.load::<4>(x.add(i * DEPTH), stride);
            unit.load::<5>(panels[0].add(at), LINE);
            unit.dot_bytes::<0, 4, 5>();
            unit.load::<6>(panels[0].add(at + LINE / 2), LINE);
            unit.dot_bytes::<1, 4, 6>();
            if P == 2 {
                unit.load::<7>(panels[1].add(at), LINE);
                unit.dot_bytes::<2, 4, 7>();
                unit.load::<5>(panels[1].add(at + LINE / 2), LINE);
                unit.dot_bytes::<3, 4, 5>();
            }
        }
    }
}

/// A group of inputs of up to 16 rows.
struct Part<'a> {
    job: &'a Job<'a>,
    row: usize,
    rows: usize,
    group: usize,
    groups: usize,
    /// Of the first vector and the first row; others are whole [`Totals`] further.
    totals: *mut [f32; SIDE],
}

impl Part<'_> {
    /// Adds tile `T`, the sums of `panel`'s group, to the totals; those of the last group are output,
    /// as vector number `vector`.
    #[inline(always)]
    unsafe fn add<U: Unit, const T: usize>(&self, unit: &mut U, panel: *const u8, vector: usize) {
        let mut sums = MaybeUninit::<[[i32; SIDE]; SIDE]>::uninit();
        // SAFETY: `sums` holds a tile, and a group begins with its scales; rows have a scale for
        // each group. Totals were written by the group before.
        unsafe {
            unit.store::<T>(sums.as_mut_ptr().cast());
            let scales = panel.add(T % 2 * LINE / 2);
            let scales = scales.cast::<[f32; SIDE]>().read_unaligned();
            let output = Output::of(self.job, vector, self.row);
            let x_scales = self.job.x.int8_scales.as_ptr();
            let x_scales = x_scales.add(self.row * self.groups + self.group);
            for (r, sums) in sums.assume_init_ref()[..self.rows].iter().enumerate() {
                let total = self.totals.add(T * ROWS + r);
                let before = if self.group == 0 {
                    [0.0; SIDE]
                } else {
                    total.read()
                };
                let x_scale = *x_scales.add(r * self.groups);
                // By value, so that it is seen that nothing overlaps: only then it becomes vectors.
                let sums = *sums;
                let after: [f32; SIDE] = array::from_fn(|lane| {
                    let scaled = sums[lane] as f32 * scales[lane];
                    scaled.mul_add(x_scale, before[lane])
                });
                if self.group + 1 == self.groups {
                    output.put(r, after);
                } else {
                    total.write(after);
                }
            }
        }
    }
}
