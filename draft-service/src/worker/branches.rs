//! Where branches live: forks of a session's sequence, for as long as a build goes on.
//!
//! ```text
//! glue pass --> plan --> step 0: fork, feed --> step 1: feed --> ..  --> forks closed
//!                          ^ pages are short, or a verdict came: closed at once ---^
//! ```
//!
//! Branches are guesses about guesses: whatever else wants rows or pages goes first.

use std::time::{Duration, Instant};

use foretoken_engine::{
    batch::{Engine, SeqError, SeqId},
    runner::PAGE_TOKENS,
};
use foretoken_speculation::{
    control::StepCost,
    fanout::Limit,
    policy::draft::{BranchWork, BuildId, DraftSession, DraftStats},
};

use super::{Outlet, Worker, sessions::Session, tenants::TenantId};

/// Outcomes that are drafted for even if there is no time for all of their tokens.
const FEWEST_BRANCHES: usize = 2;
/// Share of a deviation from what was expected of verifications that is taken over.
const LEEWAY_RATE: f64 = 0.1;

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

/// How long a target takes to verify: the time there is to draft for its verdict.
#[derive(Default)]
pub(super) struct Leeway {
    /// When the verification under way began.
    since: Option<Instant>,
    /// What is expected, in seconds.
    seconds: Option<f64>,
}

impl Leeway {
    /// The target verifies from now on.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since = Some(now);
    }

    /// Its verdict has come.
    pub(super) fn end(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            let took = now.saturating_duration_since(since).as_secs_f64();
            let known = self.seconds.get_or_insert(took);
            *known += LEEWAY_RATE * (took - *known);
        }
    }

    /// What is left of it; none if nothing is known.
    fn left(&self, now: Instant) -> Option<Duration> {
        let seconds = self.seconds.filter(|seconds| *seconds < 3600.0)?;
        let spent = now.saturating_duration_since(self.since?);
        Some(Duration::from_secs_f64(seconds).saturating_sub(spent))
    }
}

impl Session {
    /// Drafts for as many outcomes as can be drafted for to the end in the time there is: a whole
    /// continuation is worth more than the beginnings of several. `sharers` sessions have branches
    /// in each step, and `cost` knows what steps take.
    fn fit_branches(
        &mut self,
        planned: usize,
        sharers: usize,
        cost: &StepCost,
        now: Instant,
    ) -> Limit {
        let Some(left) = self.leeway.left(now) else {
            return Limit::Budget;
        };
        let steps = f64::from(self.draft.branch_steps());
        let fits = |branches: &usize| {
            let rows = (branches * sharers) as u32;
            steps * cost.seconds(rows) <= left.as_secs_f64()
        };
        let branches = (FEWEST_BRANCHES..=planned).take_while(fits).last();
        let branches = branches.unwrap_or(FEWEST_BRANCHES);
        self.draft.grant(branches);
        if branches < planned {
            Limit::Time
        } else {
            Limit::Budget
        }
    }

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
        let now = self.draft.stats();
        difference(now, std::mem::replace(&mut self.counted, now))
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
        judged: now.judged - before.judged,
        ranks,
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
        let building = |session: &&Session| session.draft.build().is_some();
        let sharers = self.sessions.iter().filter(building).count();
        let now = Instant::now();
        for session in self.sessions.iter_mut().filter(|s| s.forks.is_empty()) {
            let Some(planners) = self.planners.get_mut(&session.link) else {
                continue;
            };
            let planned = session.draft.plan(planners).len();
            if planned > FEWEST_BRANCHES {
                let limit = session.fit_branches(planned, sharers, &self.steps, now);
                self.metrics.build_bound_by(limit);
            }
        }
    }

    /// Pages are short: gives up the branches of the youngest session that has any, of a tenant
    /// with its share of pages if there is one; says whether there were any.
    pub(super) fn shed_branches(&mut self) -> bool {
        let givers = self.givers();
        let has = |session: &Session| session.draft.build().is_some() || !session.forks.is_empty();
        let rank = |session: &Session| {
            let tenant = self.tenants.of(session.link);
            let gives = tenant.is_some_and(|tenant| givers.contains(&tenant));
            (gives, session.opened)
        };
        let sessions = self.sessions.iter().enumerate();
        let chosen = sessions
            .filter(|(_, session)| has(session))
            .max_by_key(|(_, session)| rank(session));
        let Some((index, _)) = chosen else {
            return false;
        };
        self.sessions[index].drop_branches(&mut self.engine);
        self.metrics.build_bound_by(Limit::Pages);
        true
    }

    /// Tenants with their share of the pages or more.
    pub(super) fn givers(&self) -> Vec<TenantId> {
        let (sessions, tokens) = self.holdings();
        let tenants = self
            .sessions
            .iter()
            .filter_map(|session| self.tenants.of(session.link));
        let mut givers: Vec<TenantId> = tenants
            .filter(|&tenant| self.tenants.has_its_share(tenant, &tokens, &sessions))
            .collect();
        givers.dedup();
        givers
    }
}
