//! Requests that are speculated on alike: what is learned of one helps to decide for the others.
//!
//! Greedy proposals are accepted more often than sampled ones, and are drafted sooner. One figure
//! for both would give either of them the other's lookahead whenever traffic changes.

use std::time::Duration;

use foretoken_speculation::{
    control::{AnswerTime, ControlConfig, Controller, StepCost},
    fallback::Chooser,
    sampling::SamplingParams,
};

use crate::inbox::LinkKey;

/// How a request's tokens are chosen, as far as it matters to speculation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Regime {
    /// The likeliest token.
    Greedy,
    /// A draw.
    Sampled,
}

impl Regime {
    pub(crate) fn of(sampling: &SamplingParams) -> Self {
        if sampling.is_greedy() {
            Self::Greedy
        } else {
            Self::Sampled
        }
    }
}

/// The requests of one regime that have, or would have, the same endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cohort {
    pub(crate) link: LinkKey,
    pub(crate) regime: Regime,
}

/// What is learned of one cohort.
pub(super) struct Learned {
    /// Chooses the lookahead.
    pub(super) controller: Controller,
    /// Chooses what follows a miss.
    pub(super) chooser: Chooser,
}

/// What is learned of one endpoint, for each cohort apart.
pub(super) struct Cohorts {
    greedy: Learned,
    sampled: Learned,
}

impl Cohorts {
    pub(super) fn new(config: &ControlConfig, steps: &StepCost, answers: &AnswerTime) -> Self {
        let learned = || Learned {
            controller: Controller::new(config.clone(), steps.clone(), answers.clone()),
            chooser: Chooser::default(),
        };
        Self {
            greedy: learned(),
            sampled: learned(),
        }
    }

    pub(super) fn of(&self, regime: Regime) -> &Learned {
        match regime {
            Regime::Greedy => &self.greedy,
            Regime::Sampled => &self.sampled,
        }
    }

    pub(super) fn of_mut(&mut self, regime: Regime) -> &mut Learned {
        match regime {
            Regime::Greedy => &mut self.greedy,
            Regime::Sampled => &mut self.sampled,
        }
    }

    /// Steps cost the same whoever is in them.
    pub(super) fn observe_step(&mut self, rows: u32, took: Duration) {
        for learned in [&mut self.greedy, &mut self.sampled] {
            learned.controller.observe_step(rows, took);
        }
    }
}
