//! Speculation endpoints: which there are, who is bound to which, what is said to them.
//!
//! An endpoint that is down, full, draining or refuses is passed over; a request that finds none
//! decodes plainly. When a link comes up, requests that run without an endpoint are bound to it.
//!
//! While no lookahead pays, adaptive requests are not bound at all, and those that are do not stay so:
//! an endpoint that reads every prompt and follows every token in vain takes more than it can give
//! back, above all where it shares the target's cores. They are bound once a lookahead pays again,
//! one of them to find out.

mod binding;
mod choice;
mod hearing;
mod lowering;
mod misses;
mod slots;
mod telling;

use std::time::Duration;

use foretoken_protocol::Callee;
use foretoken_service::{complaints::Complaints, metrics::Fraction, report::Rounds};
use foretoken_speculation::{
    control::{Choice, Controller, Lesson, Load, StepCost},
    gather::Due,
    message::{Cutoffs, ToDraft, TreeBudget},
    policy::Patience,
};

use hearing::Hearing;
pub(super) use slots::Slots;

use super::cohort::{Cohort, Cohorts, Learned};
use crate::{config::TargetConfig, inbox::LinkKey, request::Request};

/// Multiple of the 99th percentile of answers that is waited for a window.
const PATIENCE_FACTOR: f64 = 1.5;
/// Least wait for a window: less would be a scheduling hiccup.
const PATIENCE_FLOOR: Duration = Duration::from_millis(2);

/// Wait for a window before anything is known of the endpoint.
const PATIENCE_FIRST: Duration = Duration::from_millis(50);
/// Most messages that wait for an urgent one.
const HELD: usize = 64;

/// What a step has for trees.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trees {
    /// Proposals of each, at most.
    pub(super) nodes: u32,
    /// Who is in the step.
    pub(super) load: Load,
}

/// Reaches endpoints.
pub(crate) trait Dial: Send {
    /// Keeps a link to `callee` until the outlet is dropped; its events carry `link`.
    fn dial(&self, link: LinkKey, callee: &Callee) -> Box<dyn Outlet>;
}

/// The sending end of a link.
pub(crate) trait Outlet: Send {
    /// Sends one step's messages in one frame over the connection that is the `up`-th it told of, unless
    /// that is lost. Never blocks.
    fn send(&self, up: u64, messages: Vec<ToDraft>);
}

/// One endpoint.
pub(super) struct Endpoint {
    pub(super) name: String,
    callee: Callee,
    link: LinkKey,
    /// Its share of the requests; none: it comes before those that have one.
    share: Option<f64>,
    outlet: Box<dyn Outlet>,
    pub(super) up: bool,
    /// How often it was said to be.
    pub(super) ups: u64,
    /// Why it is not, as far as that was logged.
    pub(super) trouble: Option<String>,
    pub(super) suspect: bool,
    pub(super) hearing: Hearing,
    pub(super) slots: Slots,
    /// Longest sequence that it drafts for.
    pub(super) positions: usize,
    /// Sessions that it holds for this target, when that was last counted.
    own: u32,
    /// Messages of the current step.
    pub(super) outgoing: Vec<ToDraft>,
    cohorts: Cohorts,
    /// Shows the factor C, if proposals are drawn.
    c: Option<Fraction>,
    /// Whether the two do not go together.
    pub(super) refused: bool,
    /// Replica and model there, as it said last.
    pub(super) said: (String, String),
    /// What its proposals came to.
    rounds: Rounds,
    /// What sessions have learned of its answer times.
    patience: Patience,
    pub(super) complaints: Complaints,
}

/// All endpoints, those without shares first and best first.
pub(super) struct Endpoints {
    dial: Box<dyn Dial>,
    pub(super) list: Vec<Endpoint>,
    links: u64,
    steps: StepCost,
    /// Longest windows.
    most_in_turn: u32,
    most_ahead: u32,
    /// Outcomes of a row that are drafted for, on average.
    fan_out: u32,
}

