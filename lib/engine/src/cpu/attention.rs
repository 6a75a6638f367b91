//! Attention over KV pages.
//!
//! A row sees a sequence of tokens: everything before it, or in a tree the trunk and its
//! ancestors, of which a sliding window keeps the latest. The i-th token it sees has position i,
//! so the result is defined by positions alone: scores lane by lane over positions, softmax
//! online over chunks of 128 positions (Milakov and Gimelshein 2018), values added pair by pair of
//! positions, or where tiles do it by blocks of 16.
//!
//! Invariant: a row's bits depend on the keys and values it sees, in order, and on nothing else:
//! not on the slots and pages they lie in, nor on what stands between them, nor on other rows.
//!
//! All queries of a KV head, of all rows, go through its keys and values together, so a page is
//! read once for rows times query heads.

#![expect(
    unsafe_code,
    reason = "tasks write disjoint parts of one output from several threads"
)]

mod block;
#[cfg(target_arch = "x86_64")]
mod dot;
mod stored;
#[cfg_attr(
    not(any(test, target_arch = "x86_64")),
    expect(dead_code, reason = "other processors have no such unit")
)]
mod tiles;
mod vectors;

use super::Cpu;
use super::simd::{Kernel, Simd, dispatch};
use super::store::{KvData, KvStore, KvType};
use crate::isa::Isa;
use crate::runner::{PAGE_TOKENS, PageIndex, SequenceRows, StepPlan, Tail};

/// Inputs of one layer's attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionArgs<'a> {
    /// The step: which rows belong to which sequence, its pages and what each row sees.
    pub plan: &'a StepPlan,
    /// KV of earlier steps and, already written, of this one.
    pub kv: &'a KvStore,
    /// Layer of `kv`.
    pub layer: usize,
    /// Rows that hold the rotated queries, `heads * head_dim` values from column `query`.
    pub rows: &'a [f32],
    /// Values from one row to the next.
    pub stride: usize,
    /// Column of the first query.
    pub query: usize,
    /// Query heads, a multiple of the KV heads.
    pub heads: usize,
    /// Factor of the scores, usually `head_dim^-0.5`.
    pub scale: f32,
    /// Each row sees only this many latest tokens, itself included.
    pub window: Option<usize>,
}

/// Memory that attention reuses from call to call.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    tasks: Vec<Task>,
}

/// Some queries of one KV head of one sequence. Query i belongs to row `i / group` and is the
/// `i % group`-th of the heads that share the KV head.
#[derive(Clone, Copy, Debug)]
struct Task {
    sequence: usize,
    /// The sequence's first row in the step.
    first_row: usize,
    kv_head: usize,
    first: usize,
    queries: usize,
}

/// What one row sees.
#[derive(Clone, Copy, Debug)]
struct Visible {
    /// First position within the window.
    start: usize,
    /// Number of tokens, those before the window included.
    count: usize,
    /// Positions below this one lie in the slot of the same number.
    trunk: usize,
    /// Slots after the trunk that are seen, in order of position.
    mask: u64,
}

impl Visible {
    /// What row `i` of the sequence sees.
    fn of(sequence: &SequenceRows, ancestors: &[u64], i: usize, window: Option<usize>) -> Self {
        let slot = sequence.first_slot as usize + i;
        let (count, trunk, mask) = match &sequence.tail {
            Tail::Causal => (slot + 1, slot + 1, 0),
            Tail::Tree { trunk_len, masks } => {
                let trunk = *trunk_len as usize;
                assert!(
                    trunk <= slot && slot - trunk < 64,
                    "a tail has at most 64 slots"
                );
                let mask = ancestors[masks.start + i] | 1 << (slot - trunk);
                (trunk + mask.count_ones() as usize, trunk, mask)
            }
        };
        let start = window.map_or(0, |window| count.saturating_sub(window.max(1)));
        Self {
            start,
            count,
            trunk,
            mask,
        }
    }

    /// Slots of the positions from `position` on.
    fn slots(&self, position: usize) -> Slots {
        let mut mask = self.mask;
        for _ in self.trunk..position {
            mask &= mask.wrapping_sub(1);
        }
        Slots {
            position,
            trunk: self.trunk,
            mask,
        }
    }
}

/// Slots of consecutive positions.
struct Slots {
    position: usize,
    trunk: usize,
    mask: u64,
}

impl Iterator for Slots {
    type Item = usize;

    #[inline(always)]
    fn next(&mut self) -> Option<usize> {
        if self.position < self.trunk {
            self.position += 1;
            return Some(self.position - 1);
        }
        let slot = self.trunk + self.mask.trailing_zeros() as usize;
        self.mask &= self.mask.checked_sub(1)?;
        Some(slot)
    }
}

/// Below this many multiply-adds a second thread costs more than it brings.
const WORTH_SHARING: usize = 1 << 17;

/// Most queries of a task: their scores of a chunk fill half a level-1 cache.
const MOST_QUERIES: usize = 48;

impl Cpu {
    /// Whether attention over keys and values kept so is computed by tiles, which has other last bits.
    pub fn attends_by_tiles(&self, kind: KvType, head_dim: usize) -> bool {
        self.isa == Isa::Amx && kind == KvType::Bf16 && tiles::fits(head_dim)
    }

