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
use super::stored::Form;
use super::{Run, Visible, page_of};
use crate::runner::PAGE_TOKENS;

/// Positions of a softmax chunk.
pub(super) const CHUNK: usize = 128;
/// Pages of a chunk.
pub(super) const PAGES: usize = CHUNK / PAGE_TOKENS;
/// Slots of the pages that a tail of 64 slots can touch.
const TAIL: usize = 80;

/// The products of queries and keys, and of weights and values.
///
/// # Safety
/// Functions must run where `S` and the products' own instructions may.
pub(super) unsafe trait Products<S: Simd, K: Form<S>> {
    /// Queries that memory must have room for beside those of a task.
    const ROOM: usize;

    /// Scores of all queries against some pages, at `to.0 + query * to.1`.
    unsafe fn score(
        &mut self,
        run: &Run<'_>,
        query: &[u32],
        keys: &[*const K],
        to: (*mut f32, usize),
    );
    /// Adds the weighted values of a chunk to all queries' sums. Pages are null from the first one on
    /// of which no query sees a position of the trunk.
    unsafe fn add_values(
        &mut self,
        run: &Run<'_>,
        data: &[K],
        memory: &mut Memory,
        chunk: (usize, &[*const K; PAGES]),
    );
}

/// Memory of a task, kept per thread.
#[derive(Default)]
pub(super) struct Memory {
    /// Scaled queries in the form that the store's arithmetic wants.
    query: Vec<u32>,
    /// Scores, then weights in their form, of a chunk: [`CHUNK`] per query, by position.
    pub(super) scores: Vec<f32>,
    /// Scores of the tail: [`TAIL`] per query, by slot.
    tail: Vec<f32>,
    /// Weighted sums of values, `padded` each.
    pub(super) sums: Vec<f32>,
    /// Sums of weights, one per lane.
    totals: Vec<f32>,
    /// Largest score so far.
    largest: Vec<f32>,
    pub(super) visible: Vec<Visible>,
    /// Values of a chunk that are not read where they lie.
    pub(super) values: Vec<u32>,
    /// Sums of a row that is computed by itself.
    pub(super) own: Vec<f32>,
}

thread_local! {
    static MEMORY: RefCell<Memory> = RefCell::default();
}

/// Computes a task.
///
/// # Safety
/// The shapes must fit, `out` must be valid for the task's part, the path's features enabled.
#[inline(always)]
pub(super) unsafe fn attend<S: Simd, K: Form<S>, P: Products<S, K>>(
    run: &Run<'_>,
    data: &[K],
    mut products: P,
) {
    let mut memory = MEMORY.take();
    // SAFETY: the caller's contract.
    unsafe {
        prepare::<S, K>(run, &mut memory, P::ROOM);
        let first = memory.visible.iter().map(|v| v.start).min().unwrap_or(0);
        let last = memory.visible.iter().map(|v| v.count).max().unwrap_or(0);
        let base = tail_scores::<S, K, P>(run, data, &mut memory, &mut products);
        for chunk in (first / CHUNK * CHUNK..last).step_by(CHUNK) {
            let keys = trunk_pages(run, data, &memory.visible, chunk);
            let count = keys.iter().take_while(|page| !page.is_null()).count();
            let scores = memory.scores.as_mut_ptr();
            products.score(run, &memory.query, &keys[..count], (scores, CHUNK));
            for i in 0..run.task.queries {
                weigh::<S, K>(
                    &mut memory,
                    i,
                    chunk,
                    (base, run.args.kv.shape().padded_dim()),
                );
            }
            products.add_values(run, data, &mut memory, (chunk, &keys));
        }
        finish::<S>(run, &memory);
    }
    MEMORY.set(memory);
}

/// Clears the memory and fills in the queries.
#[inline(always)]
unsafe fn prepare<S: Simd, K: Form<S>>(run: &Run<'_>, memory: &mut Memory, room: usize) {
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
    memory.query.resize((n + room) * K::words(dim), 0);
    memory.scores.resize((n + room) * CHUNK, 0.0);
    memory.tail.resize((n + room) * TAIL, 0.0);
    for (cleared, len, with) in [
        (&mut memory.sums, (n + room) * shape.padded_dim(), 0.0),
        (&mut memory.totals, n * LANES, 0.0),
        (&mut memory.largest, n, f32::NEG_INFINITY),
    ] {
        cleared.clear();
        cleared.resize(len, with);
    }
}

/// Scores of the tail's slots; returns the slot of the first one.
#[inline(always)]
unsafe fn tail_scores<S: Simd, K: Form<S>, P: Products<S, K>>(
    run: &Run<'_>,
    data: &[K],
    memory: &mut Memory,
    products: &mut P,
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
    unsafe { products.score(run, &memory.query, &keys[..=last - first], to) };
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

/// Turns query `i`'s scores of a chunk into weights, and rescales its sums.
#[inline(always)]
unsafe fn weigh<S: Simd, K: Form<S>>(
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
pub(super) fn within(visible: &Visible, chunk: usize) -> (usize, usize) {
    let clip = |position: usize| position.saturating_sub(chunk).min(CHUNK);
    (clip(visible.start), clip(visible.count))
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
