//! The walk over panels and rows, and the tiles of f32 arithmetic.
//!
//! Panels follow each other in memory, so one row streams through them; many rows are cut into
//! tiles that find the panel in the cache.

#![expect(
    unsafe_code,
    reason = "kernels over raw panels, entered behind run-time detection"
)]

use std::marker::PhantomData;
use std::ops::Range;

use super::super::simd::{Kernel, LANES, Simd, add_products};
use super::Job;

/// Panels that are taken at once at least, by few rows and by the tile unit; tasks of layers where that is so are cut
/// at multiples of it.
pub(super) const GROUP: usize = 2;

/// Most rows of a tile. Rows of outputs often lie multiples of 4 KiB apart, of which a level-1 cache
/// keeps eight lines, and int8 needs two registers an output: with twelve rows a layer of 128 inputs and
/// 4,096 outputs took a fifth longer, longer ones of bf16 a twentieth (Zen 4).
const MOST_ROWS: usize = 8;

/// Narrow panels that one row takes at once where so many are left, two otherwise: with four, memory is read in as
/// many places, which is faster. 100 M weights take 7.7 to 9.3 ms instead of 9.3 to 10.6 in bf16, 4.4 to 5.2 instead
/// of 5.7 to 6.4 in int8 and 14.5 to 17.6 instead of 15.2 to 18.9 in f32 (Zen 3).
const PANELS_OF_A_ROW: usize = 4;

/// Rows from which passes share what they order, where they do: fewer read several panels at once.
const SHARING_ROWS: usize = 3;

/// Bytes ahead that some more rows prefetch to the level-1 cache: hardware does not look past a
/// page's end. Nearer, they would wait for the level-3 cache; farther, lines would leave the level-1
/// cache before their turn.
const AHEAD: usize = 8 * 1024;

/// Bytes ahead that many rows prefetch to the level-2 cache. Their activations fill the level-1
/// cache, and a line that is ordered only as it is needed there waits for memory: from main memory
/// eight rows of bf16 took 1.2 times as long as with this distance (Zen 4). Fewer rows are bound by
/// the memory itself and this many lines on their way at once slow it down by a third.
const FAR_AHEAD: usize = 16 * 1024;

/// Bytes of a cache line.
const LINE: usize = 64;

/// A register tile: some rows times some panels.
pub(super) trait Tile: Copy {
    /// Vectors of a panel.
    const VECTORS: usize;
    /// Vectors of accumulators that fit the registers.
    const ACCUMULATORS: usize;
    /// Most rows that leave the weights to the hardware's prefetch: so few keep up with memory, and
    /// hints in between cost them a tenth, from main memory and from the level-3 cache (Zen 4). Narrow tiles
    /// have some of them (Zen 3).
    const FEW_ROWS: usize = 3;
    /// Rows from which arithmetic takes longer than reading the weights from main memory.
    const BUSY_ROWS: usize;
    /// Whether from [`SHARING_ROWS`] on passes order their shares of the next panel, see [`Ahead`], instead of what
    /// lies some bytes ahead.
    const IN_SHARES: bool = false;
    /// Whether one row orders what lies two panels on, instead of some bytes: of four panels at once the second
    /// half orders half of the next four.
    const BY_PANELS: bool = false;

    /// Multiplies rows `row..row + R` with `W / VECTORS` panels from `panel` on.
    ///
    /// # Safety
    /// As for [`Job::run`], inside a function with the path's target features.
    unsafe fn tile<const R: usize, const W: usize>(self, panel: usize, row: usize, ahead: Ahead);
}

/// The weights that a pass over panels orders while it runs.
///
/// Narrow panels leave room for few accumulators, so more than six rows pass over them several times. Memory
/// would rest in all passes but the first: with [`Tile::IN_SHARES`] each orders its share of the next panel, from
/// two places at once, since a single stream of hints gets no more than three quarters of what memory gives.
/// 100 M weights in f32 took four rows 30 ms and eight 42 without, 24 and 30 so; one takes 19 (Zen 3). bf16 gains
/// a twentieth, int8 nothing.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    /// Where this hint of a share goes, and the one after it.
    at: [*const u8; 2],
    /// Bytes between two hints of a stream: a line that several hints name costs little.
    step: usize,
    /// Bytes of two panels.
    two_panels: usize,
}

