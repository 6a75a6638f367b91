//! How an endpoint divides the time of its steps among sessions: with the product's budgets, which
//! see the bids that those of a service see.

use std::time::Instant;

use foretoken_speculation::{
    SessionId,
    control::StepCost,
    fanout::{Bid, Guess, Worth},
    policy::draft::BuildId,
};

use super::{Endpoint, Learned, session::Session, timing::Timing};

/// Rows that a step takes at most.
pub(super) const ROWS: u32 = 1024;
/// Outcomes that a session which is alone drafts for, even if there seems to be no time.
const FEWEST_BRANCHES: u32 = 2;

/// What a session would draft for, by its last glue pass.
#[derive(Default)]
pub(super) struct Outlook {
    /// The build that the guesses are of.
    build: Option<BuildId>,
    guesses: Vec<Guess>,
    worth: Option<Worth>,
    /// Whether the last miss was answered by a window made just in time.
    pub(super) remote: bool,
    /// Whether all that is being drafted should be ready in time.
    pub(super) whole: bool,
}

impl Session {
    /// Plans the branches if their candidates are known; says whether there is a new plan.
    fn plan(&mut self, learned: &mut Learned, cost: &StepCost) -> bool {
        self.draft.plan(&mut learned.planners);
        let build = self.draft.build();
        if build.is_none() || build == self.outlook.build {
            return false;
        }
        let Some(planner) = learned.planners.for_session(&self.draft) else {
            return false;
        };
        let steps = self.draft.branch_steps();
        let worth = Worth {
            acceptance: planner.estimates().acceptance(),
            steps,
            goes_on: self.draft.goes_on(),
            miss: 0.0,
        };
        let timing = &learned.timing;
        let alone = f64::from(steps) * cost.seconds(1);
        let wait = timing.wait().unwrap_or(alone);
        let rate = timing.rate().filter(|_| self.outlook.remote);
        let outlook = &mut self.outlook;
        outlook.build = build;
        outlook.worth = Some(match rate {
            Some(rate) => worth.with_remote_fallback(wait, rate),
            None => worth,
        });
        outlook.guesses.clear();
        outlook.guesses.extend_from_slice(self.draft.guesses());
        true
    }

    /// What it would take of the next steps; one whose branches are under way counts with what it
    /// had the last time.
    fn bid(&self, fresh: bool, timing: &Timing, now: Instant) -> Option<Bid<'_>> {
        let left = self.verification.left(now, timing);
        let usable = self.verification.usable(timing);
        let left = match (left, usable) {
            (Some(left), _) if fresh => left.max(0.0),
            (None, _) if fresh => f64::INFINITY,
            (Some(left), Some(usable)) if left > -usable => usable,
            _ => return None,
        };
        Some(Bid {
            tenant: self.target,
            guesses: &self.outlook.guesses,
            worth: self.outlook.worth?,
            left,
        })
    }
}

impl Endpoint {
    /// Plans the branches of sessions whose candidates are known, and divides the time among them.
    pub(super) fn prepare_branches(&mut self, now: Instant) {
        let mut fresh = Vec::new();
        for (&id, session) in &mut self.sessions {
            let learned = self.learned.entry(session.target).or_default();
            if session.plan(learned, &self.steps) {
                fresh.push(id);
            }
        }
        if !fresh.is_empty() {
            self.divide(now, &fresh);
        }
    }

    fn divide(&mut self, now: Instant, fresh: &[SessionId]) {
        let (mut owners, mut bids) = (Vec::new(), Vec::new());
        for (&id, session) in &self.sessions {
            let is_fresh = fresh.contains(&id);
            let learned = self.learned.get(&session.target);
            let bid = learned.and_then(|learned| session.bid(is_fresh, &learned.timing, now));
            if let Some(bid) = bid {
                owners.push((id, is_fresh));
                bids.push(bid);
            }
        }
        let step = |rows| self.steps.seconds(rows);
        let grants = self.budgets.divide(&self.tenants, &bids, ROWS, step);
        if bids.iter().any(|bid| bid.tenant != bids[0].tenant) {
            for ((bid, grant), (_, is_fresh)) in bids.iter().zip(grants).zip(&owners) {
                let granted = if *is_fresh { grant.branches } else { 0 };
                self.granted[bid.tenant] += u64::from(granted);
            }
        }
        let least = if bids.len() == 1 { FEWEST_BRANCHES } else { 1 };
        let mut decided = Vec::with_capacity(fresh.len());
        for (index, &(id, is_fresh)) in owners.iter().enumerate() {
            if is_fresh {
                let widths = self.budgets.widths(&bids, index, ROWS, step);
                decided.push((id, widths.to_vec()));
            }
        }
        for (id, mut widths) in decided {
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            session.outlook.whole = !widths.is_empty();
            match widths.first_mut() {
                Some(first) => *first = (*first).max(least),
                None => widths.push(least),
            }
            session.draft.grant(&widths);
        }
    }
}
