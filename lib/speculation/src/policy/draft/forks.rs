//! What a driver feeds for branches.

use alloc::vec::Vec;

use super::{build::BuildId, work::Ticket};
use crate::{TokenId, branch::Fork};

/// One step of all branches of a session.
#[derive(Clone, Copy, Debug)]
pub struct BranchWork<'a> {
    /// Hand this back to [`DraftSession::branched`](super::DraftSession::branched).
    pub ticket: Ticket,
    /// Names the forks of this build.
    pub build: BuildId,
    /// Steps that the tails of the forks hold already. At 0 the forks are to be made: each a fork
    /// of the session's sequence at [`Fork::trunk_len`].
    pub step: u32,
    pub(super) forks: &'a [Fork],
    pub(super) paths: &'a [Vec<u32>],
    pub(super) tokens: &'a [TokenId],
    pub(super) parents: &'a [Option<u32>],
}

/// What to feed to one fork in a step: a row for each of its branches, as nodes of its tail. The
/// logits of all of them are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkFeed<'a> {
    /// Tokens of the trunk that the fork shares with the session's sequence.
    pub trunk_len: u32,
    /// Nodes of the tail of the session's sequence that are the last of them, if the window under
    /// verification is a tree; otherwise none.
    pub path: &'a [u32],
    /// One token for each branch.
    pub tokens: &'a [TokenId],
    /// Their parents in the tail; `None` is the last token of the trunk.
    pub parents: &'a [Option<u32>],
}

impl<'a> BranchWork<'a> {
    /// What to feed, by fork; always as many, in the same order, within a build. The rows of a step
    /// are those of the first fork, then those of the second, and so on.
    pub fn forks(&self) -> impl ExactSizeIterator<Item = ForkFeed<'a>> + use<'a> {
        let (tokens, parents) = (self.tokens, self.parents);
        let forks = self.forks.iter().zip(self.paths);
        forks.map(move |(fork, path)| ForkFeed {
            trunk_len: fork.trunk_len,
            path,
            tokens: &tokens[fork.branches.clone()],
            parents: &parents[fork.branches.clone()],
        })
    }

    /// Rows of the step over all forks.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }
}
