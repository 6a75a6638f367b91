//! When plain rounds are tried while a lookahead seems to pay.

use super::{
    ControlConfig,
    rounds::{Round, Rounds},
};

/// Plain rounds that seem slower by more than this factor are tried as seldom as can be: no error
/// in what is known of them is that large.
const IN_SIGHT: f64 = 1.5;

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
    /// Whether that is one that was not due.
    in_doubt: bool,
    /// Its rounds.
    rounds: Rounds,
}

impl Trial {
    pub(super) fn new(config: &ControlConfig) -> Self {
        Self {
            since: 0,
            pause: config.plain_after.max(1),
            left: 0,
            before: None,
            in_doubt: false,
            rounds: Rounds::new(),
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
        self.in_doubt = false;
        self.rounds.clear();
    }

    /// Takes in a plain round.
    pub(super) fn observe(&mut self, round: Round) {
        if self.before.is_some() {
            self.rounds.observe(round, usize::MAX);
        }
    }

    /// Makes one more decision for K > 0 a plain round, because plain rounds seem better: a trial
    /// begins at once, unless one is under way. `plain` is their goodput.
    pub(super) fn doubt(&mut self, config: &ControlConfig, plain: f64) {
        if self.before.is_none() {
            self.begin(config, plain);
            self.in_doubt = true;
        }
        self.left = self.left.saturating_sub(1);
    }

    /// Ends the one under way if there is no doubt any more.
    pub(super) fn reassure(&mut self) {
        if self.in_doubt {
            self.stop();
        }
    }

    fn begin(&mut self, config: &ControlConfig, plain: f64) {
        (self.left, self.before) = (config.plain_rounds.max(1), Some(plain));
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
            self.begin(config, plain);
        }
        self.left = self.left.saturating_sub(1);
        true
    }

    /// Whether all rounds of the one under way have been made.
    pub(super) fn is_over(&self) -> bool {
        self.before.is_some() && self.left == 0
    }

    /// The plain rounds of the one under way.
    pub(super) fn rounds(&self) -> &Rounds {
        &self.rounds
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
