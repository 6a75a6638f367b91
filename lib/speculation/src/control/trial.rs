//! When plain rounds are tried while a lookahead seems to pay.

use alloc::collections::BTreeMap;

use super::{
    ControlConfig, Load,
    rounds::{Round, Rounds},
};

/// Plain rounds that seem slower by more than this factor are tried as seldom as can be: no error
/// in what is known of them is that large.
const IN_SIGHT: f64 = 1.5;

/// Trials, further and further apart as long as they find plain rounds no better than thought. What
/// is found under one load says little about another, so each magnitude has its own pauses.
#[derive(Clone, Debug)]
pub(super) struct Trial {
    pauses: BTreeMap<u32, Pause>,
    /// Decisions left of the one under way.
    left: u32,
    /// Under which load it was begun, and the goodput of plain rounds before it; none: none is
    /// under way.
    before: Option<(Load, f64)>,
    /// Whether that is one that was not due.
    in_doubt: bool,
    /// Its rounds.
    rounds: Rounds,
}

/// The time between trials under loads of one magnitude.
#[derive(Clone, Copy, Debug)]
struct Pause {
    /// Decisions for K > 0 since the last one.
    since: u32,
    /// Decisions until the next one.
    decisions: u32,
}

impl Trial {
    pub(super) fn new() -> Self {
        Self {
            pauses: BTreeMap::new(),
            left: 0,
            before: None,
            in_doubt: false,
            rounds: Rounds::new(),
        }
    }

    /// Plain rounds are made anyway under this load. When a lookahead is taken up again the first
    /// trial is soon: plain rounds may have looked bad because something held up those of the last
    /// moments.
    pub(super) fn reset(&mut self, load: Load) {
        self.stop();
        self.pauses.remove(&load.magnitude());
    }

    fn stop(&mut self) {
        (self.left, self.before) = (0, None);
        self.in_doubt = false;
        self.rounds.clear();
    }

    fn pause(&mut self, config: &ControlConfig, load: Load) -> &mut Pause {
        let first = Pause {
            since: 0,
            decisions: config.plain_after.max(1),
        };
        self.pauses.entry(load.magnitude()).or_insert(first)
    }

    /// Takes in a plain round.
    pub(super) fn observe(&mut self, round: Round) {
        if self.before.is_some() {
            self.rounds.observe(round, usize::MAX);
        }
    }

    /// Makes one more decision for K > 0 a plain round, because plain rounds seem better: a trial
    /// begins at once, unless one is under way. `plain` is their goodput.
    pub(super) fn doubt(&mut self, config: &ControlConfig, load: Load, plain: f64) {
        if self.before.is_none() {
            self.begin(config, load, plain);
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

    fn begin(&mut self, config: &ControlConfig, load: Load, plain: f64) {
        self.pause(config, load).since = 0;
        (self.left, self.before) = (config.plain_rounds.max(1), Some((load, plain)));
    }

    /// Whether one more decision for K > 0 is to be a plain round instead, with the goodput of both.
    pub(super) fn is_due(
        &mut self,
        config: &ControlConfig,
        load: Load,
        plain: f64,
        chosen: f64,
    ) -> bool {
        if self.before.is_none() {
            let in_sight = chosen < IN_SIGHT * plain;
            let pause = self.pause(config, load);
            let most = config.probe_at_most.max(1);
            let decisions = if in_sight { pause.decisions } else { most };
            pause.since += 1;
            if pause.since < decisions {
                return false;
            }
            self.begin(config, load, plain);
        }
        self.left = self.left.saturating_sub(1);
        true
    }

    /// The load under which one was begun all of whose rounds have been made.
    pub(super) fn over(&self) -> Option<Load> {
        let (load, _) = self.before.filter(|_| self.left == 0)?;
        Some(load)
    }

    /// The plain rounds of the one under way.
    pub(super) fn rounds(&self) -> &Rounds {
        &self.rounds
    }

    /// Ends it, now that plain rounds are known to have this goodput under its load.
    pub(super) fn end(&mut self, config: &ControlConfig, plain: f64) {
        if let Some((load, before)) = self.before {
            let most = config.probe_at_most.max(1);
            let pause = self.pause(config, load);
            pause.decisions = if plain > before * (1.0 + config.margin) {
                config.plain_after.max(1)
            } else {
                pause.decisions.saturating_mul(2).min(most)
            };
        }
        self.stop();
    }
}
