//! How many tokens to speculate on: numbers in, lookahead out.
//!
//! A [`Controller`] learns acceptance by position, the time answers take, and the cost of steps by
//! their rows. It then takes the lookahead K with the most expected tokens per second:
//!
//! ```text
//! E(K) = 1 + a1 + a1 a2 + ... + a1..aK            tokens a round emits
//! T(K) = step(other + sessions (K + 1)) + answer(K) + rest(K)         and what it takes
//! ```
//!
//! where `ai` is the probability that there is an i-th token and that it is accepted, given those
//! before it. Windows end before tokens that are not worth it ([`Controller::cutoffs`]), so steps have as
//! many rows, and answers as many tokens, as windows of up to K tokens have on average.
//!
//! `answer(0)` is 0, so K = 0 is plain decoding. Step and answer are those of sessions in
//! lock-step; what rounds really take beyond that, or less where other sessions' steps hide the
//! answers, is learned as `rest`, for each magnitude of load. Acceptance alone never
//! decides: it stays flat while the right lookahead falls with load.
//!
//! Windows that are drafted ahead are not waited for, but some verdicts find none or only a part of
//! one. With ci the learned probability that the i-th token is there:
//!
//! ```text
//! E(K) = 1 + c1 a1 + c2 a1 a2 + ... + cK a1..aK
//! T(K) = step(other + sessions (c1 + ... + cK + 1)) + rest(K)
//! ```
//!
//! Of K tokens as many are asked for as are there in time at least now and then.
//!
//! A lookahead is left only for one that is better by a margin. None is kept unless it is better than
//! plain decoding by as much, and none is begun with unless by twice that or more: what is known is
//! not exact, and to speculate in vain costs more than not to. At K = 0 nothing is learned of windows,
//! so every now and then a few rounds probe; at K > 0 nothing is learned of plain rounds, so every now
//! and then a few are made under each magnitude of load, and whenever they seem better: a lookahead is
//! left only after such a trial.

mod acceptance;
mod ahead;
mod answer;
mod caution;
mod choice;
mod cost;
mod coverage;
mod cutoff;
mod lesson;
mod model;
mod pace;
mod probe;
mod rest;
mod rounds;
mod table;
mod trees;
mod trial;
mod turns;
mod ways;

use core::time::Duration;

use crate::{gather::Due, policy::target::Answer};

pub use self::{
    acceptance::Acceptance,
    answer::AnswerTime,
    choice::{Choice, Limit, Load},
    cost::StepCost,
    lesson::Lesson,
    pace::Pace,
    trees::MOST_NODES,
};
use caution::Caution;
use coverage::Coverage;
use probe::Probe;
use rest::Rest;
use rounds::{Round, Rounds, most};
use trial::Trial;
use ways::Ways;

/// Rounds of a session by which a lookahead that no longer seems to pay is judged once more.
const LATELY: usize = 32;
/// Fewest of them, and of plain rounds to judge these by: those of one step are all alike.
const FEWEST: u32 = 8;

/// Decisions in a row that have to want a lookahead for one to be begun with. Between one request of
/// a client and its next, the others are fewer for a step or two; to begin for them costs their
/// endpoint the reading of whole sequences, and does not last.
const PERSISTENT: u32 = 8;

/// When windows are drafted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafting {
    /// After each verdict: every round waits for its window.
    InTurn,
    /// Ahead of verdicts: no round waits, and not every one has a window.
    Ahead,
}

/// How a controller decides.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlConfig {
    /// When windows are drafted.
    pub drafting: Drafting,
    /// Largest lookahead.
    pub max: u32,
    /// Whether windows may be trees.
    pub trees: bool,
    /// Whether endpoints that draft ahead may be asked not to, in turn: see [`Controller::refrains`].
    pub may_refrain: bool,
    /// Expected gain, as a fraction, for which the lookahead changes to another than 0, and that
    /// it has to have over 0. To leave 0 takes twice that, and more after doing so in vain.
    pub margin: f64,
    /// Decisions for K = 0 before the first probe.
    pub probe_after: u32,
    /// The pause doubles after each probe that would not have paid, up to this.
    pub probe_at_most: u32,
    /// Decisions that a probe has. The first answer takes longer than those that follow, and what is
    /// drafted ahead is there a round later at the soonest.
    pub probe_rounds: u32,
    /// Decisions for K > 0 before plain rounds are tried. The pause doubles, up to
    /// `probe_at_most`, after a trial that found them no better than thought; where they seem far slower it
    /// is that times by how much, up to eight times as long.
    pub plain_after: u32,
    /// Rounds that such a trial has, of each session.
    pub plain_rounds: u32,
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            drafting: Drafting::InTurn,
            max: 8,
            trees: false,
            may_refrain: false,
            margin: 0.03,
            probe_after: 64,
            probe_at_most: 2048,
            probe_rounds: 3,
            plain_after: 32,
            plain_rounds: 24,
        }
    }
}

