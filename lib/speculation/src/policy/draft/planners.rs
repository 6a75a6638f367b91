//! Who learns with whom.

use super::DraftSession;
use crate::fanout::{FanOut, Planner, Prior};

/// What the sessions of one tenant learn from their verdicts: one planner for each way to spend
/// budgets and to sample, because their scores mean different things. Tenants should not share
/// them, or one that lies about verdicts would spoil the guesses for others.
#[derive(Clone, Debug)]
pub struct Planners {
    prior: Prior,
    planners: [[Option<Planner>; 3]; 3],
}

/// What sessions rank outcomes by, given how they sample and verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// Logits, the best of which is decided.
    Greedy,
    /// Log-probability and the noise that decides.
    Noisy,
    /// Log-probability alone.
    Likely,
}

impl Planners {
    /// Planners that know nothing but `prior`.
    pub fn new(prior: Prior) -> Self {
        Self {
            prior,
            planners: Default::default(),
        }
    }

    /// The planner for sessions that spend by `fan_out` and rank by `scores`.
    pub fn of(&mut self, fan_out: FanOut, scores: Scores) -> &mut Planner {
        let slot = &mut self.planners[match fan_out {
            FanOut::Uniform => 0,
            FanOut::Geometric => 1,
            FanOut::Learned => 2,
        }][match scores {
            Scores::Greedy => 0,
            Scores::Noisy => 1,
            Scores::Likely => 2,
        }];
        slot.get_or_insert_with(|| Planner::new(fan_out, self.prior))
    }

    /// The planner for `session`, if that drafts for outcomes.
    pub fn for_session(&mut self, session: &DraftSession) -> Option<&mut Planner> {
        let (fan_out, scores) = session.learns_as()?;
        Some(self.of(fan_out, scores))
    }
}

impl Default for Planners {
    fn default() -> Self {
        Self::new(Prior::default())
    }
}
