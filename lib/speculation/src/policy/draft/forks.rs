//! What a driver feeds for branches.

use super::{batch::Batch, build::BuildId, layout::ForkFeed, work::Ticket};

/// One step of all branches of a session that go on.
#[derive(Clone, Copy, Debug)]
pub struct BranchWork<'a> {
    /// Hand this back to [`DraftSession::branched`](super::DraftSession::branched).
    pub ticket: Ticket,
    /// Names the forks of this build.
    pub build: BuildId,
    /// Steps of branches that the build has made.
    pub step: u32,
    /// Outcomes that it drafts for, whether their branches have begun or not.
    pub outcomes: u32,
    /// Branches that began at once, and those that began later.
    pub(super) batches: [&'a Batch; 2],
}

impl<'a> BranchWork<'a> {
    /// What to feed, by fork. In later steps there are as many in the same order, or more after them: those
    /// that are new are to be made, each a fork of the session's sequence at [`ForkFeed::trunk_len`]. The rows
    /// of a step are those of the first fork, then those of the second, and so on.
    pub fn forks(&self) -> impl Iterator<Item = ForkFeed<'a>> + use<'a> {
        self.batches.into_iter().flat_map(Batch::feeds)
    }

    /// Rows of the step over all forks.
    pub fn rows(&self) -> usize {
        self.batches.iter().map(|batch| batch.rows()).sum()
    }
}
