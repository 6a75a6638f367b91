//! The attention of some queries over one KV head.
//!
//! Per chunk of positions: scores of all queries against the chunk's pages; per query, the scores
//! of its tail brought into order, softmax; then all queries' sums over the values that all of
//! them see, and each query's own rest. A query's sums run over pairs of positions in order
//! throughout.

#![expect(
    unsafe_code,
    reason = "kernels over raw pages, entered behind run-time detection"
)]

use std::cell::RefCell;

use super::super::simd::{LANES, Simd};
use super::stored::Stored;
use super::{Run, Visible, page_of};
use crate::runner::PAGE_TOKENS;

/// Positions of a softmax chunk.
const CHUNK: usize = 128;
/// Pages of a chunk.
const PAGES: usize = CHUNK / PAGE_TOKENS;
/// Slots of the pages that a tail of 64 slots can touch.
const TAIL: usize = 80;

/// Memory of a task, kept per thread.
#[derive(Default)]
struct Memory {
    /// Scaled queries in the form that the store's arithmetic wants.
    query: Vec<u32>,
    /// Scores, then weights in their form, of a chunk: [`CHUNK`] per query, by position.
    scores: Vec<f32>,
    /// Scores of the tail: [`TAIL`] per query, by slot.
    tail: Vec<f32>,
    /// Weighted sums of values, `padded` each.
    sums: Vec<f32>,
    /// Sums of weights, one per lane.
    totals: Vec<f32>,
    /// Largest score so far.
    largest: Vec<f32>,
    visible: Vec<Visible>,
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

/// Computes a task.
///
/// # Safety
/// The shapes must fit, `out` must be valid for the task's part, the path's features enabled.
#[inline(always)]
pub(super) unsafe fn attend<S: Simd, K: Stored<S>>(run: &Run<'_>, data: &[K]) {
    let mut memory = MEMORY.take();
    // SAFETY: the caller's contract.
    unsafe {
        prepare::<S, K>(run, &mut memory);
        let first = memory.visible.iter().map(|v| v.start).min().unwrap_or(0);
        let last = memory.visible.iter().map(|v| v.count).max().unwrap_or(0);
        let base = tail_scores::<S, K>(run, data, &mut memory);
        for chunk in (first / CHUNK * CHUNK..last).step_by(CHUNK) {
            let keys = trunk_pages(run, data, &memory.visible, chunk);
            let count = keys.iter().take_while(|page| !page.is_null()).count();
            let scores = memory.scores.as_mut_ptr();
            score::<S, K>(run, &memory.query, &keys[..count], (scores, CHUNK));
            for i in 0..run.task.queries {
                weigh::<S, K>(
                    &mut memory,
                    i,
                    chunk,
                    (base, run.args.kv.shape().padded_dim()),
                );
            }
            add_values::<S, K>(run, data, &mut memory, (chunk, &keys));
        }
        finish::<S>(run, &memory);
    }
    MEMORY.set(memory);
}

/// Clears the memory and fills in the queries.
#[inline(always)]
unsafe fn prepare<S: Simd, K: Stored<S>>(run: &Run<'_>, memory: &mut Memory) {
    let (n, shape) = (run.task.queries, run.args.kv.shape());
    let dim = shape.head_dim;
    memory.query.clear();
    memory.visible.clear();
    for i in 0..n {
        let (row, head) = run.place(i);
        let at = row * run.args.stride + run.args.query + head * dim;
        let query = &run.args.rows[at..][..dim];
        // SAFETY: the caller's contract.
        unsafe { K::put_query(&mut memory.query, query, run.args.scale) };
        memory.visible.push(run.visible(i));
    }
    memory.scores.resize(n * CHUNK, 0.0);
    memory.tail.resize(n * TAIL, 0.0);
    for (cleared, len, with) in [
        (&mut memory.sums, n * shape.padded_dim(), 0.0),
        (&mut memory.totals, n * LANES, 0.0),
        (&mut memory.largest, n, f32::NEG_INFINITY),
    ] {
        cleared.clear();
        cleared.resize(len, with);
    }
}

/// Scores of the tail's slots; returns the slot of the first one.
#[inline(always)]
unsafe fn tail_scores<S: Simd, K: Stored<S>>(
    run: &Run<'_>,
    data: &[K],
    memory: &mut Memory,
) -> usize {
    let Some(trunk) = memory.visible.iter().find(|v| v.mask != 0).map(|v| v.trunk) else {
        return 0;
    };
    let mask = memory.visible.iter().fold(0, |mask, v| mask | v.mask);
    let end = trunk + 64 - mask.leading_zeros() as usize;
    let (first, last) = (page_of(trunk).0, page_of(end - 1).0);
    let mut keys = [std::ptr::null(); TAIL / PAGE_TOKENS];
    for (key, page) in keys.iter_mut().zip(first..=last) {
        *key = data[run.block(page)..].as_ptr();
    }
    let to = (memory.tail.as_mut_ptr(), TAIL);
    // SAFETY: the caller's contract; `tail` has room for all pages of a tail.
    unsafe { score::<S, K>(run, &memory.query, &keys[..=last - first], to) };
    first * PAGE_TOKENS
}

/// Start of each page of the chunk that holds trunk positions some query sees; null from the
/// first page that does not.
fn trunk_pages<K>(
    run: &Run<'_>,
    data: &[K],
    visible: &[Visible],
    chunk: usize,
) -> [*const K; PAGES] {
    let end = visible
        .iter()
        .map(|v| v.count.min(v.trunk))
        .max()
        .unwrap_or(0);
    let mut pages = [std::ptr::null(); PAGES];
    for (i, page) in pages.iter_mut().enumerate() {
        let first = chunk + i * PAGE_TOKENS;
        if first < end {
            *page = data[run.block(page_of(first).0)..].as_ptr();
        }
    }
    pages
}

/// Scores of all queries against some pages, at `to.0 + query * to.1`.
#[inline(always)]
unsafe fn score<S: Simd, K: Stored<S>>(
    run: &Run<'_>,
    query: &[u32],
    keys: &[*const K],
    to: (*mut f32, usize),
) {
    let (n, dim) = (run.task.queries, run.args.kv.shape().head_dim);
    let is_wide = S::PANEL_VECTORS == 2;
    let mut i = 0;
    while i < n {
        // SAFETY: queries i.. exist and so do the pages.
        unsafe {
            let query = query.as_ptr().add(i * K::words(dim));
            let to = (to.0.add(i * to.1), to.1);
            i += match n - i {
                8.. if is_wide => score_tile::<S, K, 8, 2>(query, dim, keys, to),
                6.. if !is_wide => score_tile::<S, K, 6, 1>(query, dim, keys, to),
                4.. if !is_wide => score_tile::<S, K, 4, 1>(query, dim, keys, to),
                4.. => score_tile::<S, K, 4, 2>(query, dim, keys, to),
                2.. => score_tile::<S, K, 2, 2>(query, dim, keys, to),
                _ => score_tile::<S, K, 1, 4>(query, dim, keys, to),
            };
        }
    }
}

/// Scores of `T` queries against some pages, `P` pages at a time; returns `T`.
#[inline(always)]
unsafe fn score_tile<S: Simd, K: Stored<S>, const T: usize, const P: usize>(
    query: *const u32,
    dim: usize,
    keys: &[*const K],
    (to, stride): (*mut f32, usize),
) -> usize {
    let mut page = 0;
    while page < keys.len() {
        // SAFETY: the caller's contract.
        unsafe {
            if keys.len() - page >= P {
                let sums = K::products::<T, P>(query, dim, &keys[page..]);
                for t in 0..T {
                    for p in 0..P {
                        S::store(to.add(t * stride + (page + p) * LANES), sums[t][p]);
                    }
                }
                page += P;
            } else {
                let sums = K::products::<T, 1>(query, dim, &keys[page..]);
                for t in 0..T {
                    S::store(to.add(t * stride + page * LANES), sums[t][0]);
                }
                page += 1;
            }
        }
    }
    T
}

/// Turns query `i`'s scores of a chunk into weights, and rescales its sums.
#[inline(always)]
unsafe fn weigh<S: Simd, K: Stored<S>>(
    memory: &mut Memory,
    i: usize,
    chunk: usize,
    (base, padded): (usize, usize),
) {
    let visible = memory.visible[i];
    let (low, high) = within(&visible, chunk);
    if low >= high {
        return;
    }
    let scores = &mut memory.scores[i * CHUNK..][..CHUNK];
    let tail = visible.trunk.max(chunk + low);
    if tail < chunk + high {
        let slots = visible.slots(tail);
        for (score, slot) in scores[tail - chunk..high].iter_mut().zip(slots) {
            *score = memory.tail[i * TAIL + slot - base];
        }
    }
    let (from, to) = (low / LANES * LANES, high.next_multiple_of(LANES));
    scores[from..low].fill(f32::NEG_INFINITY);
    scores[high..to].fill(f32::NEG_INFINITY);
    // SAFETY: all vectors lie in the chunk, totals have a vector and sums whole vectors a query.
    unsafe {
        let scores = scores.as_mut_ptr();
        let mut top = S::load(scores.add(from));
        for at in (from + LANES..to).step_by(LANES) {
            top = S::max(top, S::load(scores.add(at)));
        }
        let old = memory.largest[i];
        let new = old.max(S::largest(top));
        memory.largest[i] = new;
        let total = memory.totals.as_mut_ptr().add(i * LANES);
        let mut sum = S::load(total);
        if new.to_bits() != old.to_bits() {
            let factor = S::exp(S::splat(old - new));
            sum = S::mul(sum, factor);
            let sums = memory.sums.as_mut_ptr().add(i * padded);
            for d in (0..padded).step_by(LANES) {
                S::store(sums.add(d), S::mul(S::load(sums.add(d)), factor));
            }
        }
        for at in (from..to).step_by(LANES) {
            let weight = S::exp(S::sub(S::load(scores.add(at)), S::splat(new)));
            sum = S::add(sum, weight);
            K::put_weights(scores, at, weight);
        }
        S::store(total, sum);
    }
}

/// Positions of the chunk that a row sees, relative to the chunk.
fn within(visible: &Visible, chunk: usize) -> (usize, usize) {
    let clip = |position: usize| position.saturating_sub(chunk).min(CHUNK);
    (clip(visible.start), clip(visible.count))
}

/// Adds the weighted values of a chunk to all queries' sums.
#[inline(always)]
unsafe fn add_values<S: Simd, K: Stored<S>>(
    run: &Run<'_>,
    data: &[K],
    memory: &mut Memory,
    (chunk, pages): (usize, &[*const K; PAGES]),
) {
    let n = run.task.queries;
    let mut i = 0;
    while i < n {
        let together = match n - i {
            left if left >= 6 && K::SIX => 6,
            left if left >= 4 => 4,
            left if left >= 2 => 2,
            _ => 1,
        };
        // Positions that all of these queries see and that lie in the trunk.
        let (mut low, mut high) = (0, CHUNK);
        for visible in &memory.visible[i..i + together] {
            let (from, to) = within(visible, chunk);
            low = low.max(from);
            high = high.min(to).min(visible.trunk.saturating_sub(chunk));
        }
        // Whole pairs: a pair that some query sees half of is each query's own.
        let low = low.next_multiple_of(2);
        let high = (high / 2 * 2).max(low);
        // SAFETY: the pages of positions that a query sees are there.
        unsafe {
            for q in i..i + together {
                let (from, to) = within(&memory.visible[q], chunk);
                add_one::<S, K>(run, data, memory, (q, chunk, from..to.min(low)));
            }
            let tile = ValueTile {
                sums: memory.sums.as_mut_ptr(),
                weights: memory.scores.as_ptr(),
                pages,
                dim: run.args.kv.shape().head_dim,
                padded: run.args.kv.shape().padded_dim(),
                slots: low..high,
            };
            match together {
                6 => tile.all::<S, 6>(i),
                4 => tile.all::<S, 4>(i),
                2 => tile.all::<S, 2>(i),
                _ => tile.all::<S, 1>(i),
            }
            for q in i..i + together {
                let (from, to) = within(&memory.visible[q], chunk);
                add_one::<S, K>(run, data, memory, (q, chunk, from.max(high)..to));
            }
        }
        i += together;
    }
}

/// Adds the values of some positions to one query's sums, wherever their slots are. A pair of
/// positions that the range cuts is one that the query sees half of.
#[inline(always)]
unsafe fn add_one<S: Simd, K: Stored<S>>(
    run: &Run<'_>,
    data: &[K],
    memory: &mut Memory,
    (query, chunk, positions): (usize, usize, std::ops::Range<usize>),
) {
    if positions.is_empty() {
        return;
    }
    let shape = run.args.kv.shape();
    let (dim, padded) = (shape.head_dim, shape.padded_dim());
    let mut slots = memory.visible[query].slots(chunk + positions.start);
    let mut next = || {
        let (page, offset) = page_of(slots.next()?);
        let at = run.block(page) + PAGE_TOKENS * dim;
        Some((data[at..][..PAGE_TOKENS * padded].as_ptr(), offset))
    };
    for pair in (positions.start / 2 * 2..positions.end).step_by(2) {
        let first = if positions.contains(&pair) {
            next()
        } else {
            None
        };
        let second = if positions.contains(&(pair + 1)) {
            next()
        } else {
            None
        };
        // SAFETY: a slot has `padded` values, and so has a query's sum.
        unsafe {
            let weights = K::weights(memory.scores.as_ptr().add(query * CHUNK), pair);
            let sums = memory.sums.as_mut_ptr().add(query * padded);
            for d in (0..padded).step_by(LANES) {
                let values = K::gather([first, second], padded, d);
                S::store(sums.add(d), K::add(S::load(sums.add(d)), weights, values));
            }
        }
    }
}

/// Pairs of positions that several queries see, in the slots of the same numbers.
struct ValueTile<'a, K> {
    sums: *mut f32,
    weights: *const f32,
    pages: &'a [*const K; PAGES],
    dim: usize,
    padded: usize,
    slots: std::ops::Range<usize>,
}

