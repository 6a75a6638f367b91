//! When plain rounds are tried while a lookahead seems to pay, and what they come to.

use alloc::vec::Vec;
use core::time::Duration;

use super::{ControlConfig, StepCost};

/// Plain rounds that seem slower by more than this factor are tried as seldom as can be: no error
/// in what is known of them is that large.
const IN_SIGHT: f64 = 1.5;
/// Most rounds of a trial that are kept; there are more only where many sessions are in each step.
const KEPT: usize = 256;

/// Trials, further and further apart as long as they find plain rounds no better than thought.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    /// Decisions for K > 0 since the last one.
    since: u32,
    /// Decisions between them.
    pause: u32,
    /// Decisions left of the one under way.
    left: u32,
    /// Goodput of plain rounds before it; none: none is under way.
    before: Option<f64>,
    /// Rows and seconds of its rounds.
    rounds: Vec<(u32, f64)>,
}

impl Trial {
    pub(super) fn new(config: &ControlConfig) -> Self {
        Self {
            since: 0,
            pause: config.plain_after.max(1),
            left: 0,
            before: None,
            rounds: Vec::with_capacity(KEPT),
        }
    }

    /// Plain rounds are made anyway. When a lookahead is taken up again the first trial is soon: plain
    /// rounds may have looked bad because something held up those of the last moments.
    pub(super) fn reset(&mut self, config: &ControlConfig) {
        self.stop();
        self.pause = config.plain_after.max(1);
    }

    fn stop(&mut self) {
        (self.since, self.left, self.before) = (0, 0, None);
        self.rounds.clear();
    }

    /// Takes in a plain round, with so many rows in its step.
    pub(super) fn observe(&mut self, rows: u32, took: Duration) {
        if self.before.is_some() && self.rounds.len() < KEPT {
            self.rounds.push((rows, took.as_secs_f64()));
        }
    }

    /// Whether one more decision for K > 0 is to be a plain round instead, with the goodput of both.
    pub(super) fn is_due(&mut self, config: &ControlConfig, plain: f64, chosen: f64) -> bool {
        if self.before.is_none() {
            let in_sight = chosen < IN_SIGHT * plain;
            let most = config.probe_at_most.max(1);
            let pause = if in_sight { self.pause } else { most };
            self.since += 1;
            if self.since < pause {
                return false;
            }
            (self.left, self.before) = (config.plain_rounds.max(1), Some(plain));
        }
        self.left = self.left.saturating_sub(1);
        true
    }

    /// Whether all rounds of the one under way have been made.
    pub(super) fn is_over(&self) -> bool {
        self.before.is_some() && self.left == 0
    }

    /// What a round of it took besides its step, in seconds. The median: there are too few for a mean
    /// that those which were held up by something else do not spoil.
    pub(super) fn rest(&self, steps: &StepCost) -> Option<f64> {
        let rests = self.rounds.iter();
        let mut rests: Vec<f64> = rests
            .map(|&(rows, took)| took - steps.seconds(rows))
            .collect();
        rests.sort_unstable_by(f64::total_cmp);
        rests.get(rests.len() / 2).copied()
    }

    /// Ends it, now that plain rounds are known to have this goodput.
    pub(super) fn end(&mut self, config: &ControlConfig, plain: f64) {
        let most = config.probe_at_most.max(1);
        let before = self.before.unwrap_or(plain);
        self.pause = if plain > before * (1.0 + config.margin) {
            config.plain_after.max(1)
        } else {
            self.pause.saturating_mul(2).min(most)
        };
        self.stop();
    }
}
