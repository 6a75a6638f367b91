//! When plain rounds are tried while a lookahead seems to pay.

use alloc::collections::BTreeMap;

use super::{
    ControlConfig, Load,
    rounds::{Round, Rounds},
};

/// Plain rounds that seem slower by more than this factor are tried as seldom as can be: an error in what
/// is known of them is hardly ever that large.
const IN_SIGHT: f64 = 1.5;
/// So many times seldomer at most: the slower they seem the seldomer, since the more a trial costs.
const SELDOMER: f64 = 8.0;
/// Decisions, as a multiple of its rounds, after which a trial ends that has too few. While prompts
/// are read decisions have no rounds that tell anything.
const PATIENCE: u32 = 3;

/// Trials in a row that tell nothing after which a lookahead in doubt is left all the same: no probe
/// is made meanwhile.
const FRUITLESS: u32 = 3;
/// Decisions, under any load, after which a trial that did not come to its end is forgotten.
const STALE: u64 = 1024;

/// Trials, further and further apart as long as they find plain rounds no better than thought. What
/// is found under one load says little about another, so each magnitude has its own.
#[derive(Clone, Debug, Default)]
pub(super) struct Trial {
    by_load: BTreeMap<u32, Course>,
    /// Decisions so far.
    decisions: u64,
}

/// Trials under loads of one magnitude.
#[derive(Clone, Debug)]
struct Course {
    /// Decisions for K > 0 since the last one.
    since: u32,
    /// Decisions until the next one.
    pause: u32,
    /// How many in a row have told nothing.
    fruitless: u32,
    open: Option<Open>,
}

/// The trial under way.
#[derive(Clone, Debug)]
struct Open {
    /// What it was begun under, and with which decision.
    load: Load,
    begun: u64,
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

impl Course {
    fn put_off(&mut self, config: &ControlConfig) {
        let longest = config.probe_at_most.max(1);
        self.pause = self.pause.saturating_mul(2).min(longest);
    }
}

impl Trial {
    /// Plain rounds are made anyway under this load. When a lookahead is taken up again the first
    /// trial is soon: plain rounds may have looked bad because something held up those of the last
    /// moments.
    pub(super) fn reset(&mut self, load: Load) {
        self.by_load.remove(&load.magnitude());
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
        if let Some(course) = self.by_load.get_mut(&load.magnitude()) {
            course.open.take_if(|open| open.in_doubt);
        }
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
        let course = self.course(config, load);
        let longest = config.probe_at_most.max(1);
        let pause = if in_sight {
            course.pause
        } else {
            // Saturates.
            (f64::from(longest) * (chosen / plain).min(SELDOMER)) as u32
        };
        course.since += 1;
        let is_due = course.since >= pause;
        if is_due {
            self.begin(config, load, plain, false);
        }
        is_due
    }

    /// One more decision is to be made under this load.
    pub(super) fn pass(&mut self, load: Load) {
        self.decisions += 1;
        let now = self.decisions;
        if let Some(course) = self.by_load.get_mut(&load.magnitude()) {
            course.open.take_if(|open| now - open.begun > STALE);
        }
    }

    /// The one for about this load that has had its rounds, or its decisions: what it was begun
    /// under, and its rounds.
    pub(super) fn over(&self, load: Load) -> Option<(Load, &Rounds)> {
        let is_over = |open: &&Open| open.missing == 0 || open.left == 0;
        let course = self.by_load.get(&load.magnitude())?;
        let open = course.open.as_ref().filter(is_over)?;
        Some((open.load, &open.rounds))
    }

    /// Ends it, now that plain rounds are known to have this goodput.
    pub(super) fn end(&mut self, config: &ControlConfig, load: Load, plain: f64) {
        let course = self.course(config, load);
        let Some(open) = course.open.take() else {
            return;
        };
        course.fruitless = 0;
        if plain > open.before * (1.0 + config.margin) {
            course.pause = config.plain_after.max(1);
        } else {
            course.put_off(config);
        }
    }

    /// Ends it without a result. True if it was one too many.
    pub(super) fn fail(&mut self, config: &ControlConfig, load: Load) -> bool {
        let course = self.course(config, load);
        course.open = None;
        // Whatever kept rounds from it may go on.
        course.put_off(config);
        course.fruitless += 1;
        let too_many = course.fruitless >= FRUITLESS;
        if too_many {
            course.fruitless = 0;
        }
        too_many
    }

    /// Begins one with this decision.
    fn begin(&mut self, config: &ControlConfig, load: Load, before: f64, in_doubt: bool) {
        let begun = self.decisions;
        let rounds = config.plain_rounds.max(1);
        let course = self.course(config, load);
        course.since = 0;
        course.open = Some(Open {
            load,
            begun,
            before,
            in_doubt,
            rounds: Rounds::new(),
            missing: rounds.saturating_mul(load.sessions.max(1)),
            left: rounds.saturating_mul(PATIENCE) - 1,
        });
    }

    /// The one under way for about this load.
    fn under_way(&mut self, load: Load) -> Option<&mut Open> {
        let course = self.by_load.get_mut(&load.magnitude())?;
        course.open.as_mut()
    }

    fn course(&mut self, config: &ControlConfig, load: Load) -> &mut Course {
        let first = Course {
            since: 0,
            pause: config.plain_after.max(1),
            fruitless: 0,
            open: None,
        };
        self.by_load.entry(load.magnitude()).or_insert(first)
    }
}