impl Ahead {
    /// For rows without shares: small layers would feel the divisions.
    #[inline(always)]
    fn alone(job: &Job<'_>) -> Self {
        Self {
            at: [std::ptr::null(); 2],
            step: 0,
            two_panels: 2 * job.w.panel_bytes,
        }
    }

    /// For pass `i` of `passes` over `panel`.
    #[inline(always)]
    fn new<T: Tile>(job: &Job<'_>, panel: usize, i: usize, passes: usize) -> Self {
        if !T::IN_SHARES {
            return Self::alone(job);
        }
        // Behind the last panel there is nothing to order.
        let next = (panel + 1).min(job.w.panels() - 1) * job.w.panel_bytes;
        let next = job.w.data.as_ptr().wrapping_add(next);
        let share = |half| next.wrapping_add(job.w.panel_bytes * (2 * i + half) / (2 * passes));
        Self {
            at: [share(0), share(1)],
            step: LINE / passes,
            ..Self::alone(job)
        }
    }

    /// Orders what a tile of `R` rows needs after the line at `at`, if that is of use.
    ///
    /// # Safety
    /// As for [`Simd::prefetch`].
    #[inline(always)]
    pub(super) unsafe fn line<S: Simd, T: Tile, const R: usize>(&mut self, at: *const u8) {
        // SAFETY: the caller's contract; a hint may name any address.
        unsafe {
            if T::IN_SHARES && R >= SHARING_ROWS {
                let [now, then] = self.at;
                S::prefetch(now);
                self.at = [then, now.wrapping_add(self.step)];
            } else if R == 1 && T::BY_PANELS {
                S::prefetch(at.wrapping_add(self.two_panels));
            } else if R >= T::BUSY_ROWS {
                S::prefetch_far(at.wrapping_add(FAR_AHEAD));
            } else if R > T::FEW_ROWS {
                S::prefetch(at.wrapping_add(AHEAD));
            }
        }
    }
}

/// Multiplies all rows, at least one, with some panels.
///
/// # Safety
/// As for [`Tile::tile`].
#[inline(always)]
pub(super) unsafe fn walk<T: Tile>(t: T, job: &Job<'_>, panels: Range<usize>) {
    let rows = job.x.rows();
    let most = (T::ACCUMULATORS / T::VECTORS).min(MOST_ROWS);
    let tiles = rows.div_ceil(most);
    let mut panel = panels.start;
    while panel < panels.end {
        let at_once = at_once::<T>(rows, panels.end - panel);
        if at_once > 1 {
            let ahead = Ahead::alone(job);
            // SAFETY: the rows and panels exist; the rest is the caller's contract.
            unsafe {
                match (rows, at_once) {
                    (1, PANELS_OF_A_ROW) => t.tile::<1, PANELS_OF_A_ROW>(panel, 0, ahead),
                    (1, _) => t.tile::<1, 2>(panel, 0, ahead),
                    _ => t.tile::<2, 2>(panel, 0, ahead),
                }
            }
            panel += at_once;
            continue;
        }
        for i in 0..tiles {
            let row = rows * i / tiles;
            let count = rows * (i + 1) / tiles - row;
            let ahead = Ahead::new::<T>(job, panel, i, tiles);
            // SAFETY: as above.
            unsafe {
                if T::VECTORS == 2 {
                    rows_of::<T, 2>(t, panel, row..row + count, ahead);
                } else {
                    rows_of::<T, 1>(t, panel, row..row + count, ahead);
                }
            }
        }
        panel += 1;
    }
}

/// Panels that all rows take at once where so many are left. A single chain per register waits for itself where
/// panels are narrow, and hardware fetches ahead of each panel by itself.
#[inline(always)]
fn at_once<T: Tile>(rows: usize, left: usize) -> usize {
    match rows {
        _ if T::VECTORS > 1 => 1,
        1 if left >= PANELS_OF_A_ROW => PANELS_OF_A_ROW,
        1 | 2 if left >= 2 => 2,
        _ => 1,
    }
}