impl ControlConfig {
    /// What suits windows that are drafted then, of up to `max` tokens.
    pub fn of(drafting: Drafting, max: u32) -> Self {
        Self {
            drafting,
            max,
            probe_rounds: match drafting {
                Drafting::InTurn => 3,
                Drafting::Ahead => 6,
            },
            ..Self::default()
        }
    }
}

/// Chooses the lookahead of sessions that share a target and an endpoint.
#[derive(Clone, Debug)]
pub struct Controller {
    config: ControlConfig,
    acceptance: Acceptance,
    /// The probability that a window has an i-th token, given that it has those before.
    lengths: Acceptance,
    answers: AnswerTime,
    steps: StepCost,
    rest: Rest,
    coverage: Coverage,
    current: u32,
    probe: Probe,
    trial: Trial,
    /// The latest rounds that sought something.
    lately: Rounds,
    caution: Caution,
    /// Decisions in a row that would have begun with a lookahead.
    wishes: u32,
    ways: Ways,
    /// Load at the last decision.
    load: Load,
}

impl Controller {
    /// A controller that knows the cost of steps (measured at start) and a first guess of how
    /// long answers take.
    pub fn new(config: ControlConfig, steps: StepCost, answers: AnswerTime) -> Self {
        let current = config.max;
        let rest = Rest::new(config.max);
        let probe = Probe::new(&config);
        let trial = Trial::default();
        let ways = Ways::new(config.trees, config.may_refrain);
        Self {
            config,
            acceptance: Acceptance::default(),
            lengths: Acceptance::assuming(1.0),
            answers,
            steps,
            rest,
            coverage: Coverage::default(),
            current,
            probe,
            trial,
            lately: Rounds::new(),
            caution: Caution::new(),
            wishes: 0,
            ways,
            load: Load::default(),
        }
    }

    /// Takes in a verified window: how many tokens in a row it might have had at most, how many it had
    /// and how many were accepted. An empty one teaches nothing. A probe that brought what a beginning
    /// asks for is soon followed by the next.
    fn observe_round(&mut self, sought: u32, drafted: u32, accepted: u32) {
        if drafted == 0 {
            return;
        }
        self.acceptance.observe(sought, accepted);
        self.lengths.observe(sought, drafted);
        self.probe.taught();
        if self.config.drafting == Drafting::Ahead {
            // Many sessions, some of them lucky: what all rounds come to is in the model.
            return;
        }
        if self.current == 0 {
            let seconds = self.seconds(sought, self.load);
            let enough = self.enough(self.load) * self.goodput(0, self.load);
            self.probe.brought(accepted + 1, seconds, enough);
        }
    }

    /// Takes in how much of a lookahead that was to be drafted ahead was there: a window of `found`
    /// tokens, of up to `sought`, which would have had no more if it has `ended`.
    fn observe_coverage(&mut self, sought: u32, found: u32, ended: bool) {
        // Nor is it known of every window that it has: more is missing if there would have been more.
        let reached = self.lengths.reached();
        self.coverage
            .observe(sought, found, ended, self.part(), reached);
    }

    /// Takes in how long a window took. Those that hits bring say nothing of those that misses wait for,
    /// nor of what a further token takes.
    pub fn observe_answer(&mut self, answer: &Answer) {
        if !answer.prepared {
            self.answers.observe(answer.tokens, answer.took);
        }
    }

    /// Takes in how long a step of `rows` took.
    pub fn observe_step(&mut self, rows: u32, took: Duration) {
        self.steps.observe_alike(rows, took);
    }

    /// Takes in how long a round of a session took, from verdict to verdict: `asked` tokens were
    /// sought for it (whether or not they came), and its step had `rows` rows.
    fn observe_turn(&mut self, asked: u32, rows: u32, took: Duration) {
        let expected = self.steps.seconds(rows) + self.answer_seconds(asked);
        let part = self.part();
        self.rest.observe(self.load, asked, expected, took, part);
        let round = Round {
            load: self.load,
            asked,
            rows,
            took,
        };
        if asked == 0 {
            self.trial.observe(round);
            // Without news of windows, what is missing of them is forgotten.
            self.coverage.fade(part);
        } else {
            let sessions = self.load.sessions.max(1) as usize;
            self.lately.observe(round, sessions.saturating_mul(LATELY));
        }
    }

    /// Chooses the lookahead for a session's next round under `load`.
    pub fn choose(&mut self, load: Load) -> Choice {
        let choice = self.prefer(load);
        self.in_time(choice)
    }

