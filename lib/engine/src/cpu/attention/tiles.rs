//! Products by tiles: bf16 keys and values as they are, 16 queries at once.
//!
//! Values are added by blocks of 16 positions, one tile product each, whatever slots they lie in: a
//! product adds up the even and the odd positions of a block apart, so blocks must not be cut. Where a
//! row sees only a part of a block, the others have weight and value zero, which changes no sum.
//!
//! A block of the trunk is the values of a page, for all queries. What a branch sees after its trunk
//! is gathered row by row.

#![expect(unsafe_code, reason = "kernels over raw pages")]

use std::ops::Range;

use super::super::simd::Simd;
use super::super::tiles::{SIDE, Shapes, Unit};
use super::block::{CHUNK, Memory, PAGES, Products, within};
use super::stored::Form;
use super::{Run, Visible, page_of};
use crate::runner::PAGE_TOKENS;

/// Bytes of a word: two bf16 values.
const WORD: usize = 4;
/// Dimensions of a tile of keys.
const DEPTH: usize = 32;

/// Whether heads of `dim` dimensions are whole tiles.
pub(super) fn fits(dim: usize) -> bool {
    dim.is_multiple_of(DEPTH)
}

/// Sums in 0 to 3; queries in 4 and keys in 5; weights in 6 and values in 7.
pub(super) fn shapes(queries: usize) -> Shapes {
    let lines = queries.min(SIDE);
    let sums = (lines, SIDE * WORD);
    let weights = (lines, PAGE_TOKENS / 2 * WORD);
    let (keys, values) = ((SIDE, SIDE * WORD), (PAGE_TOKENS / 2, SIDE * WORD));
    [sums, sums, sums, sums, sums, keys, weights, values]
}

/// Products by a unit whose tiles have these [`shapes`].
pub(super) struct Tiled<U>(pub(super) U);

// SAFETY: the unit's instructions are its own; all else is plain Rust.
unsafe impl<S: Simd, K: Form<S>, U: Unit> Products<S, K> for Tiled<U> {
    const ROOM: usize = SIDE;