/// The patience with an endpoint of which nothing is known.
pub(super) fn fresh_patience(ceiling: Duration) -> Patience {
    let floor = PATIENCE_FLOOR.min(ceiling);
    let first = PATIENCE_FIRST.min(ceiling);
    Patience::new(PATIENCE_FACTOR, floor, ceiling, first)
}

impl Endpoint {
    pub(super) fn has_room(&self) -> bool {
        self.up && self.slots.has_room()
    }

    /// Whether it has said who it is, at any time.
    pub(super) fn was_ever_up(&self) -> bool {
        self.said != Default::default()
    }

    /// Whether it may take a session. One whose slots are all taken knows whose they should be, so
    /// it is asked unless this target has all of them; one that says nothing seldom is.
    fn may_take(&self) -> bool {
        self.up && self.hearing.may_ask() && self.slots.may_have_more(self.own)
    }
}

impl Endpoints {
    pub(super) fn new(dial: Box<dyn Dial>, steps: StepCost, config: &TargetConfig) -> Self {
        Self {
            dial,
            list: Vec::new(),
            links: 0,
            steps,
            most_in_turn: config.lookahead.most(),
            most_ahead: config.ssd.lookahead.most(),
            fan_out: (config.ssd.budget / (config.ssd.lookahead.most() + 1)).max(1),
        }
    }

    /// Queues messages for the endpoint of `link`.
    pub(super) fn post(&mut self, link: Option<LinkKey>, messages: Vec<ToDraft>) {
        if messages.is_empty() {
            return;
        }
        let Some(endpoint) = link.and_then(|link| self.find(link)) else {
            return;
        };
        endpoint.slots.count(&messages);
        endpoint.outgoing.extend(messages);
    }

    /// What was opened takes no slot, see [`Slots::uncount`].
    pub(super) fn uncount(&mut self, link: LinkKey) {
        if let Some(endpoint) = self.find(link) {
            endpoint.slots.uncount();
        }
    }

    /// Sends what was queued, one frame an endpoint. Outcomes that ask for nothing wait for one
    /// that does: while no lookahead pays, endpoints cost a frame every now and then. True if
    /// anything leaves with the next look at the links.
    pub(super) fn flush(&mut self) -> bool {
        let urgent = |message: &ToDraft| match message {
            ToDraft::Outcome(outcome) => outcome.lookahead > 0,
            ToDraft::Open(_) | ToDraft::Close { .. } => true,
        };
        let mut any = false;
        for endpoint in &mut self.list {
            let outgoing = &endpoint.outgoing;
            if outgoing.is_empty() || (outgoing.len() < HELD && !outgoing.iter().any(urgent)) {
                continue;
            }
            let messages = std::mem::take(&mut endpoint.outgoing);
            endpoint.outlet.send(endpoint.ups, messages);
            any = true;
        }
        any
    }

    /// How many tokens the next windows of an endpoint should have.
    pub(super) fn choose(&mut self, cohort: Cohort, load: Load) -> Option<Choice> {
        self.controller(cohort)
            .map(|controller| controller.choose(load))
    }

    /// What a tree of proposals for a request may have, if it may be given one: its endpoint is then
    /// asked for `suggested` tokens, unless the policy says otherwise.
    pub(super) fn tree_budget(
        &self,
        request: &Request,
        trees: Option<Trees>,
        suggested: u32,
    ) -> Option<TreeBudget> {
        let (Trees { nodes, load }, link) = trees.zip(request.link)?;
        let learned = self.learned(request.cohort(link))?;
        let lookahead = request.policy.lookahead(suggested);
        learned.controller.tree_budget(nodes, lookahead, load)
    }

    /// How likely the tokens have to be that a request's endpoint is asked for under `load`.
    pub(super) fn cutoffs(&self, request: &Request, load: Load, suggested: u32) -> Cutoffs {
        let cohort = request.link.map(|link| request.cohort(link));
        let learned = cohort.and_then(|cohort| self.learned(cohort));
        let lookahead = request.policy.lookahead(suggested);
        learned.map_or_else(Cutoffs::default, |learned| {
            learned.controller.cutoffs(lookahead, load)
        })
    }

