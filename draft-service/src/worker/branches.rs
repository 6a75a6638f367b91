//! Where branches live: forks of a session's sequence, until the verdict.
//!
//! ```text
//! glue pass --> plan --> step 0: fork, feed --> step 1: feed --> .. --> verdict: what was read of it is
//!                          ^                                        ^   grafted, forks closed
//!                          '--- pages are short: forks closed ------'
//! ```
//!
//! Branches are guesses about guesses: whatever else wants rows goes first, and pages too, except
//! that those of a tenant with less than its share keep theirs from tenants with more (`room`).

use foretoken_engine::{
    batch::{Engine, Feed, SeqId, StepError, Wants},
    runner::PAGE_TOKENS,
};
use foretoken_speculation::policy::draft::{
    BranchWork, BuildId, Confirmed, DraftSession, DraftStats, ForkFeed,
};

use super::{Learned, Outlet, Worker, sessions::Session};

/// The forks of one session.
#[derive(Default)]
pub(super) struct Forks {
    /// The build they belong to.
    build: Option<BuildId>,
    seqs: Vec<SeqId>,
    /// Pages that they have and the trunk has not.
    pages: usize,
    /// Most that the forks of a build had when they were closed.
    most: usize,
}

impl Forks {
    /// Feeds a step of the branches that go on. Forks of the build that are not there are made first.
    pub(super) fn feed<'a>(
        &mut self,
        engine: &mut Engine,
        trunk: SeqId,
        work: &BranchWork<'a>,
        feeds: &mut Vec<Feed<'a>>,
    ) -> Result<(), StepError> {
        if self.build != Some(work.build) {
            self.close(engine);
        }
        self.pages += self.pages_needed(engine, work);
        self.build = Some(work.build);
        for fork in work.forks().skip(self.seqs.len()) {
            self.seqs.push(match fork.path {
                [] => engine.fork(trunk, fork.trunk_len as usize)?,
                path => engine.fork_path(trunk, path)?,
            });
        }
        let forks = self.seqs.iter().zip(work.forks());
        let goes_on = forks.filter(|(_, fork)| !fork.tokens.is_empty());
        feeds.extend(goes_on.map(|(&seq, fork)| Feed {
            seq,
            tokens: fork.tokens,
            tree: Some(fork.parents),
            logits: Wants::All,
        }));
        Ok(())
    }

    /// The fork of a branch, if it is there.
    pub(super) fn of(&self, branch: &Confirmed) -> Option<SeqId> {
        let seqs = self.build.filter(|&build| build == branch.build);
        seqs.and_then(|_| self.seqs.get(branch.fork).copied())
    }

    /// Closes the forks if their build is over.
    pub(super) fn reap(&mut self, engine: &mut Engine, draft: &DraftSession) {
        if self.build.is_some() && self.build != draft.build() {
            self.close(engine);
        }
    }

    pub(super) fn close(&mut self, engine: &mut Engine) {
        self.build = None;
        self.most = self.pages_of_a_build();
        self.pages = 0;
        for seq in self.seqs.drain(..) {
            if let Err(error) = engine.close(seq) {
                tracing::error!(%error, "a branch had no sequence");
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.seqs.is_empty()
    }

    /// Their sequences.
    pub(super) fn seqs(&self) -> &[SeqId] {
        &self.seqs
    }

    /// Pages that closing them gives back.
    pub(super) fn pages(&self) -> usize {
        self.pages
    }

    /// Pages that a build takes, to judge by those there were: as trunks grow the forks of one have
    /// fewer than those of the next, and then more.
    pub(super) fn pages_of_a_build(&self) -> usize {
        self.pages.max(self.most)
    }

    /// Pages that a step of the branches takes.
    fn pages_needed(&self, engine: &Engine, work: &BranchWork<'_>) -> usize {
        let made = self.build == Some(work.build);
        let pages = |(index, fork): (usize, ForkFeed<'_>)| {
            let rows = fork.tokens.len();
            if let Some(&seq) = self.seqs.get(index).filter(|_| made) {
                return engine.pages_needed(seq, rows).unwrap_or(0);
            }
            // A page that is begun is shared with the trunk, so it is copied.
            let own = fork.path.len();
            let shared = fork.trunk_len as usize - own;
            (shared % PAGE_TOKENS + own + rows).div_ceil(PAGE_TOKENS)
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
    /// Says whether more was to be drafted.
    pub(super) fn drop_branches(&mut self, engine: &mut Engine) -> bool {
        let drafts = self.draft.is_branching();
        self.draft.drop_branches();
        self.forks.close(engine);
        if drafts {
            self.outlook.give_up();
        }
        drafts
    }

    /// What was counted since the last time.
    pub(super) fn take_stats(&mut self) -> DraftStats {
        let now = self.draft.stats();
        let new = difference(now, std::mem::replace(&mut self.counted, now));
        self.account.judged += new.judged;
        for (place, &count) in (1..).zip(&new.ranks) {
            self.account.ranked += count;
            self.account.ranks += place * count;
        }
        new
    }

    /// What was counted since the last outcome that was told; none if that was not told.
    pub(super) fn take_told(&mut self) -> Option<DraftStats> {
        let now = self.draft.stats();
        let before = self.told.replace(now);
        before.map(|before| difference(now, before))
    }
}

/// What was counted between two looks.
fn difference(now: DraftStats, before: DraftStats) -> DraftStats {
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
        timely: now.timely - before.timely,
        late: now.late - before.late,
        planned: now.planned - before.planned,
        missing: now.missing - before.missing,
        judged: now.judged - before.judged,
        ranks,
    }
}

impl<O: Outlet> Worker<O> {
    /// Closes the forks of builds that are over, and plans those whose candidates are known.
    pub(super) fn prepare_branches(&mut self) {
        let mut fresh = Vec::new();
        for (index, session) in self.sessions.iter_mut().enumerate() {
            session.forks.reap(&mut self.engine, &session.draft);
            if session.draft.learns_as().is_some() {
                let Learned { planners, timing } = self.learned.entry(session.link).or_default();
                let (outlook, draft) = (&mut session.outlook, &mut session.draft);
                if outlook.plan(draft, planners, timing, &self.steps) {
                    // None of its steps is to have more rows than there are.
                    if draft.guesses().len() > self.limits.rows {
                        draft.grant(&[u32::try_from(self.limits.rows).unwrap_or(u32::MAX)]);
                    }
                    fresh.push(index);
                }
            }
        }
        if !fresh.is_empty() && !self.unhurried {
            self.divide(&fresh);
        }
    }

    /// Divides the time there is among the sessions, and gives those that are newly planned what is
    /// theirs.
    fn divide(&mut self, fresh: &[usize]) {
        let now = self.clock();
        let tenants = self.tenants.shares(&self.sessions_held());
        let mut owners = Vec::with_capacity(self.sessions.len());
        let mut contenders = Vec::with_capacity(self.sessions.len());
        for (index, session) in self.sessions.iter().enumerate() {
            let tenant = self.tenants.of(session.link);
            let learned = self.learned.get(&session.link);
            let Some((tenant, learned)) = tenant.zip(learned) else {
                continue;
            };
            let is_fresh = fresh.contains(&index);
            let bid = session
                .outlook
                .bid(tenant.0, is_fresh, &learned.timing, now);
            if let Some(contender) = bid {
                owners.push(index);
                contenders.push(contender);
            }
        }
        let most = u32::try_from(self.limits.rows).unwrap_or(u32::MAX);
        let steps = |rows| self.steps.seconds(rows);
        for granted in self.budgets.grant(&tenants, &contenders, most, steps) {
            let session = &mut self.sessions[owners[granted.contender]];
            session.outlook.grant(&mut session.draft, &granted);
            session.limit = Some(granted.limit);
            session.account.limits.add(granted.limit);
            self.metrics.build_bound_by(granted.limit);
        }
    }
}
