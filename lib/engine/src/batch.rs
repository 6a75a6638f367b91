//! Sequences over a model: who owns which pages, and one ragged step for all of them.
//!
//! ```text
//! open --cached pages--> Sequence --Feed--> step --StepPlan--> ModelRunner
//!                          ^                 |
//!                          +-- truncate, accept_path <-- verdict on the logits
//! ```
//!
//! A sequence is a *trunk* (tokens in order, all with KV) and, while a token tree is being
//! verified, a *tail* of tree nodes. Feeding tokens without a tree extends the trunk: a window of
//! proposed tokens is fed like any others and what was rejected is taken back by
//! [`Engine::truncate`].
//!
//! Invariants, checked by [`Engine::audit`]: every page is free, cached or referenced; a page's
//! reference count is the number of page tables that name it; a shared page is never written where
//! another sequence can see it. A failed call changes no sequence.
//!
//! Not here: who runs and when ([`crate::schedule`]), sampling (`foretoken-speculation`).

use foretoken_speculation::TokenId;

use crate::kv::{Salt, Usage};
use crate::runner::{Logits, ModelRunner, RunnerError, RunnerInfo};

/// Names an open sequence of one [`Engine`]. Ids are not reused: that of a closed sequence is an
/// error, never somebody else's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId {
    index: u32,
    generation: u32,
}

/// Whether a sequence takes part in the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Neither reads from nor adds to the cache.
    Off,
    /// Shares pages with sequences of the same salt, and with no others.
    Within(Salt),
}

/// Which of a feed's rows need logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// None: a prefill chunk that is not the last one.
    None,
    /// The last row's.
    Last,
    /// Every row's: verification of a window or a tree.
    All,
}

/// The rows of one sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct Feed<'a> {
    /// The sequence; at most one feed of a step names it.
    pub seq: SeqId,
    /// Tokens to append, at least one.
    pub tokens: &'a [TokenId],
    /// Without a tree the tokens extend the trunk. With one, token i becomes the next node of the
    /// sequence's tail and `tree[i]` is its parent: the index of an earlier node of the tail (those
    /// of earlier steps count), or `None` for a child of the trunk's last token. The tail holds
    /// up to 64 nodes; it ends with [`Engine::accept_path`] or [`Engine::truncate`].
    pub tree: Option<&'a [Option<u32>]>,
    /// Rows that need logits.
    pub logits: Wants,
}

/// The logits of a step, by feed.
#[derive(Clone, Copy, Debug)]
pub struct StepLogits<'a> {
    logits: &'a Logits,
    /// First row of each feed, and the end of the last.
    starts: &'a [usize],
}

impl<'a> StepLogits<'a> {
    /// Rows that the `feed`-th feed wanted.
    pub fn rows(&self, feed: usize) -> usize {
        self.starts[feed + 1] - self.starts[feed]
    }

    /// Logits (`vocab_size` values) of the `i`-th wanted row of the `feed`-th feed.
    ///
    /// # Panics
    /// If the feed wanted fewer rows.
    pub fn row(&self, feed: usize, i: usize) -> &'a [f32] {
        assert!(i < self.rows(feed), "feed {feed} wanted {} rows, not {}", self.rows(feed), i + 1);
        self.logits.row(self.starts[feed] + i)
    }

    /// Logits of the feed's last row, unless it wanted none.
    pub fn last(&self, feed: usize) -> Option<&'a [f32]> {
        self.rows(feed).checked_sub(1).map(|i| self.row(feed, i))
    }
}

/// A model with the sequences it serves.
pub struct Engine {
    runner: Box<dyn ModelRunner>,
    logits: Logits,
    starts: Vec<usize>,
}

impl Engine {
    /// An engine without sequences; owns all pages of the runner.
    pub fn new(runner: Box<dyn ModelRunner>) -> Self {
        Self { runner, logits: Logits::default(), starts: vec![0] }
    }

    /// Opens a sequence that is to begin with `tokens` and maps what the cache has of them: whole
    /// pages, but never all of `tokens`, because somebody will want the last one's logits. The
    /// caller goes on by feeding `tokens[self.cached_len(seq)?..]`.
    pub fn open(&mut self, tokens: &[TokenId], reuse: Reuse) -> SeqId {
        let _ = (tokens, reuse);
        unimplemented!()
    }

    /// A new sequence with the first `len` tokens of `seq`'s trunk. Pages are shared; the last,
    /// partly filled one is copied when either side writes to it.
    pub fn fork(&mut self, seq: SeqId, len: usize) -> Result<SeqId, SeqError> {
        let _ = (seq, len);
        unimplemented!()
    }