/// Enters the tile of one panel for a number of rows.
#[inline(always)]
unsafe fn rows_of<T: Tile, const W: usize>(t: T, panel: usize, rows: Range<usize>, ahead: Ahead) {
    let row = rows.start;
    // SAFETY: the caller's contract.
    unsafe {
        match rows.len() {
            1 => t.tile::<1, W>(panel, row, ahead),
            2 => t.tile::<2, W>(panel, row, ahead),
            3 => t.tile::<3, W>(panel, row, ahead),
            4 => t.tile::<4, W>(panel, row, ahead),
            5 => t.tile::<5, W>(panel, row, ahead),
            6 => t.tile::<6, W>(panel, row, ahead),
            7 if T::ACCUMULATORS > 6 * W => t.tile::<7, W>(panel, row, ahead),
            8 if T::ACCUMULATORS > 6 * W => t.tile::<8, W>(panel, row, ahead),
            _ => {}
        }
    }
}

/// Adds the bias and stores a tile.
///
/// # Safety
/// As for [`Tile::tile`].
#[inline(always)]
pub(super) unsafe fn finish<S: Simd, const R: usize, const W: usize>(
    job: &Job<'_>,
    sums: &[[S::F; W]; R],
    panel: usize,
    row: usize,
) {
    let first = panel * job.w.panel;
    // A store under a mask takes several times as long.
    let is_whole = first + W * LANES <= job.w.outputs;
    for (r, sums) in sums.iter().enumerate() {
        for (j, sum) in sums.iter().enumerate() {
            let output = first + j * LANES;
            let lanes = job.w.outputs.saturating_sub(output).min(LANES);
            // SAFETY: row and output are in range by the caller's contract; the bias covers all
            // panels.
            unsafe {
                let mut sum = *sum;
                if !job.w.bias.is_empty() {
                    sum = S::add(sum, S::load(job.w.bias.as_ptr().add(output)));
                }
                let to = job.y.wrapping_add((row + r) * job.stride + output);
                if is_whole {
                    S::store(to, sum);
                } else if lanes > 0 {
                    S::store_some(to, lanes, sum);
                }
            }
        }
    }
}

/// f32 panels: `[input][output]`.
pub(super) struct Plain<'a> {
    pub(super) job: Job<'a>,
    pub(super) panels: Range<usize>,
}

impl Kernel for Plain<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let tile = PlainTile::<S>(&self.job, PhantomData);
        // SAFETY: the caller's contract.
        unsafe { walk(tile, &self.job, self.panels) }
    }
}

struct PlainTile<'a, S>(&'a Job<'a>, PhantomData<S>);

impl<S> Clone for PlainTile<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for PlainTile<'_, S> {}

impl<S: Simd> Tile for PlainTile<'_, S> {
    const VECTORS: usize = S::PANEL_VECTORS;
    const ACCUMULATORS: usize = if S::PANEL_VECTORS == 2 { 24 } else { 6 };
    // Two rows take two panels at once, which the hardware follows by itself, and faster.
    const FEW_ROWS: usize = if S::PANEL_VECTORS == 2 { 3 } else { 2 };
    const BUSY_ROWS: usize = 6;
    const IN_SHARES: bool = S::PANEL_VECTORS == 1;

    #[inline(always)]
    unsafe fn tile<const R: usize, const W: usize>(
        self,
        panel: usize,
        row: usize,
        mut ahead: Ahead,
    ) {
        let job = self.0;
        let inputs = job.w.inputs;
        let width = job.w.panel;
        // SAFETY: panels and rows exist (the caller's contract); a panel has `inputs` lines.
        unsafe {
            let panels: *const f32 = job.w.data.as_ptr().add(panel * job.w.panel_bytes).cast();
            let x = job.x.values().as_ptr().add(row * inputs);
            let mut sums = [[S::splat(0.0); W]; R];
            for i in 0..inputs {
                let mut w = [S::splat(0.0); W];
                for j in 0..W {
                    let line = j / S::PANEL_VECTORS * inputs * width + i * width;
                    let at = panels.add(line + j % S::PANEL_VECTORS * LANES);
                    ahead.line::<S, Self, R>(at.cast());
                    w[j] = S::load(at);
                }
                add_products::<S, R, W>(&mut sums, x.add(i), inputs, w);
            }
            finish::<S, R, W>(job, &sums, panel, row);
        }
    }
}

/// bf16 panels, `[input / 2][output][2]`, against f32 activations.
pub(super) struct Wide<'a> {
    pub(super) job: Job<'a>,
    pub(super) panels: Range<usize>,
}

impl Kernel for Wide<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let tile = WideTile::<S>(&self.job, PhantomData);
        // SAFETY: the caller's contract.
        unsafe { walk(tile, &self.job, self.panels) }
    }
}

struct WideTile<'a, S>(&'a Job<'a>, PhantomData<S>);

