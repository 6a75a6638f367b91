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

/// What is learned of one endpoint, for each cohort apart.
pub(super) struct Controllers {
    greedy: Controller,
    sampled: Controller,
    /// What follows a miss, in the same order.
    choosers: [Chooser; 2],
}

impl Controllers {
    pub(super) fn new(config: ControlConfig, steps: &StepCost, answers: &AnswerTime) -> Self {
        let controller =
            |config: ControlConfig| Controller::new(config, steps.clone(), answers.clone());
        Self {
            greedy: controller(config.clone()),
            sampled: controller(config),
            choosers: Default::default(),
        }
    }

    pub(super) fn of(&self, regime: Regime) -> &Controller {
        match regime {
            Regime::Greedy => &self.greedy,
            Regime::Sampled => &self.sampled,
        }
    }

    pub(super) fn of_mut(&mut self, regime: Regime) -> &mut Controller {
        match regime {
            Regime::Greedy => &mut self.greedy,
            Regime::Sampled => &mut self.sampled,
        }
    }

    pub(super) fn chooser(&self, regime: Regime) -> &Chooser {
        &self.choosers[regime as usize]
    }

    pub(super) fn chooser_mut(&mut self, regime: Regime) -> &mut Chooser {
        &mut self.choosers[regime as usize]
    }

    /// Steps cost the same whoever is in them.
    pub(super) fn observe_step(&mut self, rows: u32, took: Duration) {
        self.greedy.observe_step(rows, took);
        self.sampled.observe_step(rows, took);
    }
}
