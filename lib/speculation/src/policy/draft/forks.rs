//! What a driver feeds for branches.

use super::{
    build::BuildId,
    layout::{ForkFeed, Layout},
    work::Ticket,
};

/// One step of all branches of a session that go on.
#[derive(Clone, Copy, Debug)]
pub struct BranchWork<'a> {
    /// Hand this back to [`DraftSession::branched`](super::DraftSession::branched).
    pub ticket: Ticket,
    /// Names the forks of this build.
    pub build: BuildId,
    /// Steps that the tails of the forks hold already. At 0 the forks are to be made: each a fork
    /// of the session's sequence at [`ForkFeed::trunk_len`].
    pub step: u32,
    pub(super) layout: &'a Layout,
}

impl<'a> BranchWork<'a> {
    /// What to feed, by fork; always as many, in the same order, within a build. The rows of a step
    /// are those of the first fork, then those of the second, and so on.
    pub fn forks(&self) -> impl ExactSizeIterator<Item = ForkFeed<'a>> + use<'a> {
        self.layout.feeds()
    }

    /// Rows of the step over all forks.
    pub fn rows(&self) -> usize {
        self.layout.rows().len()
    }
}
