//! When plain rounds are tried while a lookahead seems to pay.

use alloc::collections::BTreeMap;

use super::{
    ControlConfig, Load,
    rounds::{Round, Rounds},
};

/// Plain rounds that seem slower by more than this factor are tried as seldom as can be: no error
/// in what is known of them is that large.
const IN_SIGHT: f64 = 1.5;
/// Decisions, as a multiple of its rounds, after which a trial ends that has too few. While prompts
/// are read, or others speculate in the same steps, decisions have no rounds that tell anything.
const PATIENCE: u32 = 3;

/// Trials, further and further apart as long as they find plain rounds no better than thought. What
/// is found under one load says little about another, so each magnitude has its own pauses.
#[derive(Clone, Debug, Default)]
pub(super) struct Trial {
    pauses: BTreeMap<u32, Pause>,
    open: Option<Open>,
}

/// The time between trials under loads of one magnitude.
#[derive(Clone, Copy, Debug)]
struct Pause {
    /// Decisions for K > 0 since the last one.
    since: u32,
    /// Decisions until the next one.
    decisions: u32,
}

/// The trial under way.
#[derive(Clone, Debug)]
struct Open {
    /// What it was begun under.
    load: Load,
    /// Goodput of plain rounds before it.
    before: f64,
    /// Whether it was not due.
    in_doubt: bool,
    rounds: Rounds,
    /// Rounds that it has yet to have.
    missing: u32,
    /// Decisions after which it ends without them.
    left: u32,
}

impl Trial {
    /// Plain rounds are made anyway under this load. When a lookahead is taken up again the first
    /// trial is soon: plain rounds may have looked bad because something held up those of the last
    /// moments.
    pub(super) fn reset(&mut self, load: Load) {
        self.open.take_if(|open| open.load.is_like(load));
        self.pauses.remove(&load.magnitude());
    }

    /// Takes in a plain round.
    pub(super) fn observe(&mut self, round: Round) {
        if let Some(open) = self.under_way(round.load) {
            open.rounds.observe(round, usize::MAX);
            open.missing = open.missing.saturating_sub(1);
        }
    }

    /// Makes one more decision for K > 0 a plain round, because plain rounds seem better: a trial
    /// begins at once, unless one is under way. `plain` is their goodput.
    pub(super) fn doubt(&mut self, config: &ControlConfig, load: Load, plain: f64) {
        if let Some(open) = self.under_way(load) {
            open.left = open.left.saturating_sub(1);
        } else {
            self.begin(config, load, plain, true);
        }
    }

    /// Ends the one under way if there is no doubt any more under its load.
    pub(super) fn reassure(&mut self, load: Load) {
        self.open
            .take_if(|open| open.in_doubt && open.load.is_like(load));
    }

    /// Whether one more decision for K > 0 is to be a plain round instead, with the goodput of both.
    pub(super) fn is_due(
        &mut self,
        config: &ControlConfig,
        load: Load,
        plain: f64,
        chosen: f64,
    ) -> bool {
        if let Some(open) = self.under_way(load) {
            open.left = open.left.saturating_sub(1);
            return true;
        }
        let in_sight = chosen < IN_SIGHT * plain;
        let pause = self.pause(config, load);
        let longest = config.probe_at_most.max(1);
        let decisions = if in_sight { pause.decisions } else { longest };
        pause.since += 1;
        let is_due = pause.since >= decisions;
        if is_due {
            self.begin(config, load, plain, false);
        }
        is_due
    }

    /// The one that has had its rounds, or its decisions: the load that it was begun under, and
    /// its rounds.
    pub(super) fn over(&self) -> Option<(Load, &Rounds)> {
        let is_over = |open: &&Open| open.missing == 0 || open.left == 0;
        let open = self.open.as_ref().filter(is_over)?;
        Some((open.load, &open.rounds))
    }

    /// Ends it, now that plain rounds are known to have this goodput under its load.
    pub(super) fn end(&mut self, config: &ControlConfig, plain: f64) {
        let Some(open) = self.open.take() else {
            return;
        };
        let pause = self.pause(config, open.load);
        pause.decisions = if plain > open.before * (1.0 + config.margin) {
            config.plain_after.max(1)
        } else {
            let longest = config.probe_at_most.max(1);
            pause.decisions.saturating_mul(2).min(longest)
        };
    }

    /// Begins one with this decision. One under another load ends without a result.
    fn begin(&mut self, config: &ControlConfig, load: Load, before: f64, in_doubt: bool) {
        self.pause(config, load).since = 0;
        let rounds = config.plain_rounds.max(1);
        self.open = Some(Open {
            load,
            before,
            in_doubt,
            rounds: Rounds::new(),
            missing: rounds.saturating_mul(load.sessions.max(1)),
            left: rounds.saturating_mul(PATIENCE) - 1,
        });
    }

    /// The one under way, if it is for about this load.
    fn under_way(&mut self, load: Load) -> Option<&mut Open> {
        self.open.as_mut().filter(|open| open.load.is_like(load))
    }

    fn pause(&mut self, config: &ControlConfig, load: Load) -> &mut Pause {
        let first = Pause {
            since: 0,
            decisions: config.plain_after.max(1),
        };
        self.pauses.entry(load.magnitude()).or_insert(first)
    }
}