impl<S> Clone for WideTile<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for WideTile<'_, S> {}

impl<S: Simd> Tile for WideTile<'_, S> {
    const VECTORS: usize = S::PANEL_VECTORS;
    const ACCUMULATORS: usize = if S::PANEL_VECTORS == 2 { 20 } else { 6 };
    // Two rows are a tenth faster with hints from the level-3 cache, and no slower from main memory (Zen 3).
    const FEW_ROWS: usize = if S::PANEL_VECTORS == 2 { 3 } else { 0 };
    const BUSY_ROWS: usize = 3;
    const IN_SHARES: bool = S::PANEL_VECTORS == 1;
    const BY_PANELS: bool = S::PANEL_VECTORS == 1;

    #[inline(always)]
    unsafe fn tile<const R: usize, const W: usize>(
        self,
        panel: usize,
        row: usize,
        mut ahead: Ahead,
    ) {
        let job = self.0;
        let (inputs, bytes) = (job.w.inputs, job.w.panel_bytes);
        // SAFETY: panels and rows exist (the caller's contract); a panel has a line of
        // `2 * panel` values for each pair of inputs, the last one padded with zeros.
        unsafe {
            let panels = job.w.data.as_ptr().add(panel * bytes);
            let x = job.x.values().as_ptr().add(row * inputs);
            let mut sums = [[S::splat(0.0); W]; R];
            // The last input of an odd number has no second one, which is not asked in the loop; and second values
            // are loaded when the first are done with. So 12 sums, two weights, an activation and a mask fit 16
            // registers.
            for (pairs, have_second) in [
                (0..inputs / 2, true),
                (inputs / 2..inputs.div_ceil(2), false),
            ] {
                for i in pairs {
                    let mut w = [S::splat(0.0); W];
                    let mut lines = [panels; W];
                    for j in 0..W {
                        let line = j / S::PANEL_VECTORS * bytes + i * job.w.panel * 4;
                        lines[j] = panels.add(line + j % S::PANEL_VECTORS * LANES * 4);
                        ahead.line::<S, Self, R>(lines[j]);
                        w[j] = S::load_bf16_first(lines[j].cast());
                    }
                    add_products::<S, R, W>(&mut sums, x.add(2 * i), inputs, w);
                    if have_second {
                        for j in 0..W {
                            w[j] = S::load_bf16_second(lines[j].cast());
                        }
                        add_products::<S, R, W>(&mut sums, x.add(2 * i + 1), inputs, w);
                    }
                }
            }
            finish::<S, R, W>(job, &sums, panel, row);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{memory::Region, simd::portable::Portable};
    use super::super::{Activations, PackedLinear, SourceType, WeightType, WeightView};
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn passes_order_the_whole_next_panel_between_them() {
        let (inputs, outputs) = (96, 48);
        let weights = WeightView {
            source: SourceType::F32,
            bytes: &vec![0; inputs * outputs * 4],
            rows: outputs,
            cols: inputs,
        };
        let w = PackedLinear::pack(
            &mut Region::default(),
            Isa::Portable,
            WeightType::F32,
            &[weights],
            None,
        )
        .unwrap();
        let job = Job {
            w: &w,
            x: &Activations::default(),
            y: std::ptr::null_mut(),
            stride: outputs,
        };
        let lines = w.panel_bytes / LINE;
        for passes in 1..=4 {
            for (panel, next) in [(0, 1), (1, 2), (2, 2)] {
                let mut named = vec![false; w.panels() * lines];
                for i in 0..passes {
                    let mut ahead = Ahead::new::<PlainTile<'_, Portable>>(&job, panel, i, passes);
                    for _ in 0..lines {
                        let at = ahead.at[0] as usize - w.data.as_ptr() as usize;
                        named[at / LINE] = true;
                        // SAFETY: the portable path needs no features.
                        unsafe {
                            ahead.line::<Portable, PlainTile<'_, Portable>, 4>(w.data.as_ptr());
                        }
                    }
                }
                let found = |panel: usize| {
                    let of = &named[panel * lines..][..lines];
                    of.iter().filter(|named| **named).count()
                };
                // Steps of whole bytes leave out the end of a share.
                assert!(
                    found(next) + 2 * passes > lines,
                    "{passes} passes: {}",
                    found(next)
                );
                assert_eq!(found(next), named.iter().filter(|named| **named).count());
            }
        }
    }
}
