//! What follows a verdict that an endpoint did not draft for, or not to the end.

use foretoken_speculation::{
    fallback::{Fallback, Miss, OnMiss},
    linger::Linger,
    policy::target::Source,
};

use super::Endpoints;
use crate::worker::cohort::{Cohort, Learned};

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