    /// Takes back tokens of the trunk, so that `len` are left, and the whole tail.
    pub fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), SeqError> {
        let _ = (seq, len);
        unimplemented!()
    }

    /// Ends the tail: the nodes of `path`, each a child of the one before and the first a child of
    /// the trunk, join the trunk in order, the others are dropped.
    pub fn accept_path(&mut self, seq: SeqId, path: &[u32]) -> Result<(), SeqError> {
        let _ = (seq, path);
        unimplemented!()
    }

    /// Ends a sequence. Its full pages stay cached (if it takes part) until others need them.
    pub fn close(&mut self, seq: SeqId) -> Result<(), SeqError> {
        let _ = seq;
        unimplemented!()
    }

    /// Runs one forward pass over all feeds. Nothing is split: more rows than the runner takes are
    /// an error. After an error every sequence is as before.
    pub fn step(&mut self, feeds: &[Feed<'_>]) -> Result<StepLogits<'_>, StepError> {
        let _ = feeds;
        unimplemented!()
    }

    /// Logits of the latest successful step.
    pub fn logits(&self) -> StepLogits<'_> {
        StepLogits { logits: &self.logits, starts: &self.starts }
    }

    /// The runner's facts.
    pub fn info(&self) -> &RunnerInfo {
        self.runner.info()
    }

    /// How many tokens of `seq` came from the cache when it was opened.
    pub fn cached_len(&self, seq: SeqId) -> Result<usize, SeqError> {
        let _ = seq;
        unimplemented!()
    }

    /// Tokens of the trunk.
    pub fn len(&self, seq: SeqId) -> Result<usize, SeqError> {
        let _ = seq;
        unimplemented!()
    }

    /// The trunk.
    pub fn tokens(&self, seq: SeqId) -> Result<&[TokenId], SeqError> {
        let _ = seq;
        unimplemented!()
    }

    /// Nodes of the tail, in the order they were fed.
    pub fn tail(&self, seq: SeqId) -> Result<&[TokenId], SeqError> {
        let _ = seq;
        unimplemented!()
    }

    /// Pages that a step can take: free ones and cached ones that no sequence references.
    pub fn free_pages(&self) -> usize {
        unimplemented!()
    }

    /// Pages that feeding `rows` more rows to `seq` would take from [`Self::free_pages`].
    pub fn pages_needed(&self, seq: SeqId, rows: usize) -> Result<usize, SeqError> {
        let _ = (seq, rows);
        unimplemented!()
    }

    /// Pages that closing `seq` would give back: those no other sequence references.
    pub fn owned_pages(&self, seq: SeqId) -> Result<usize, SeqError> {
        let _ = seq;
        unimplemented!()
    }

    /// Whether the next row of `seq` must copy a page first, because a fork shares it.
    pub fn shares_tail(&self, seq: SeqId) -> Result<bool, SeqError> {
        let _ = seq;
        unimplemented!()
    }

    /// How the pages are used.
    pub fn usage(&self) -> Usage {
        unimplemented!()
    }
}

/// Why a call about one sequence failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SeqError {
    /// The sequence was closed, or belongs to another engine.
    #[error("there is no open sequence {0:?}")]
    Unknown(SeqId),
    /// A length past the end.
    #[error("length {asked} is past the sequence's {len} tokens")]
    PastEnd {
        /// Length asked for.
        asked: usize,
        /// Length of the trunk.
        len: usize,
    },
    /// A path that does not follow the tail's tree.
    #[error("node {node} of the accepted path is not a child of the node before it")]
    NotAPath {
        /// The offending node.
        node: u32,
    },
}

/// Why a step did not run.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// A feed names a sequence that is not open, or breaks its bounds.
    #[error(transparent)]
    Sequence(#[from] SeqError),
    /// Two feeds of one sequence.
    #[error("sequence {0:?} appears twice in one step")]
    Repeated(SeqId),
    /// A feed without tokens, or a step without feeds.
    #[error("every step needs a feed and every feed a token")]
    Empty,
    /// A chain fed to a sequence whose tree is not decided.
    #[error("sequence {0:?} has an open tree: accept a path or truncate before feeding a chain")]
    TreeOpen(SeqId),
    /// The number of parents differs from the number of tokens.
    #[error("a tree of {tokens} tokens has {parents} parents")]
    Parents {
        /// Tokens of the feed.
        tokens: usize,
        /// Parents given.
        parents: usize,
    },
    /// A parent that does not come before its child.
    #[error("node {node} names node {parent} as its parent, which does not come before it")]
    ParentOrder {
        /// The child.
        node: usize,
        /// The parent it names.
        parent: u32,
    },
    /// More tree nodes than a mask has bits.
    #[error("a tree of {nodes} nodes exceeds the limit of {limit}")]
    TreeTooLarge {
        /// Nodes the tail would have.
        nodes: usize,
        /// Most nodes of a tail.
        limit: usize,
    },
    /// Not enough pages.
    #[error("the step needs {needed} pages and {available} are free: preempt a sequence first")]
    OutOfPages {
        /// Pages needed.
        needed: usize,
        /// Pages free or evictable.
        available: usize,
    },
    /// The runner refused or failed.
    #[error(transparent)]
    Runner(#[from] RunnerError),
}
