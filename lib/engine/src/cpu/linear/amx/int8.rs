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
/// Sums of a group, of four vectors of 16 outputs, by row.
type Sums = [[[i32; SIDE]; SIDE]; 4];

/// Multiplies some panels with all rows.
#[inline(always)]
pub(super) unsafe fn walk<U: Unit>(unit: &mut U, job: &Job<'_>, panels: Range<usize>) {
    let mut memory = Memory {
        totals: MaybeUninit::uninit(),
        sums: [MaybeUninit::uninit(); 2],
    };
    let mut waiting = None;
    let mut panel = panels.start;
    while panel < panels.end {
        let count = if panel + 1 < panels.end { 2 } else { 1 };
        for row in (0..job.x.rows()).step_by(ROWS) {
            // SAFETY: panels and rows exist (the caller's contract), and the int8 form is padded to
            // whole tiles.
            unsafe {
                if count == 2 {
                    some_rows::<U, 2>(unit, job, &mut memory, (panel, row), &mut waiting);
                } else {
                    some_rows::<U, 1>(unit, job, &mut memory, (panel, row), &mut waiting);
                }
            }
        }
        panel += count;
    }
    if let Some(part) = waiting {
        // SAFETY: its sums are there.
        unsafe { part.add(&mut memory) }
    }
}

/// Memory of a walk.
struct Memory {
    totals: MaybeUninit<[Totals; 4]>,
    /// Of the group at hand and of the one before it.
    sums: [MaybeUninit<Sums>; 2],
}

/// Up to [`ROWS`] rows with `P` panels, one or two.
///
/// A group's sums are scaled after the next group's have been begun: tiles and vectors then work side by
/// side. `waiting` is the group that is to be scaled.
#[inline(always)]
unsafe fn some_rows<'a, U: Unit, const P: usize>(
    unit: &mut U,
    job: &'a Job<'a>,
    memory: &mut Memory,
    (panel, row): (usize, usize),
    waiting: &mut Option<Part<'a>>,
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
                let x = job.x.int8.as_ptr();
                let x = x.add((row + block) * stride + g * GROUP);
                sum::<U, P>(unit, [near, far], (x, stride), depth);
                let place = waiting.as_ref().map_or(0, |part| 1 - part.place);
                store::<U, P>(unit, memory.sums[place].as_mut_ptr());
                let part = Part {
                    job,
                    place,
                    scales: [near, far],
                    vectors: panel * 2..(panel + P) * 2,
                    row,
                    rows: block..rows.min(block + SIDE),
                    group: g,
                    groups,
                };
                if let Some(part) = waiting.replace(part) {
                    part.add(memory);
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

/// Stores the sums of `P` panels.
#[inline(always)]
unsafe fn store<U: Unit, const P: usize>(unit: &mut U, to: *mut Sums) {
    let to = to.cast::<[[i32; SIDE]; SIDE]>();
    // SAFETY: there is room for four tiles.
    unsafe {
        unit.store::<0>(to.cast(), SIDE * 4);
        unit.store::<1>(to.add(1).cast(), SIDE * 4);
        if P == 2 {
            unit.store::<2>(to.add(2).cast(), SIDE * 4);
            unit.store::<3>(to.add(3).cast(), SIDE * 4);
        }
    }
}

/// A group of inputs of up to 16 rows, whose sums are in memory.
struct Part<'a> {
    job: &'a Job<'a>,
    /// Where the sums are.
    place: usize,
    /// The group's scales, by panel.
    scales: [*const u8; 2],
    /// Outputs, in vectors.
    vectors: Range<usize>,
    /// First of the rows that are taken together.
    row: usize,
    /// Rows from that one on.
    rows: Range<usize>,
    group: usize,
    groups: usize,
}

impl Part<'_> {
    /// Adds the sums to the totals; those of the last group are output.
    #[inline(always)]
    unsafe fn add(self, memory: &mut Memory) {
        let sums = memory.sums[self.place].as_ptr().cast::<[i32; SIDE]>();
        let totals = memory.totals.as_mut_ptr().cast::<[f32; SIDE]>();
        // SAFETY: a group begins with its scales; rows have a scale for each group. Sums of these rows
        // are there, and totals were written by the group before.
        unsafe {
            let first = self.row + self.rows.start;
            let x_scales = self.job.x.int8_scales.as_ptr();
            let x_scales = x_scales.add(first * self.groups + self.group);
            for (t, vector) in self.vectors.clone().enumerate() {
                let scales = self.scales[t / 2].add(t % 2 * LINE / 2);
                let scales = scales.cast::<[f32; SIDE]>().read_unaligned();
                let output = Output::of(self.job, vector, first);
                for r in 0..self.rows.len() {
                    let total = totals.add(t * ROWS + self.rows.start + r);
                    let before = if self.group == 0 {
                        [0.0; SIDE]
                    } else {
                        total.read()
                    };
                    let x_scale = *x_scales.add(r * self.groups);
                    // By value, so that it is seen that nothing overlaps: only then it becomes vectors.
                    let sums = sums.add(t * SIDE + r).read();
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
}
