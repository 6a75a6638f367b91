//! Products by vectors: tiles of queries and pages in registers, any rest query by query.

#![expect(
    unsafe_code,
    reason = "kernels over raw pages, entered behind run-time detection"
)]

use super::super::simd::{LANES, Simd};
use super::block::{CHUNK, Memory, PAGES, Products, within};
use super::stored::Stored;
use super::{Run, page_of};
use crate::runner::PAGE_TOKENS;

/// Products by the vectors of a path.
pub(super) struct Vectors;

// SAFETY: uses `S` and the store's arithmetic only.
unsafe impl<S: Simd, K: Stored<S>> Products<S, K> for Vectors {
    const ROOM: usize = 0;

    #[inline(always)]
    unsafe fn score(
        &mut self,
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

    #[inline(always)]
    unsafe fn add_values(
        &mut self,
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
