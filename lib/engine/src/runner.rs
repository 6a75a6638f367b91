//! What a model on a device can do: one forward pass over a ragged batch of token rows.
//!
//! [`StepPlan`] is the language between batching (device independent) and execution. It names
//! tokens, positions and KV slots; the runner owns the memory behind the slots and nothing else
//! of a sequence.

use foretoken_speculation::TokenId;

use crate::cpu::PoolError;

/// Tokens per KV page.
pub const PAGE_TOKENS: usize = 16;

/// Index of a page in the runner's KV pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIndex(pub u32);

/// One step: rows of several sequences, each sequence's rows consecutive.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    /// Token of each row, all sequences one after the other.
    pub tokens: Vec<TokenId>,
    /// Position of each row in its sequence (what `RoPE` sees). Not the slot: in a tree, siblings
    /// share a position.
    pub positions: Vec<u32>,
    /// Whether the row's logits are wanted. Wanted rows appear in [`Logits`] in row order.
    pub wants_logits: Vec<bool>,
    /// The sequences, in row order; their `rows` add up to `tokens.len()`.
    pub sequences: Vec<SequenceRows>,
    /// Page tables of all sequences, concatenated.
    pub pages: Vec<PageIndex>,
    /// Ancestor masks of all tree-shaped sequences, concatenated (see [`Tail::Tree`]).
    pub ancestors: Vec<u64>,
}

/// The rows of one sequence in a step. Row i writes KV slot `first_slot + i`, which is page
/// `pages[slot / PAGE_TOKENS]`, offset `slot % PAGE_TOKENS`.
#[derive(Clone, Debug)]
pub struct SequenceRows {
    /// Number of rows, at least 1.
    pub rows: u32,
    /// Slot of the first row; all slots below hold KV of earlier steps.
    pub first_slot: u32,
    /// Range of [`StepPlan::pages`]: the sequence's page table, covering all slots up to the
    /// last row's.
    pub pages: std::ops::Range<usize>,
    /// What rows see of each other.
    pub tail: Tail,
}

/// Visibility among the speculative rows of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Row i sees all slots up to its own.
    Causal,
    /// Each row sees the slots below `trunk_len`, its ancestors in the speculative tail, and
    /// itself. The tail starts at slot `trunk_len` (at most `first_slot`) and has at most 64 slots
    /// so far; `masks` is a range of [`StepPlan::ancestors`] with one word per row, bit j standing
    /// for slot `trunk_len + j`.
    Tree {
        /// Slots below this one are visible to every row.
        trunk_len: u32,
        /// One ancestor word per row.
        masks: std::ops::Range<usize>,
    },
}

/// Logits of the rows that wanted them.
#[derive(Clone, Debug, Default)]
pub struct Logits {
    /// Row after row, of `vocab_size` values that count.
    pub values: Vec<f32>,
    /// Logits of a row.
    pub vocab_size: usize,
    /// Values from one row to the next.
    pub stride: usize,
}

impl Logits {
    /// Logits of the `i`-th row that wanted them.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.stride..][..self.vocab_size]
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.values.len().checked_div(self.stride).unwrap_or(0)
    }
}

/// What a runner is and can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerInfo {
    /// Entries of the vocabulary.
    pub vocab_size: usize,
    /// Longest sequence, in tokens.
    pub max_positions: usize,
    /// Pages in the KV pool.
    pub pages: usize,
    /// Most rows one step may have.
    pub max_rows: usize,
    /// Digest of configuration and weights, hex.
    pub model_digest: String,
    /// Arithmetic path, for example `cpu/avx512-bf16/bf16`: logits of equal paths are equal in
    /// every bit, those of different paths need not be.
    pub path: String,
}

/// Copies the first `slots` slots of page `from` to page `to`, in all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Source page.
    pub from: PageIndex,
    /// Destination page.
    pub to: PageIndex,
    /// Slots to copy, from the page's start.
    pub slots: u32,
}

/// Moves one slot's KV within a sequence (compaction of an accepted path).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotMove {
    /// Source page and offset.
    pub from: (PageIndex, u32),
    /// Destination page and offset.
    pub to: (PageIndex, u32),
}

/// A model on a device.
pub trait ModelRunner: Send {
    /// Facts that do not change while it runs.
    fn info(&self) -> &RunnerInfo;

    /// Binds the calling thread to where the one that calls [`ModelRunner::forward`] is meant to run, if
    /// that was said. Threads that it starts later would be bound like it.
    ///
    /// # Errors
    /// If the system refuses.
    fn bind_thread(&self) -> Result<(), RunnerError> {
        Ok(())
    }

    /// Writes the KV of every row to its slot and fills `logits` with the rows that want them.
    ///
    /// # Errors
    /// If the plan breaks a limit of [`RunnerInfo`] or the device fails. The KV of the plan's
    /// slots is then undefined, all other slots are untouched.
    fn forward(&mut self, plan: &StepPlan, logits: &mut Logits) -> Result<(), RunnerError>;

    /// Copies pages in order; no later copy reads an earlier one's destination.
    fn copy_pages(&mut self, copies: &[PageCopy]);

    /// Moves slots in order; a move may read a slot only before another overwrites it.
    fn move_slots(&mut self, moves: &[SlotMove]);
}

/// Why a step could not run.
#[derive(Debug, thiserror::Error)]
pub enum RunnerError {
    /// More rows than the runner was built for.
    #[error("a step of {rows} rows exceeds the limit of {limit}")]
    TooManyRows {
        /// Rows asked for.
        rows: usize,
        /// The runner's limit.
        limit: usize,
    },
    /// A token outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab_size}")]
    UnknownToken {
        /// The offending token.
        token: TokenId,
        /// Entries of the vocabulary.
        vocab_size: usize,
    },
    /// A position past the model's length.
    #[error("position {position} is past the model's {limit} positions")]
    TooLong {
        /// The offending position.
        position: u32,
        /// Positions of the model.
        limit: usize,
    },
    /// The plan contradicts itself; a bug of the caller.
    #[error("malformed step: {0}")]
    Malformed(&'static str),
    /// The thread that computes cannot be where it is meant to.
    #[error(transparent)]
    Thread(#[from] PoolError),
}
