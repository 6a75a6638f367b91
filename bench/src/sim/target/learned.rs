//! What a target learns of its endpoint, and what it decides by that: with the product's controller,
//! chooser and linger, which see what those of a service see, in simulated time.

use std::time::Duration;

use foretoken_speculation::{
    control::{AnswerTime, ControlConfig, Controller, Drafting, Limit, Load, Pace, StepCost},
    fallback::{Chooser, Situation},
    gather::Due,
    linger::{Linger, Wait},
    message::Delivery,
    policy::{
        Lookahead, Policy, SsdOptions,
        target::{Answer, Lookup, Verified},
    },
};

use super::meter::Round;

/// First guesses of what answers take: of the fixed part, and of a token as a part of a step.
const ANSWER_OVERHEAD: Duration = Duration::from_micros(150);
const DRAFT_FRACTION: f64 = 1.0 / 8.0;
/// Most proposals of a tree.
const NODES: u32 = 32;
/// When a window is expected of which nothing is known.
const UNKNOWN: Duration = Duration::from_secs(3600);

/// What is known, for all requests of a target: they sample alike, and have the same endpoint.
pub(super) struct Learned {
    options: SsdOptions,
    /// Whether windows may be trees.
    trees: bool,
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

/// A verdict and the round that ended with it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lesson {
    /// Most proposals that followed each other, those that were tried in turn, and accepted.
    pub(super) height: u32,
    pub(super) tried: u32,
    pub(super) accepted: u32,
    /// Rows of the pass.
    pub(super) rows: u32,
    /// Requests of the target.
    pub(super) requests: u32,
    pub(super) round: Option<Round>,
    pub(super) lookup: Option<Lookup>,
}

impl Learned {
    /// Knows what passes take; none for a policy that has nothing to learn for.
    pub(super) fn new(policy: Policy, steps: &StepCost, trees: bool) -> Option<Self> {
        let Policy::Ssd(options) = policy else {
            return None;
        };
        let token = Duration::from_secs_f64(steps.seconds(1) * DRAFT_FRACTION);
        let answers = AnswerTime::new(ANSWER_OVERHEAD, token);
        let config = ControlConfig::of(Drafting::Ahead, options.lookahead.most());
        Some(Self {
            options,
            trees,
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
        let situation = Situation {
            steps: &self.steps,
            answers: controller.answers(),
            acceptance: controller.acceptance(),
            caught_up,
            lookahead,
            length: controller.length(lookahead),
            rows,
            sessions: load.sessions,
            local: 0,
            local_accepted: 0.0,
        };
        let pushes = self.options.delivery == Delivery::Push;
        let fallback = self.chooser.choose(self.options.fallback, &situation);
        let tree = controller.tree_budget(NODES, lookahead, load);
        Verified {
            fallback: fallback.filter(|_| pushes),
            tree: tree.filter(|_| self.trees),
            cutoffs: controller.cutoffs(lookahead, load),
            ..verified
        }
    }

    /// Takes in how long a pass took.
    pub(super) fn observe_pass(&mut self, rows: u32, took: Duration) {
        self.steps.observe_alike(rows, took);
        self.controller.observe_step(rows, took);
    }

    /// Takes in a window that was asked for.
    pub(super) fn observe_answer(&mut self, answer: Answer) {
        self.controller.observe_answer(answer.tokens, answer.took);
    }

    /// Takes in a verdict.
    pub(super) fn learn(&mut self, lesson: &Lesson) {
        let Lesson {
            height,
            tried,
            accepted,
            rows,
            requests,
            round,
            lookup,
        } = *lesson;
        let controller = &mut self.controller;
        // Where a window did not end of itself, nothing is known of what might have followed.
        let whole = round.filter(|round| round.ended);
        let sought = whole.map_or(tried, |round| round.sought);
        controller.observe_round(sought, height, accepted);
        let Some(round) = round else { return };
        if round.sought > 0 {
            controller.observe_emitted(accepted + 1, round.took, requests);
        }
        if round.sought == 0 || round.in_a_row {
            controller.observe_turn(round.sought, rows, round.took);
        }
        if round.ahead {
            let ended = round.ended && height > 0;
            controller.observe_coverage(round.sought, height, ended);
        }
        if let Some(lookup) = lookup.filter(|lookup| lookup.expected && !lookup.first) {
            self.chooser.observe(round.source, lookup.is_hit());
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
        let Some((asked, most)) = asked else {
            return Due {
                after: UNKNOWN,
                rows: 1,
            };
        };
        let seconds = self.controller.window_seconds(most).clamp(0.0, 3600.0);
        let answer = Duration::from_secs_f64(seconds);
        let waited = now.saturating_sub(asked);
        Due {
            after: match answer.checked_sub(waited) {
                Some(left) => left,
                None => waited.saturating_sub(answer) + answer / 4,
            },
            rows: 1 + self.controller.length(most).round() as usize,
        }
    }

    /// Expected time of a pass.
    pub(super) fn pass(&self, rows: usize) -> Duration {
        Duration::from_secs_f64(self.steps.seconds(rows as u32).clamp(0.0, 3600.0))
    }
}
