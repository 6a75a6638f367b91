//! What goes into a step and what comes out.

use foretoken_speculation::TokenId;

use super::SeqId;
use crate::runner::Logits;

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
    /// up to 64 nodes; it ends with [`accept_path`](super::Engine::accept_path) or
    /// [`truncate`](super::Engine::truncate).
    pub tree: Option<&'a [Option<u32>]>,
    /// Rows that need logits.
    pub logits: Wants,
}

/// The logits of a step, by feed.
#[derive(Clone, Copy, Debug)]
pub struct StepLogits<'a> {
    pub(super) logits: &'a Logits,
    /// First row of each feed, and the end of the last.
    pub(super) starts: &'a [usize],
}

impl<'a> StepLogits<'a> {
    /// Rows that the `feed`-th feed wanted.
    ///
    /// # Panics
    /// If the step had fewer feeds.
    pub fn rows(&self, feed: usize) -> usize {
        self.starts[feed + 1] - self.starts[feed]
    }

    /// Logits (`vocab_size` values) of the `i`-th wanted row of the `feed`-th feed.
    ///
    /// # Panics
    /// If the feed wanted fewer rows.
    pub fn row(&self, feed: usize, i: usize) -> &'a [f32] {
        assert!(
            i < self.rows(feed),
            "feed {feed} wanted {} rows, not {}",
            self.rows(feed),
            i + 1
        );
        self.logits.row(self.starts[feed] + i)
    }

    /// Logits of the feed's last row, unless it wanted none.
    ///
    /// # Panics
    /// If the step had fewer feeds.
    pub fn last(&self, feed: usize) -> Option<&'a [f32]> {
        self.rows(feed).checked_sub(1).map(|i| self.row(feed, i))
    }
}