    fn prefer(&mut self, load: Load) -> Choice {
        self.load = load;
        let is_tried = self.conclude_trial(load);
        let best = self.best(0, load);
        let promised = self.goodput(best, load);
        let gain = |over| promised / self.goodput(over, load);
        let (current, margin) = (self.current, self.config.margin);
        let (lookahead, limit) = if best > 0 && gain(0) < self.enough(load) {
            (0, Limit::Margin)
        } else if best > 0 && best != current && gain(current) < 1.0 + margin {
            (current, Limit::Margin)
        } else {
            (best, self.limit(best, load))
        };
        if lookahead == 0 && current > 0 && !is_tried {
            // Maybe it was held up for a moment, and to come back takes long.
            let plain = self.goodput(0, load);
            self.trial.doubt(&self.config, load, plain);
            self.caution.decided(current, load);
            return Choice { lookahead, limit };
        }
        let begins = lookahead > 0 && current == 0;
        self.wishes = if begins { self.wishes + 1 } else { 0 };
        let (lookahead, limit) = if begins && self.wishes < PERSISTENT {
            (0, Limit::Margin)
        } else {
            (lookahead, limit)
        };
        self.decide(Choice { lookahead, limit }, load)
    }

    /// Whether endpoints had better draft for nothing but verdicts that they are told, for now.
    pub fn refrains(&self) -> bool {
        self.ways.refrains()
    }

    /// Whether no lookahead paid when last asked: a session that starts now need not be bound.
    pub fn rests(&self) -> bool {
        self.current == 0
    }

    /// Whether no lookahead has paid for so long that sessions that are bound had better not be.
    pub fn rests_for_long(&self) -> bool {
        self.current == 0 && self.probe.is_over()
    }

    /// Whether the probe just decided may be left out, for its session to settle: it comes again
    /// soon. Every second one may, since sessions may be too short to settle at all.
    pub fn postpone_probe(&mut self) -> bool {
        self.probe.postpone()
    }

    /// When a window of up to `k` tokens is expected that was asked for so long ago.
    pub fn due(&self, k: u32, waited: Duration) -> Due {
        let seconds = self.window_seconds(k).clamp(0.0, 3600.0);
        let answer = Duration::from_secs_f64(seconds);
        Due::of(answer, waited, libm::round(self.length(k)) as usize)
    }

    /// What was learned of acceptance.
    pub fn acceptance(&self) -> &Acceptance {
        &self.acceptance
    }

    /// What was learned of answers.
    pub fn answers(&self) -> &AnswerTime {
        &self.answers
    }

    fn decide(&mut self, choice: Choice, load: Load) -> Choice {
        self.current = choice.lookahead;
        self.caution.decided(choice.lookahead, load);
        if self.config.max == 0 {
            return choice;
        }
        if choice.lookahead > 0 {
            self.probe.reset(&self.config);
            self.trial.reassure(load);
            let (plain, chosen) = (self.goodput(0, load), self.goodput(choice.lookahead, load));
            if !self.trial.is_due(&self.config, load, plain, chosen) {
                return choice;
            }
            return Choice {
                lookahead: 0,
                limit: Limit::Probe,
            };
        }
        self.trial.reset(load);
        if !self.probe.is_due(&self.config) {
            return choice;
        }
        Choice {
            lookahead: self.best(1, load),
            limit: Limit::Probe,
        }
    }

    /// If a trial under about this load has just been made, takes over what it says of plain rounds,
    /// and the rounds before it of the present lookahead. Whether it was made, or there were too many
    /// that told nothing.
    fn conclude_trial(&mut self, load: Load) -> bool {
        self.trial.pass(load);
        let Some((under, rounds)) = self.trial.over(load) else {
            return false;
        };
        let expected =
            |round: Round| self.steps.seconds(round.rows) + self.answer_seconds(round.asked);
        let fewest = most(FEWEST.saturating_mul(under.sessions));
        let Some(plain) = rounds.beyond(under, fewest, expected) else {
            return self.trial.fail(&self.config, load);
        };
        let lately = self.lately.beyond(under, fewest, expected);
        for (lookahead, seconds) in [(0, Some(plain)), (self.current, lately)] {
            if let Some(seconds) = seconds {
                self.rest.settle(under, lookahead, seconds);
            }
        }
        let plain = self.goodput(0, under);
        self.trial.end(&self.config, load, plain);
        true
    }

    /// How many times as good as none a lookahead has to be.
    fn enough(&self, load: Load) -> f64 {
        1.0 + f64::from(self.caution.margins(load)) * self.config.margin
    }

    /// What a session is of those that it is in a step with. Without it, the more there are, the
    /// fewer steps would count, and a choice among lookaheads would be one among their noise.
    fn part(&self) -> f64 {
        1.0 / f64::from(self.load.sessions.max(1))
    }
}

#[cfg(test)]
mod tests;