    /// Whether this cohort's endpoint had better not draft ahead for now.
    pub(super) fn refrains(&self, cohort: Cohort) -> bool {
        let learned = self.learned(cohort);
        learned.is_some_and(|learned| learned.controller.refrains())
    }

    /// Whether no lookahead pays for this cohort, as far as is known.
    fn rests(&self, cohort: Cohort) -> bool {
        let learned = self.learned(cohort);
        learned.is_some_and(|learned| learned.controller.rests())
    }

    /// Whether none has for so long that requests had better not be bound.
    pub(super) fn rests_for_long(&self, cohort: Cohort) -> bool {
        let learned = self.learned(cohort);
        learned.is_some_and(|learned| learned.controller.rests_for_long())
    }

    /// Whether a probe may wait until its request's endpoint has read it.
    pub(super) fn postpone_probe(&mut self, cohort: Cohort) -> bool {
        let controller = self.controller(cohort);
        controller.is_some_and(Controller::postpone_probe)
    }

    /// Takes in what a window of an endpoint came to.
    pub(super) fn observe_window(&mut self, cohort: Cohort, lesson: &Lesson) {
        if lesson.drafted > 0
            && let Some(endpoint) = self.find(cohort.link)
        {
            endpoint.rounds.note_window(lesson.accepted);
        }
        if let Some(controller) = self.controller(cohort) {
            controller.observe_window(lesson);
        }
    }

    /// Takes in how long a round took, and how much of its window was there.
    pub(super) fn observe_time(&mut self, cohort: Cohort, lesson: &Lesson) {
        if let Some(controller) = self.controller(cohort) {
            controller.observe_time(lesson);
        }
    }

    /// Tells all controllers what a step took.
    pub(super) fn observe_step(&mut self, rows: u32, took: Duration) {
        self.steps.observe_alike(rows, took);
        for endpoint in &mut self.list {
            endpoint.cohorts.observe_step(rows, took);
        }
    }

    /// What steps cost.
    pub(super) fn steps(&self) -> &StepCost {
        &self.steps
    }

    /// Expected time of a step.
    pub(super) fn step_cost(&self, rows: usize) -> Duration {
        self.steps.time(rows as u32)
    }

    /// When a window of up to `most` tokens is expected that was asked for so long ago.
    pub(super) fn due(&self, cohort: Cohort, most: u32, waited: Duration) -> Due {
        let learned = self.learned(cohort);
        learned.map_or(Due::UNKNOWN, |learned| learned.controller.due(most, waited))
    }

    /// Expected tokens per second of a request that runs alone.
    #[cfg(test)]
    pub(super) fn goodput(&self, cohort: Cohort, lookahead: u32) -> Option<f64> {
        let controller = &self.learned(cohort)?.controller;
        Some(controller.goodput(lookahead, Load::of(1)))
    }

    /// The endpoint that `request` is bound to, or would be if a lookahead paid. None of one that
    /// waits for a slot: its rounds are plain whatever pays.
    pub(super) fn serves(&self, request: &Request) -> Option<Cohort> {
        let link = match request.link {
            Some(link) => Some(link).filter(|_| request.session.is_bound()),
            None => self.pick(request).filter(|_| request.is_adaptive()),
        };
        Some(request.cohort(link?))
    }

    pub(super) fn find(&mut self, link: LinkKey) -> Option<&mut Endpoint> {
        self.list.iter_mut().find(|endpoint| endpoint.link == link)
    }

    pub(super) fn learned(&self, cohort: Cohort) -> Option<&Learned> {
        let mut list = self.list.iter();
        let endpoint = list.find(|endpoint| endpoint.link == cohort.link)?;
        Some(endpoint.cohorts.of(cohort))
    }

    fn learned_mut(&mut self, cohort: Cohort) -> Option<&mut Learned> {
        let endpoint = self.find(cohort.link)?;
        Some(endpoint.cohorts.of_mut(cohort))
    }

    fn controller(&mut self, cohort: Cohort) -> Option<&mut Controller> {
        let learned = self.learned_mut(cohort)?;
        Some(&mut learned.controller)
    }
}
