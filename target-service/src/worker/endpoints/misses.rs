//! What follows a verdict that an endpoint did not draft for, or not to the end.

use foretoken_speculation::{
    control::{Controller, StepCost},
    fallback::{Fallback, OnMiss, Situation},
    linger::Linger,
    policy::target::Source,
};

use super::Endpoints;
use crate::worker::cohort::{Cohort, Learned};

/// A verdict that may turn out not to have been drafted for.
#[derive(Clone, Copy, Debug)]
pub(in crate::worker) struct Miss {
    /// Rows of the next step without proposals of the request.
    pub(in crate::worker) rows: u32,
    /// Requests that decode.
    pub(in crate::worker) sessions: u32,
    /// Tokens that a window would have.
    pub(in crate::worker) lookahead: u32,
    /// Whether the endpoint has caught up with the request.
    pub(in crate::worker) caught_up: bool,
    /// Proposals of this host.
    pub(in crate::worker) local: u32,
    /// How many of them are expected to be accepted.
    pub(in crate::worker) local_accepted: f64,
}

impl Miss {
    /// What a request faces that has this miss.
    pub(super) fn situation<'a>(
        self,
        steps: &'a StepCost,
        controller: &'a Controller,
    ) -> Situation<'a> {
        Situation {
            steps,
            answers: controller.answers(),
            acceptance: controller.acceptance(),
            caught_up: self.caught_up,
            lookahead: self.lookahead,
            length: controller.length(self.lookahead),
            rows: self.rows,
            sessions: self.sessions,
            local: self.local,
            local_accepted: self.local_accepted,
        }
    }
}

impl Endpoints {
    /// Who is to propose after a miss, if `rule` leaves that open.
    pub(in crate::worker) fn fall_back(
        &self,
        cohort: Cohort,
        rule: OnMiss,
        miss: Miss,
    ) -> Option<Fallback> {
        let Learned {
            controller,
            chooser,
            tuner: _,
            linger: _,
        } = self.learned(cohort)?;
        chooser.choose(rule, &miss.situation(&self.steps, controller))
    }

    /// Who decides how long verdicts of a cohort wait for more of what was drafted for them.
    pub(in crate::worker) fn linger(&mut self, cohort: Cohort) -> Option<&mut Linger> {
        Some(&mut self.learned_mut(cohort)?.linger)
    }

    /// Probability that the token after so many proposals is accepted, and all of them.
    pub(in crate::worker) fn reached(&self, cohort: Cohort, proposals: u32) -> f64 {
        let learned = self.learned(cohort);
        learned.map_or(0.0, |learned| {
            learned.controller.acceptance().chance(proposals)
        })
    }

    /// Takes in whether a round whose window came from `source` was followed by a hit.
    pub(in crate::worker) fn observe_source(&mut self, cohort: Cohort, source: Source, hit: bool) {
        if let Some(learned) = self.learned_mut(cohort) {
            learned.chooser.observe(source, hit);
        }
    }
}