    #[inline(always)]
    unsafe fn score(
        &mut self,
        run: &Run<'_>,
        query: &[u32],
        keys: &[*const K],
        (to, stride): (*mut f32, usize),
    ) {
        let words = run.args.kv.shape().head_dim / 2;
        for i in (0..run.task.queries).step_by(SIDE) {
            for (at, keys) in keys.chunks(4).enumerate() {
                // SAFETY: queries and scores have room for a tile more than there are.
                unsafe {
                    let query = query.as_ptr().add(i * words);
                    let to = to.add(i * stride + at * 4 * PAGE_TOKENS);
                    match *keys {
                        [a, b, c, d] => self.scores(query, words, [a, b, c, d], (to, stride)),
                        [a, b, c] => self.scores(query, words, [a, b, c], (to, stride)),
                        [a, b] => self.scores(query, words, [a, b], (to, stride)),
                        _ => self.scores(query, words, [keys[0]], (to, stride)),
                    }
                }
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
        clear_unseen(memory, run.task.queries, chunk);
        let words = run.args.kv.shape().head_dim;
        memory.values.resize(PAGES * PAGE_TOKENS / 2 * words, 0);
        let mut together = Together {
            first: 0,
            values: [std::ptr::null(); PAGES],
            count: 0,
        };
        let seen = memory.visible.iter().map(|row| within(row, chunk).1).max();
        for block in 0..seen.unwrap_or(0).div_ceil(PAGE_TOKENS) {
            let place = block * PAGE_TOKENS / 2 * words;
            let values = match Block::of(&memory.visible, chunk + block * PAGE_TOKENS) {
                Block::Seen => Some(values_of(pages[block], words)),
                Block::Partly(slots) => {
                    let own = &mut memory.values[place..][..PAGE_TOKENS / 2 * words];
                    // SAFETY: the page is there.
                    unsafe { copy(values_of(pages[block], words), own, slots) }
                        .then_some(own.as_ptr())
                }
                Block::Apart => None,
            };
            if let Some(values) = values {
                together.push(block, values);
                continue;
            }
            // SAFETY: the caller's contract.
            unsafe {
                self.add_together(run, memory, &together);
                together.count = 0;
                self.add_apart(run, data, memory, (chunk, block));
            }
        }
        // SAFETY: the caller's contract.
        unsafe { self.add_together(run, memory, &together) }
    }
}

impl<U: Unit> Tiled<U> {
    /// Scores of 16 queries against `P` pages.
    #[inline(always)]
    unsafe fn scores<K, const P: usize>(
        &mut self,
        query: *const u32,
        words: usize,
        keys: [*const K; P],
        (to, stride): (*mut f32, usize),
    ) {
        let Self(unit) = self;
        // SAFETY: the caller's contract; a page begins with a line of 16 pairs for each two dimensions.
        unsafe {
            clear::<U, P>(unit);
            for part in 0..words / SIDE {
                unit.load::<4>(query.add(part * SIDE).cast(), words * WORD);
                let key = |p: usize| keys[p].cast::<u32>().add(part * SIDE * PAGE_TOKENS).cast();
                unit.load::<5>(key(0), PAGE_TOKENS * WORD);
                unit.dot::<0, 4, 5>();
                if P > 1 {
                    unit.load::<5>(key(1), PAGE_TOKENS * WORD);
                    unit.dot::<1, 4, 5>();
                }
                if P > 2 {
                    unit.load::<5>(key(2), PAGE_TOKENS * WORD);
                    unit.dot::<2, 4, 5>();
                }
                if P > 3 {
                    unit.load::<5>(key(3), PAGE_TOKENS * WORD);
                    unit.dot::<3, 4, 5>();
                }
            }
            store::<U, P>(unit, to, PAGE_TOKENS, stride);
        }
    }

    /// Adds the values of some blocks to all queries' sums.
    #[inline(always)]
    unsafe fn add_together(&mut self, run: &Run<'_>, memory: &mut Memory, blocks: &Together) {
        let dim = run.args.kv.shape().head_dim;
        if blocks.count == 0 {
            return;
        }
        for i in (0..run.task.queries).step_by(SIDE) {
            // SAFETY: sums and weights have room for a tile more than there are queries.
            unsafe {
                let sums = memory.sums.as_mut_ptr().add(i * dim);
                let weights = memory.scores.as_ptr().add(i * CHUNK);
                self.add(blocks, weights, sums.cast_const(), sums, dim);
            }
        }
    }

    /// Adds the values of a block to each row's sums, as the row sees it.
    #[inline(always)]
    unsafe fn add_apart<K>(
        &mut self,
        run: &Run<'_>,
        data: &[K],
        memory: &mut Memory,
        (chunk, block): (usize, usize),
    ) {
        let dim = run.args.kv.shape().head_dim;
        memory.own.resize(SIDE * dim, 0.0);
        let mut i = 0;
        while i < run.task.queries {
            let count = run.of_one_row(i).min(SIDE);
            let (from, to) = within(&memory.visible[i], chunk);
            let start = block * PAGE_TOKENS;
            let seen = from.clamp(start, start + PAGE_TOKENS)..to.clamp(start, start + PAGE_TOKENS);
            if !seen.is_empty() {
                // SAFETY: pages of positions that the row sees are there; the rest as above, and what
                // belongs to other rows is not written.
                unsafe {
                    let values = &mut memory.values[..PAGE_TOKENS / 2 * dim];
                    let positions = chunk + seen.start..chunk + seen.end;
                    gather(run, data, values, &memory.visible[i], positions);
                    let blocks = Together {
                        first: block,
                        values: [values.as_ptr(); PAGES],
                        count: 1,
                    };
                    let sums = memory.sums.as_mut_ptr().add(i * dim);
                    let weights = memory.scores.as_ptr().add(i * CHUNK);
                    let own = memory.own.as_mut_ptr();
                    self.add(&blocks, weights, sums.cast_const(), own, dim);
                    sums.copy_from_nonoverlapping(own, count * dim);
                }
            }
            i += count;
        }
    }

    /// Adds the values of some blocks to 16 queries' sums.
    #[inline(always)]
    unsafe fn add(
        &mut self,
        blocks: &Together,
        weights: *const f32,
        from: *const f32,
        to: *mut f32,
        dim: usize,
    ) {
        let mut d = 0;
        while d < dim {
            // SAFETY: the caller's contract.
            unsafe {
                if dim - d >= 4 * SIDE {
                    self.add_some::<4>(blocks, weights, from, to, (dim, d));
                    d += 4 * SIDE;
                } else {
                    self.add_some::<2>(blocks, weights, from, to, (dim, d));
                    d += 2 * SIDE;
                }
            }
        }
    }

    /// The same for `N` vectors of dimensions from `d` on, two or four.
    #[inline(always)]
    unsafe fn add_some<const N: usize>(
        &mut self,
        blocks: &Together,
        weights: *const f32,
        from: *const f32,
        to: *mut f32,
        (dim, d): (usize, usize),
    ) {
        let Self(unit) = self;
        // SAFETY: the caller's contract.
        unsafe {
            let sums = |vector: usize| from.add(d + vector * SIDE).cast::<u8>();
            unit.load::<0>(sums(0), dim * WORD);
            unit.load::<1>(sums(1), dim * WORD);
            if N == 4 {
                unit.load::<2>(sums(2), dim * WORD);
                unit.load::<3>(sums(3), dim * WORD);
            }
            for (i, values) in blocks.values[..blocks.count].iter().enumerate() {
                let weights = weights.add((blocks.first + i) * PAGE_TOKENS / 2);
                unit.load::<6>(weights.cast(), CHUNK * WORD);
                let values = |vector: usize| values.add(d + vector * SIDE).cast::<u8>();
                unit.load::<7>(values(0), dim * WORD);
                unit.dot::<0, 6, 7>();
                unit.load::<7>(values(1), dim * WORD);
                unit.dot::<1, 6, 7>();
                if N == 4 {
                    unit.load::<7>(values(2), dim * WORD);
                    unit.dot::<2, 6, 7>();
                    unit.load::<7>(values(3), dim * WORD);
                    unit.dot::<3, 6, 7>();
                }
            }
            store::<U, N>(unit, to.add(d), SIDE, dim);
        }
    }
}

/// Blocks that follow each other, of which all rows see what they see of them in the trunk.
struct Together {
    /// The first one, in the chunk.
    first: usize,
    /// Values of each: a line of `dim` pairs for each two positions.
    values: [*const u32; PAGES],
    count: usize,
}

impl Together {
    /// Adds the block after those that there are.
    fn push(&mut self, block: usize, values: *const u32) {
        self.first = block - self.count;
        self.values[self.count] = values;
        self.count += 1;
    }
}

/// What the queries of a task see of a block of positions.
enum Block {
    /// All see all of it, in the trunk.
    Seen,
    /// What they see lies in these slots of one page.
    Partly(Range<usize>),
    /// Some see what lies elsewhere, or none sees any.
    Apart,
}

impl Block {
    /// The block of the positions from `first` on.
    fn of(visible: &[Visible], first: usize) -> Self {
        let end = first + PAGE_TOKENS;
        let (mut low, mut high, mut by_all) = (end, first, true);
        for row in visible {
            let (from, to) = (row.start.max(first), row.count.min(end));
            by_all &= from == first && to == end;
            if from >= to {
                continue;
            }
            if to > row.trunk {
                return Self::Apart;
            }
            (low, high) = (low.min(from), high.max(to));
        }
        if low >= high {
            Self::Apart
        } else if by_all {
            Self::Seen
        } else {
            Self::Partly(low - first..high - first)
        }
    }
}

/// Weights of a chunk that were not made are zero.
#[inline(always)]
fn clear_unseen(memory: &mut Memory, queries: usize, chunk: usize) {
    for (i, visible) in memory.visible[..queries].iter().enumerate() {
        let weights = &mut memory.scores[i * CHUNK..][..CHUNK / 2];
        let (low, high) = within(visible, chunk);
        if low >= high {
            weights.fill(0.0);
        } else {
            weights[..low / PAGE_TOKENS * PAGE_TOKENS / 2].fill(0.0);
            weights[high.next_multiple_of(PAGE_TOKENS) / 2..].fill(0.0);
        }
    }
}

/// First pair of values of a page.
fn values_of<K>(page: *const K, dim: usize) -> *const u32 {
    page.wrapping_add(PAGE_TOKENS * dim).cast()
}

/// Copies the values of these slots of a page, and zeros for the others. Returns whether all are finite:
/// only then may rows that do not see them give them the weight zero.
///
/// # Safety
/// `from` must be valid for a page's values.
#[inline(always)]
unsafe fn copy(from: *const u32, to: &mut [u32], slots: Range<usize>) -> bool {
    const EXPONENT: u32 = 0x7f80;
    let dim = to.len() / (PAGE_TOKENS / 2);
    let mut all = true;
    for (pair, to) in to.chunks_exact_mut(dim).enumerate() {
        let [low, high] = [0, 1].map(|half| slots.contains(&(2 * pair + half)));
        let mask = if low { 0xffff } else { 0 } | if high { 0xffff << 16 } else { 0 };
        for (d, to) in to.iter_mut().enumerate() {
            // SAFETY: the caller's contract.
            *to = unsafe { from.add(pair * dim + d).read() } & mask;
            all &= *to & EXPONENT != EXPONENT && (*to >> 16) & EXPONENT != EXPONENT;
        }
    }
    all
}

/// Gathers the values of these positions of a block that a row sees, and zeros for the others.
#[inline(always)]
fn gather<K>(
    run: &Run<'_>,
    data: &[K],
    to: &mut [u32],
    visible: &Visible,
    positions: Range<usize>,
) {
    let dim = to.len() / (PAGE_TOKENS / 2);
    let mut slots = visible.slots(positions.start);
    let first = positions.start / PAGE_TOKENS * PAGE_TOKENS;
    for (pair, to) in to.chunks_exact_mut(dim).enumerate() {
        // The line of a slot, and the bits by which its half lies above the other.
        let mut next = |position| {
            let slot = positions.contains(&position).then(|| slots.next())??;
            let (page, offset) = page_of(slot);
            let values = values_of(data[run.block(page)..].as_ptr(), dim);
            // SAFETY: the pages of what a row sees are there, and have a line for each two slots.
            let line = unsafe { std::slice::from_raw_parts(values.add(offset / 2 * dim), dim) };
            Some((line, offset % 2 * 16))
        };
        let position = first + 2 * pair;
        match [next(position), next(position + 1)] {
            [None, None] => to.fill(0),
            [Some((line, shift)), None] => {
                let halves = to.iter_mut().zip(line);
                halves.for_each(|(to, line)| *to = line >> shift & 0xffff);
            }
            [None, Some((line, shift))] => {
                let halves = to.iter_mut().zip(line);
                halves.for_each(|(to, line)| *to = line >> shift << 16);
            }
            [Some((low, down)), Some((high, up))] => {
                let halves = to.iter_mut().zip(low.iter().zip(high));
                halves.for_each(|(to, (low, high))| {
                    *to = low >> down & 0xffff | high >> up << 16;
                });
            }
        }
    }
}

/// Clears the first `N` sums.
#[inline(always)]
unsafe fn clear<U: Unit, const N: usize>(unit: &mut U) {
    // SAFETY: the caller's contract.
    unsafe {
        unit.zero::<0>();
        if N > 1 {
            unit.zero::<1>();
        }
        if N > 2 {
            unit.zero::<2>();
        }
        if N > 3 {
            unit.zero::<3>();
        }
    }
}

/// Stores the first `N` sums side by side, `step` values from one to the next.
#[inline(always)]
unsafe fn store<U: Unit, const N: usize>(unit: &mut U, to: *mut f32, step: usize, stride: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        unit.store::<0>(to.cast(), stride * WORD);
        if N > 1 {
            unit.store::<1>(to.add(step).cast(), stride * WORD);
        }
        if N > 2 {
            unit.store::<2>(to.add(2 * step).cast(), stride * WORD);
        }
        if N > 3 {
            unit.store::<3>(to.add(3 * step).cast(), stride * WORD);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::super::super::simd::avx512::Avx512;
    use super::super::super::tiles::Tiles;
    use super::super::Run;
    use super::super::block::attend;
    use super::super::dot::Dotted;
    use super::{Tiled, shapes};

    /// Computes a task over bf16 pages.
    ///
    /// # Safety
    /// As for [`attend`], on a machine with AMX that lets this process use it, with heads that
    /// [`super::fits`].
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
    pub(in super::super) unsafe fn enter(run: &Run<'_>, data: &[u16]) {
        // SAFETY: the caller's contract.
        unsafe {
            let unit = Tiles::configured(&shapes(run.task.queries));
            attend::<Avx512, Dotted, _>(run, Dotted::all(data), Tiled(unit));
        }
    }
}
#[cfg(target_arch = "x86_64")]
pub(super) use x86::enter;