    /// Softmax attention of every row of the step: `out` gets `heads * head_dim` values a row.
    ///
    /// # Panics
    /// If the shapes of `args` and `out` contradict each other, or a page table is too short.
    pub fn attention(
        &self,
        args: &AttentionArgs<'_>,
        scratch: &mut AttentionScratch,
        out: &mut [f32],
    ) {
        let shape = args.kv.shape();
        let width = args.heads * shape.head_dim;
        let rows: usize = args.plan.sequences.iter().map(|s| s.rows as usize).sum();
        assert!(
            args.heads > 0 && args.heads.is_multiple_of(shape.kv_heads),
            "query heads"
        );
        assert!(
            args.query + width <= args.stride,
            "a row must hold all query heads"
        );
        assert!(args.rows.len() >= rows * args.stride, "query rows");
        assert_eq!(out.len(), rows * width, "attention output");
        self.divide(args, &mut scratch.tasks);
        let tasks = &scratch.tasks;
        #[cfg(target_arch = "x86_64")]
        let by_tiles = self.attends_by_tiles(args.kv.kind(), shape.head_dim);
        let out = Output(out.as_mut_ptr());
        let work = |task: usize| {
            let out = &out;
            let run = Run {
                args,
                task: tasks[task],
                out: out.0,
            };
            #[cfg(target_arch = "x86_64")]
            if let (Isa::Avx512Bf16 | Isa::Amx, KvData::Bf16(data)) = (self.isa, &args.kv.data) {
                // SAFETY: the path has the instructions; for the rest see `Run`.
                return unsafe {
                    if by_tiles {
                        tiles::enter(&run, data);
                    } else {
                        dot::enter(&run, data);
                    }
                };
            }
            dispatch(self.isa, run);
        };
        // A job's task numbers are bounded; no real step comes near.
        if tasks.len() > usize::from(u16::MAX) {
            (0..tasks.len()).for_each(work);
        } else {
            self.pool.run(tasks.len(), &work);
        }
    }

    /// Cuts the step into tasks.
    fn divide(&self, args: &AttentionArgs<'_>, tasks: &mut Vec<Task>) {
        let shape = args.kv.shape();
        let group = args.heads / shape.kv_heads;
        let (mut queries, mut work) = (0, 0);
        for sequence in &args.plan.sequences {
            let rows = sequence.rows as usize;
            queries += rows * args.heads;
            work += rows * args.heads * sequence.first_slot as usize * 2 * shape.head_dim;
        }
        let most = if self.pool.threads() == 1 || work < WORTH_SHARING {
            MOST_QUERIES
        } else {
            let share = queries.div_ceil(2 * self.pool.threads());
            share.next_multiple_of(4).min(MOST_QUERIES)
        };
        tasks.clear();
        let mut first_row = 0;
        for (sequence, rows) in args.plan.sequences.iter().enumerate() {
            let all = rows.rows as usize * group;
            for kv_head in 0..shape.kv_heads {
                for first in (0..all).step_by(most) {
                    let queries = most.min(all - first);
                    tasks.push(Task {
                        sequence,
                        first_row,
                        kv_head,
                        first,
                        queries,
                    });
                }
            }
            first_row += rows.rows as usize;
        }
    }
}

/// First value of the first output row.
struct Output(*mut f32);

// SAFETY: tasks write disjoint values.
unsafe impl Sync for Output {}

/// A task with its surroundings.
struct Run<'a> {
    args: &'a AttentionArgs<'a>,
    task: Task,
    out: *mut f32,
}

impl Kernel for Run<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: `attention` checked the shapes; tasks are disjoint.
        unsafe {
            match &self.args.kv.data {
                KvData::F32(data) => block::attend::<S, f32, _>(&self, data, vectors::Vectors),
                KvData::Bf16(data) => block::attend::<S, u16, _>(&self, data, vectors::Vectors),
            }
        }
    }
}

impl Run<'_> {
    /// The sequence of the task.
    fn sequence(&self) -> &SequenceRows {
        &self.args.plan.sequences[self.task.sequence]
    }

    /// Start of a page of the sequence in the store.
    #[inline(always)]
    fn block(&self, page: usize) -> usize {
        let pages: &[PageIndex] = &self.args.plan.pages[self.sequence().pages.clone()];
        self.args
            .kv
            .block_at(self.args.layer, pages[page], self.task.kv_head)
    }

    /// What query `i` of the task sees.
    fn visible(&self, i: usize) -> Visible {
        let group = self.args.heads / self.args.kv.shape().kv_heads;
        let row = (self.task.first + i) / group;
        Visible::of(
            self.sequence(),
            &self.args.plan.ancestors,
            row,
            self.args.window,
        )
    }

    /// How many queries from number `i` on, itself included, belong to its row.
    fn of_one_row(&self, i: usize) -> usize {
        let group = self.args.heads / self.args.kv.shape().kv_heads;
        (group - (self.task.first + i) % group).min(self.task.queries - i)
    }

    /// Row in the step and head of query `i` of the task.
    fn place(&self, i: usize) -> (usize, usize) {
        let group = self.args.heads / self.args.kv.shape().kv_heads;
        let query = self.task.first + i;
        (
            self.task.first_row + query / group,
            self.task.kv_head * group + query % group,
        )
    }
}

/// Page and offset of a slot.
#[inline(always)]
fn page_of(slot: usize) -> (usize, usize) {
    (slot / PAGE_TOKENS, slot % PAGE_TOKENS)
}

#[cfg(test)]
mod tests;
