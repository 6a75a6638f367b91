//! What one session drafts for while its target verifies, and how long there is for it.
//!
//! ```text
//! glue pass --> plan --> bid: what is drafted for, worth, time left --> grant
//! verdict   --> hear: what came of it, and how long the target took        |
//!    ^_____________________________________________________________________|
//! ```

use alloc::vec::Vec;
use core::time::Duration;

use super::{
    BuildId, DraftSession, DraftStats, Planners,
    timing::{Timing, Verification},
};
use crate::{
    control::StepCost,
    fanout::{Bid, Contender, Division, Guess, Worth},
    message::Outcome,
};

/// Usual deviations by which a step has to end too late for it to be sure: of a normal distribution, in
/// nine cases of ten.
const SURE: f64 = 1.6;

/// What a session would draft for, by its last glue pass, and the verification that it does so in.
///
/// Times are given as what has passed since any moment, the same one for all.
#[derive(Clone, Debug, Default)]
pub struct Outlook {
    verification: Verification,
    /// The build that the guesses are of.
    build: Option<BuildId>,
    guesses: Vec<Guess>,
    worth: Option<Worth>,
    /// Whether the last miss was answered by a window made just in time.
    remote: bool,
    /// Whether all that is being drafted should be ready in time.
    whole: bool,
}

/// Of the tokens that were planned for a verdict, how many it did not find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judged {
    /// Tokens of the continuation for it that there seemed to be time for.
    pub planned: u32,
    /// Those that were not there when the verification ended.
    pub missing: u32,
}

impl Outlook {
    /// The target verifies a window of so many tokens from now on.
    pub fn begin(&mut self, now: Duration, window: usize) {
        self.verification.begin(now, window);
    }

    /// Takes in a verdict that `draft` has heard, which had counted `before` until then: what it says of
    /// the target's times, and of what was planned for it, if anything was.
    pub fn hear(
        &mut self,
        now: Duration,
        outcome: &Outcome,
        before: &DraftStats,
        draft: &DraftSession,
        timing: &mut Timing,
    ) -> Option<Judged> {
        let came = self.verification.end(now, outcome, timing);
        if let Some(window) = &outcome.verifying {
            self.verification.begin(came, window.len());
            self.remote &= !window.is_empty();
        } else if outcome.lookahead > 0 {
            self.remote = true;
        }
        let whole = core::mem::take(&mut self.whole);
        let after = draft.stats();
        let judged = Judged {
            planned: after.planned - before.planned,
            missing: after.missing - before.missing,
        };
        // A verdict that nothing was planned for says nothing about the time. Where there seemed to be none,
        // that nothing was missing does, or what is counted on would never rise again.
        if judged.planned > 0 && (whole || judged.missing == 0) {
            timing.observe_build(f64::from(judged.missing) / f64::from(judged.planned));
        }
        whole.then_some(judged)
    }

    /// Plans the branches of `draft` if their candidates are known; says whether there is a new plan.
    /// `cost` is what steps take.
    pub fn plan(
        &mut self,
        draft: &mut DraftSession,
        planners: &mut Planners,
        timing: &Timing,
        cost: &StepCost,
    ) -> bool {
        draft.plan(planners);
        let build = draft.build();
        if build.is_none() || build == self.build {
            return false;
        }
        let Some(planner) = planners.for_session(draft) else {
            return false;
        };
        let steps = draft.branch_steps();
        let worth = Worth {
            acceptance: planner.estimates().acceptance(),
            steps,
            goes_on: draft.goes_on(),
            miss: 0.0,
        };
        let alone = f64::from(steps) * cost.seconds(1);
        let wait = timing.wait().unwrap_or(alone);
        let rate = timing.rate().filter(|_| self.remote);
        self.build = build;
        self.worth = Some(match rate {
            Some(rate) => worth.with_remote_fallback(draft.window_cutoff(), wait, rate),
            None => worth,
        });
        self.guesses.clear();
        self.guesses.extend_from_slice(draft.guesses());
        true
    }

    /// What it would take of the next steps, being newly planned (`is_fresh`) or not. A session whose
    /// branches are under way, or will soon be again, counts with what it had the last time, so that
    /// none takes all only because it is planned first.
    pub fn bid(
        &self,
        tenant: usize,
        is_fresh: bool,
        timing: &Timing,
        now: Duration,
    ) -> Option<Contender<'_>> {
        let worth = self.worth?;
        let left = self.verification.left(now, timing);
        let usable = self.verification.usable(timing);
        let left = match (left, usable) {
            (Some(left), _) if is_fresh => left.max(0.0),
            (None, _) if is_fresh => f64::INFINITY,
            // Verifications that go on for much longer than they should have no claim.
            (Some(left), Some(usable)) if left > -usable => usable,
            _ => return None,
        };
        let bid = Bid {
            tenant,
            guesses: &self.guesses,
            worth,
            left,
        };
        Some(Contender { bid, is_fresh })
    }

    /// Has `draft` draft for what was granted. Where the time is over before the last step (there are
    /// fewer widths), steps go on as the last planned one: the verdict ends them.
    pub fn grant(&mut self, draft: &mut DraftSession, granted: &Division) {
        self.whole = granted.in_time;
        draft.grant(&granted.widths);
    }

    /// How long a step of its branches that takes `step` seconds, after `made` others, should not be
    /// begun: none, unless it is sure to end after the verdict, later than a target waits for the token
    /// that it brings ([`linger`](crate::linger)). It would only keep the endpoint from the next round.
    /// What goes on for that much longer than expected is another matter: then nothing is known of its
    /// end.
    pub fn pause(&self, made: u32, step: f64, timing: &Timing, now: Duration) -> Option<Duration> {
        let acceptance = self.worth?.acceptance;
        let chance = libm::pow(acceptance, f64::from(made) + 1.0);
        let left = self.verification.expected(now, timing)?;
        let waits = chance / timing.rate()?;
        let over = left + step;
        let is_in_vain = step > left + waits + SURE * timing.spread()?;
        let over = Duration::try_from_secs_f64(over).ok()?;
        (is_in_vain && !over.is_zero()).then_some(over)
    }

    /// What was drafted is given up. That nothing more of it is there says nothing about the time.
    pub fn give_up(&mut self) {
        self.whole = false;
    }

    /// Seconds left of what can be counted on, below 0 when they are over; none if nothing is known
    /// or nothing is verified.
    pub fn left(&self, now: Duration, timing: &Timing) -> Option<f64> {
        self.verification.left(now, timing)
    }
}
