//! Single rounds, and what they come to.

use alloc::vec::Vec;
use core::time::Duration;

use super::Load;

/// Most rounds that are kept; there are more only where many sessions are in each step.
const KEPT: usize = 256;

/// So many rounds, or all that are kept.
pub(super) fn most(rounds: u32) -> usize {
    (rounds as usize).min(KEPT)
}

/// The latest rounds.
#[derive(Clone, Debug)]
pub(super) struct Rounds {
    rounds: Vec<Round>,
    /// Where the next one goes, once there are as many as are kept.
    next: usize,
}

/// One round of a session.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    /// What it was decided under.
    pub(super) load: Load,
    /// Tokens that were sought for it.
    pub(super) asked: u32,
    /// Rows of its step.
    pub(super) rows: u32,
    /// From verdict to verdict.
    pub(super) took: Duration,
}

impl Rounds {
    pub(super) fn new() -> Self {
        Self {
            rounds: Vec::with_capacity(KEPT),
            next: 0,
        }
    }

    /// Takes in a round, in place of the oldest one if there are `most`.
    pub(super) fn observe(&mut self, round: Round, most: usize) {
        let most = most.min(KEPT);
        self.rounds.truncate(most);
        if self.rounds.len() < most {
            self.rounds.push(round);
        } else if let Some(oldest) = self.rounds.get_mut(self.next % most.max(1)) {
            *oldest = round;
            self.next += 1;
        }
    }

    /// Seconds that one of those under about this load took beyond those `expected`, unless there are
    /// fewer than `fewest`. The median: there are too few for a mean that those which were held up by
    /// something else do not spoil.
    pub(super) fn beyond(
        &self,
        load: Load,
        fewest: usize,
        expected: impl Fn(Round) -> f64,
    ) -> Option<f64> {
        let rounds = self.rounds.iter();
        let mut beyond: Vec<f64> = rounds
            .filter(|round| round.load.is_like(load))
            .map(|&round| round.took.as_secs_f64() - expected(round))
            .collect();
        beyond.sort_unstable_by(f64::total_cmp);
        let median = beyond.get(beyond.len() / 2).copied();
        median.filter(|_| beyond.len() >= fewest)
    }
}