impl<K> ValueTile<'_, K> {
    /// Adds the values to `T` queries from `first` on.
    #[inline(always)]
    unsafe fn all<S: Simd, const T: usize>(&self, first: usize)
    where
        K: Stored<S>,
    {
        if self.slots.is_empty() {
            return;
        }
        let mut d = 0;
        // SAFETY: the caller's contract; blocks stay within the padded dimensions.
        unsafe {
            while d < self.padded {
                let left = (self.padded - d) / LANES;
                if left >= 4 && S::PANEL_VECTORS == 2 {
                    self.part::<S, T, 4>(first, d);
                    d += 4 * LANES;
                } else if left >= 2 && S::PANEL_VECTORS == 2 {
                    self.part::<S, T, 2>(first, d);
                    d += 2 * LANES;
                } else {
                    self.part::<S, T, 1>(first, d);
                    d += LANES;
                }
            }
        }
    }

    /// The same for `N` vectors of dimensions from `d` on.
    #[inline(always)]
    unsafe fn part<S: Simd, const T: usize, const N: usize>(&self, first: usize, d: usize)
    where
        K: Stored<S>,
    {
        // SAFETY: as above.
        unsafe {
            let to = self.sums.add(first * self.padded + d);
            let weights = self.weights.add(first * CHUNK);
            let mut sums = [[S::splat(0.0); N]; T];
            for t in 0..T {
                for v in 0..N {
                    sums[t][v] = S::load(to.add(t * self.padded + v * LANES));
                }
            }
            for slot in self.slots.clone().step_by(2) {
                let (page, offset) = page_of(slot);
                let from = self.pages[page].add(PAGE_TOKENS * self.dim);
                let mut values = [K::values(from, offset, self.padded, d); N];
                for v in 1..N {
                    values[v] = K::values(from, offset, self.padded, d + v * LANES);
                }
                for t in 0..T {
                    let weights = K::weights(weights.add(t * CHUNK), slot);
                    for v in 0..N {
                        sums[t][v] = K::add(sums[t][v], weights, values[v]);
                    }
                }
            }
            for t in 0..T {
                for v in 0..N {
                    S::store(to.add(t * self.padded + v * LANES), sums[t][v]);
                }
            }
        }
    }
}

/// Divides by the sums of weights and writes the output.
#[inline(always)]
unsafe fn finish<S: Simd>(run: &Run<'_>, memory: &Memory) {
    let shape = run.args.kv.shape();
    let (dim, padded) = (shape.head_dim, shape.padded_dim());
    for i in 0..run.task.queries {
        let (row, head) = run.place(i);
        // SAFETY: the output has all rows and heads; stores stop at the head's end.
        unsafe {
            let total = S::sum(S::load(memory.totals.as_ptr().add(i * LANES)));
            let share = S::splat(1.0 / total);
            let to = run.out.add((row * run.args.heads + head) * dim);
            for d in (0..dim).step_by(LANES) {
                let sum = S::load(memory.sums.as_ptr().add(i * padded + d));
                S::store_some(to.add(d), LANES.min(dim - d), S::mul(sum, share));
            }
        }
    }
}
