//! Requests that are speculated on alike: what is learned of one helps to decide for the others.
//!
//! Greedy proposals are accepted more often than sampled ones, and are drafted sooner. One figure
//! for both would give either of them the other's lookahead whenever traffic changes.

use std::time::Duration;

use foretoken_speculation::{
    control::{AnswerTime, ControlConfig, Controller, Drafting, StepCost},
    fallback::Chooser,
    linger::Linger,
    saguaro::Tuner,
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

/// The requests of one regime that have, or would have, the same endpoint and are drafted for alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cohort {
    pub(crate) link: LinkKey,
    pub(crate) regime: Regime,
    pub(crate) drafting: Drafting,
}

/// What is learned of one cohort.
pub(super) struct Learned {
    /// Chooses the lookahead.
    pub(super) controller: Controller,
    /// Chooses what follows a miss.
    pub(super) chooser: Chooser,
    /// Chooses how proposals are lowered, where they are drawn.
    pub(super) tuner: Tuner,
    /// Chooses how long verdicts wait for more of what was drafted for them.
    pub(super) linger: Linger,
}

/// What is learned of one endpoint, for each cohort apart.
pub(super) struct Cohorts {
    in_turn: ByRegime,
    ahead: ByRegime,
}

struct ByRegime {
    greedy: Learned,
    sampled: Learned,
}

impl Cohorts {
    /// `fan_out` is how many outcomes of a row are drafted for.
    pub(super) fn new(
        config: impl Fn(Drafting) -> ControlConfig,
        steps: &StepCost,
        answers: &AnswerTime,
        fan_out: u32,
    ) -> Self {
        let learned = |drafting| Learned {
            controller: Controller::new(config(drafting), steps.clone(), answers.clone()),
            chooser: Chooser::default(),
            tuner: Tuner::new(fan_out),
            linger: Linger::default(),
        };
        let by_regime = |drafting| ByRegime {
            greedy: learned(drafting),
            sampled: learned(drafting),
        };
        Self {
            in_turn: by_regime(Drafting::InTurn),
            ahead: by_regime(Drafting::Ahead),
        }
    }

    pub(super) fn of(&self, cohort: Cohort) -> &Learned {
        let regimes = match cohort.drafting {
            Drafting::InTurn => &self.in_turn,
            Drafting::Ahead => &self.ahead,
        };
        match cohort.regime {
            Regime::Greedy => &regimes.greedy,
            Regime::Sampled => &regimes.sampled,
        }
    }

    pub(super) fn of_mut(&mut self, cohort: Cohort) -> &mut Learned {
        let regimes = match cohort.drafting {
            Drafting::InTurn => &mut self.in_turn,
            Drafting::Ahead => &mut self.ahead,
        };
        match cohort.regime {
            Regime::Greedy => &mut regimes.greedy,
            Regime::Sampled => &mut regimes.sampled,
        }
    }

    /// Steps cost the same whoever is in them.
    pub(super) fn observe_step(&mut self, rows: u32, took: Duration) {
        for regimes in [&mut self.in_turn, &mut self.ahead] {
            for learned in [&mut regimes.greedy, &mut regimes.sampled] {
                learned.controller.observe_step(rows, took);
            }
        }
    }
}
