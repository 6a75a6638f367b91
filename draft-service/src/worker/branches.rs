//! Where branches live: forks of a session's sequence, for as long as a build goes on.
//!
//! ```text
//! glue pass --> plan --> step 0: fork, feed --> step 1: feed --> ..  --> forks closed
//!                          ^ pages are short, or a verdict came: closed at once ---^
//! ```
//!
//! Branches are guesses about guesses: whatever else wants rows or pages goes first.

use foretoken_engine::{
    batch::{Engine, SeqError, SeqId},
    runner::PAGE_TOKENS,
};
use foretoken_speculation::policy::draft::{BranchWork, BuildId, DraftSession, DraftStats};

use super::{Outlet, Worker, sessions::Session};

/// The forks of one session.
#[derive(Default)]
pub(super) struct Forks {
    /// The build they belong to.
    build: Option<BuildId>,
    seqs: Vec<SeqId>,
}

impl Forks {
    /// Makes the forks of a build, unless they are there.
    pub(super) fn prepare(
        &mut self,
        engine: &mut Engine,
        trunk: SeqId,
        work: &BranchWork<'_>,
    ) -> Result<&[SeqId], SeqError> {
        if self.build != Some(work.build) {
            self.close(engine);
            self.build = Some(work.build);
            for fork in work.forks() {
                self.seqs.push(engine.fork(trunk, fork.trunk_len as usize)?);
            }
        }
        Ok(&self.seqs)
    }

    /// Closes the forks if their build is over.
    pub(super) fn reap(&mut self, engine: &mut Engine, draft: &DraftSession) {
        if self.build.is_some() && self.build != draft.build() {
            self.close(engine);
        }
    }

    pub(super) fn close(&mut self, engine: &mut Engine) {
        self.build = None;
        for seq in self.seqs.drain(..) {
            if let Err(error) = engine.close(seq) {
                tracing::error!(%error, "a branch had no sequence");
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    /// Pages that a step of the branches takes.
    fn pages_needed(&self, engine: &Engine, work: &BranchWork<'_>) -> usize {
        let made = self.build == Some(work.build);
        let pages = |(index, fork): (usize, foretoken_speculation::policy::draft::ForkFeed<'_>)| {
            let rows = fork.tokens.len();
            match self.seqs.get(index).filter(|_| made) {
                Some(&seq) => engine.pages_needed(seq, rows).unwrap_or(0),
                // A page that is begun is shared with the trunk, so it is copied.
                None => (fork.trunk_len as usize % PAGE_TOKENS + rows).div_ceil(PAGE_TOKENS),
            }
        };
        work.forks().enumerate().map(pages).sum()
    }
}

impl Session {
    /// Pages that the next step of its branches takes.
    pub(super) fn branch_pages(&mut self, engine: &Engine) -> usize {
        let Self { draft, forks, .. } = self;
        draft
            .branches()
            .map_or(0, |work| forks.pages_needed(engine, &work))
    }

    /// Gives up its branches; the session goes on.
    pub(super) fn drop_branches(&mut self, engine: &mut Engine) {
        self.draft.drop_branches();
        self.forks.close(engine);
    }

    /// What was counted since the last time.
    pub(super) fn take_stats(&mut self) -> DraftStats {
        let (now, before) = (self.draft.stats(), self.counted);
        self.counted = now;
        let mut ranks = now.ranks;
        for (rank, before) in ranks.iter_mut().zip(before.ranks) {
            *rank -= before;
        }
        DraftStats {
            windows: now.windows - before.windows,
            prepared: now.prepared - before.prepared,
            builds: now.builds - before.builds,
            cut: now.cut - before.cut,
            dropped: now.dropped - before.dropped,
            built: now.built - before.built,
            pushed: now.pushed - before.pushed,
            judged: now.judged - before.judged,
            ranks,
        }
    }
}

impl<O: Outlet> Worker<O> {
    /// Closes the forks of builds that are over, and plans those whose candidates are known.
    pub(super) fn prepare_branches(&mut self) {
        for session in &mut self.sessions {
            session.forks.reap(&mut self.engine, &session.draft);
            if session.draft.learns_as().is_some() {
                // Targets learn apart: one that lies about its verdicts spoils its own guesses only.
                let planners = self.planners.entry(session.link).or_default();
                session.draft.plan(planners);
            }
        }
    }

    /// Pages are short: gives up the branches of the youngest session that has any; says whether
    /// there were any.
    pub(super) fn shed_branches(&mut self) -> bool {
        let has =
            |session: &&mut Session| session.draft.build().is_some() || !session.forks.is_empty();
        let youngest = self
            .sessions
            .iter_mut()
            .filter(has)
            .max_by_key(|session| session.opened);
        let Some(session) = youngest else {
            return false;
        };
        session.drop_branches(&mut self.engine);
        true
    }
}
