//! What a target learns of its endpoint, and what it decides by that: with the product's controller,
//! chooser and linger, which see what those of a service see, in simulated time.

use std::time::Duration;

use foretoken_speculation::{
    control::{
        AnswerTime, ControlConfig, Controller, Drafting, Lesson, Limit, Load, MOST_NODES, Pace,
        StepCost,
    },
    fallback::{Chooser, Miss},
    gather::Due,
    linger::{Linger, Wait},
    message::Delivery,
    policy::{
        Lookahead, Policy, SsdOptions,
        target::{Answer, Lookup, Verified},
    },
};

/// What is known, for all requests of a target: they sample alike, and have the same endpoint.
pub(super) struct Learned {
    options: SsdOptions,
    steps: StepCost,
    controller: Controller,
    chooser: Chooser,
    linger: Linger,
    pace: Pace,
    /// When consequences were last drawn.
    concluded: Option<Duration>,
}

/// What windows should have after the verdicts of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) struct Suggestion {
    lookahead: u32,
    /// It is for the first request only: enough to find out whether it pays.
    alone: bool,
    load: Load,
}

impl Suggestion {
    pub(super) fn of(&self, request: usize) -> u32 {
        if self.alone && request > 0 {
            return 0;
        }
        self.lookahead
    }
}

impl Learned {
    /// Knows what passes take; none for a policy that has nothing to learn for.
    pub(super) fn new(policy: Policy, steps: &StepCost, trees: bool) -> Option<Self> {
        let Policy::Ssd(options) = policy else {
            return None;
        };
        let answers = AnswerTime::beside(steps);
        let config = ControlConfig {
            trees,
            ..ControlConfig::of(Drafting::Ahead, options.lookahead.most())
        };
        Some(Self {
            options,
            steps: steps.clone(),
            controller: Controller::new(config, steps.clone(), answers),
            chooser: Chooser::default(),
            linger: Linger::default(),
            pace: Pace::default(),
            concluded: None,
        })
    }

    /// What the next windows of so many requests should have; asked once a pass.
    pub(super) fn suggest(&mut self, requests: u32) -> Suggestion {
        let load = Load::of(requests);
        if let Lookahead::Fixed(lookahead) = self.options.lookahead {
            return Suggestion {
                lookahead,
                alone: false,
                load,
            };
        }
        let choice = self.controller.choose(load);
        Suggestion {
            lookahead: choice.lookahead,
            alone: choice.limit == Limit::Probe,
            load,
        }
    }

    /// Completes what is said of a verdict. `rows` are those of the pass without this request's
    /// proposals.
    pub(super) fn advise<'a>(
        &self,
        verified: Verified<'a>,
        suggestion: Suggestion,
        rows: u32,
        caught_up: bool,
    ) -> Verified<'a> {
        let Suggestion { load, .. } = suggestion;
        let lookahead = self.options.lookahead.of(verified.suggested);
        let controller = &self.controller;
        let cutoffs = controller.cutoffs(lookahead, load);
        let miss = Miss {
            rows,
            sessions: load.sessions,
            lookahead,
            cutoff: cutoffs.of_window(),
            caught_up,
            local: 0,
            local_accepted: 0.0,
        };
        let situation = miss.situation(&self.steps, controller);
        let pushes = self.options.delivery == Delivery::Push;
        let fallback = self.chooser.choose(self.options.fallback, &situation);
        let tree = controller.tree_budget(MOST_NODES, lookahead, load);
        Verified {
            fallback: fallback.filter(|_| pushes),
            tree,
            cutoffs,
            ..verified
        }
    }

    /// Takes in how long a pass took.
    pub(super) fn observe_pass(&mut self, rows: u32, took: Duration) {
        self.steps.observe_alike(rows, took);
        self.controller.observe_step(rows, took);
    }

    /// Takes in a window that was asked for.
    pub(super) fn observe_answer(&mut self, answer: &Answer) {
        self.controller.observe_answer(answer);
    }

    /// Takes in a verdict, and what was found of what may have been drafted for it.
    pub(super) fn learn(&mut self, lesson: &Lesson, lookup: Option<Lookup>) {
        self.controller.observe_window(lesson);
        self.controller.observe_time(lesson);
        if let Some((sought, _)) = lesson.timed()
            && let Some(lookup) = lookup.filter(|lookup| lookup.expected && !lookup.first)
        {
            self.chooser.observe(sought.source, lookup.is_hit());
        }
    }

    /// Notes that a pass has brought so many tokens.
    pub(super) fn note_pace(&mut self, now: Duration, tokens: u32) {
        if let Some(before) = self.concluded.replace(now) {
            self.pace.observe(tokens, now.saturating_sub(before));
        }
    }

    /// How long verdicts should wait for more of what was drafted for them, of which `came` have come
    /// for each.
    pub(super) fn patience(&mut self, wait: Wait, came: &[u32]) -> Option<Duration> {
        let acceptance = self.controller.acceptance();
        let chances = came.iter().map(|&came| acceptance.chance(came));
        let chance = Some(chances.sum()).filter(|_| !came.is_empty())?;
        self.linger.patience(wait, chance, self.pace.per_second())
    }

    /// Takes in how long verdicts waited, and whether anything came.
    pub(super) fn observe_wait(&mut self, wait: Wait, came: bool, waited: Duration) {
        self.linger.observe(wait, came, waited);
    }

    /// When a window is expected that was asked for then.
    pub(super) fn due(&self, now: Duration, asked: Option<(Duration, u32)>) -> Due {
        asked.map_or(Due::UNKNOWN, |(asked, most)| {
            self.controller.due(most, now.saturating_sub(asked))
        })
    }

    /// Expected time of a pass.
    pub(super) fn pass(&self, rows: usize) -> Duration {
        self.steps.time(rows as u32)
    }
}
