//! Targets, endpoints and the links between them in simulated time.

use std::time::Duration;

use foretoken_speculation::{
    fanout::Tenant,
    message::{Delivery, ToDraft, ToTarget},
    policy::{Lookahead, Policy},
    sampling::{SamplingParams, Scratch},
};

use super::{
    clock::Clock,
    endpoint::{self, Endpoint, Service},
    pair::Pair,
    target::{self, Begin, PROMPT, Target},
    times::Times,
};
use crate::stats::jain;

/// What decides when targets verify what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Conduct {
    /// The policy alone, as in the paper's reference: all requests of a target wait for each other.
    LockStep,
    /// What was learned, as in targets of services; windows may be trees, or not.
    Learned { trees: bool },
}

/// A deployment and what it is to do.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) pair: Pair,
    pub(super) times: Times,
    pub(super) policy: Policy,
    pub(super) conduct: Conduct,
    pub(super) temperature: f32,
    /// Requests at once, per target.
    pub(super) batch: usize,
    pub(super) service: Service,
    pub(super) round_trip: Duration,
    pub(super) targets: usize,
    pub(super) endpoints: usize,
    /// What targets should have of their endpoint relative to each other; 1 each if there are none.
    pub(super) weights: Vec<f64>,
    /// Tokens a request, over all requests of a target in the mean, that are measured.
    pub(super) tokens: u64,
    /// Tokens before that, in which estimates settle.
    pub(super) warm_up: u64,
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    /// Tokens a second of each target.
    pub(super) speeds: Vec<f64>,
    /// Tokens that a verdict emits, in the mean.
    pub(super) tokens_per_round: f64,
    /// Share of verdicts that something had been drafted for.
    pub(super) hit_rate: f64,
    /// Milliseconds from the end of a pass to the end of the next, in the mean.
    pub(super) round_ms: f64,
    /// Those of it in which the target had nothing to verify.
    pub(super) wait_ms: f64,
    /// Share of the time in which endpoints worked.
    pub(super) draft_busy: f64,
    /// Tokens that windows might have had, in the mean.
    pub(super) lookahead: f64,
    /// Outcomes that endpoints granted to each target while others bid too.
    pub(super) granted: Vec<f64>,
}

impl Figures {
    /// Tokens a second of all targets.
    pub(super) fn speed(&self) -> f64 {
        self.speeds.iter().sum()
    }

    /// Jain's index over targets.
    pub(super) fn fairness(&self) -> f64 {
        jain(&self.speeds)
    }

    /// The same of what they were granted while others bid too, if any were.
    pub(super) fn shares(&self) -> Option<f64> {
        let any = self.granted.iter().any(|&granted| granted > 0.0);
        any.then(|| jain(&self.granted))
    }
}

enum Event {
    /// A target's pass ends.
    Pass(usize),
    /// A target has waited long enough for more of a continuation.
    Enough(usize),
    /// A target has waited long enough for requests that have no window yet.
    Gathered(usize),
    /// An endpoint may have something to do; ends what it did, if that.
    Endpoint {
        endpoint: usize,
        ends: bool,
    },
    ToDraft {
        target: usize,
        message: ToDraft,
    },
    ToTarget {
        target: usize,
        message: ToTarget,
    },
}

struct World<'a> {
    scenario: &'a Scenario,
    clock: Clock<Event>,
    targets: Vec<Target>,
    endpoints: Vec<Endpoint>,
    scratch: Scratch,
}

/// Counts at some time.
struct Snapshot {
    at: Duration,
    targets: Vec<target::Counts>,
    endpoints: Vec<endpoint::Counts>,
    granted: Vec<u64>,
}

impl Scenario {
    /// Runs it: first until every target has warmed up, then until all have the tokens asked for.
    pub(super) fn run(&self) -> anyhow::Result<Figures> {
        let sampling = SamplingParams {
            temperature: self.temperature,
            ..SamplingParams::default()
        };
        // A target that is faster than others goes on while they finish.
        let max_len = PROMPT + 16 * (self.warm_up + self.tokens) as usize;
        let target = |number| {
            let first = number * self.batch;
            Target::new(first..first + self.batch, self, &sampling, max_len)
        };
        let endpoint = |_| Endpoint::new(self.service, max_len, &self.times, self.tenants());
        let mut world = World {
            scenario: self,
            clock: Clock::new(),
            targets: (0..self.targets).map(target).collect::<Result<_, _>>()?,
            endpoints: (0..self.endpoints).map(endpoint).collect(),
            scratch: Scratch::new(),
        };
        for number in 0..self.targets {
            let messages = world.targets[number].open(Duration::ZERO);
            world.tell(number, messages);
            world.begin(number);
        }
        let batch = self.batch as u64;
        world.run_until(self.warm_up * batch);
        let from = world.snapshot();
        world.run_until((self.warm_up + self.tokens) * batch);
        Ok(from.figures(&world.snapshot()))
    }

    /// Lets the endpoint look verdicts up.
    pub(super) fn pull(&mut self) {
        if let Policy::Ssd(options) = &mut self.policy {
            options.delivery = Delivery::Pull;
        }
    }

    /// Sets the lookahead, if any is sought at all.
    pub(super) fn look_ahead(&mut self, k: u32) {
        if let Policy::Ssd(options) = &mut self.policy {
            options.lookahead = Lookahead::Fixed(k);
        }
    }

    /// The same with windows that may be trees.
    pub(super) fn with_trees(mut self) -> Self {
        self.conduct = Conduct::Learned { trees: true };
        self
    }

    /// The targets as endpoints see them.
    fn tenants(&self) -> Vec<Tenant> {
        let tenant = |target| Tenant {
            weight: self.weights.get(target).copied().unwrap_or(1.0),
        };
        (0..self.targets).map(tenant).collect()
    }

    /// Time of a message from one side to the other.
    fn way(&self) -> Duration {
        self.round_trip / 2
    }
}

impl World<'_> {
    fn run_until(&mut self, tokens: u64) {
        while self.targets.iter().any(|t| t.counts.tokens < tokens) {
            let Some(event) = self.clock.next() else {
                return;
            };
            self.happen(event);
        }
    }

    fn happen(&mut self, event: Event) {
        let now = self.clock.now();
        match event {
            Event::Pass(target) => {
                let pair = &self.scenario.pair;
                self.targets[target].decide(now, pair, &mut self.scratch);
                self.conclude(target);
            }
            Event::Enough(target) => self.conclude(target),
            Event::Gathered(target) => self.begin(target),
            Event::ToTarget { target, message } => {
                let messages = self.targets[target].receive(now, &message);
                self.tell(target, messages);
                self.conclude(target);
                self.begin(target);
            }
            Event::ToDraft { target, message } => {
                let endpoint = target % self.endpoints.len();
                self.endpoints[endpoint].receive(target, message);
                // After all that comes at the same time.
                let ends = false;
                self.clock
                    .after(Duration::ZERO, Event::Endpoint { endpoint, ends });
            }
            Event::Endpoint { endpoint, ends } => self.work(endpoint, ends),
        }
    }

    fn work(&mut self, endpoint: usize, ends: bool) {
        let own = &mut self.endpoints[endpoint];
        if ends {
            own.busy = false;
        }
        let Scenario { times, pair, .. } = self.scenario;
        let now = self.clock.now();
        let Some((took, answers)) = own.work(now, times, pair, &mut self.scratch) else {
            if let Some(pause) = own.resumes_in.take() {
                let ends = false;
                self.clock.after(pause, Event::Endpoint { endpoint, ends });
            }
            return;
        };
        let ends = true;
        let arrives = took + self.scenario.way();
        for (target, message) in answers {
            self.clock
                .after(arrives, Event::ToTarget { target, message });
        }
        self.clock.after(took, Event::Endpoint { endpoint, ends });
    }

    /// Acts upon verdicts, if there are any, or waits for more of what was drafted for them.
    fn conclude(&mut self, target: usize) {
        let now = self.clock.now();
        let own = &mut self.targets[target];
        if !own.is_decided() {
            return;
        }
        if let Some(until) = own.lingers(now) {
            self.clock
                .after(until.saturating_sub(now), Event::Enough(target));
            return;
        }
        let messages = own.conclude(now);
        self.tell(target, messages);
        self.begin(target);
    }

    fn begin(&mut self, target: usize) {
        let now = self.clock.now();
        match self.targets[target].begin(now, &self.scenario.times) {
            Begin::Pass(took) => self.clock.after(took, Event::Pass(target)),
            Begin::Wait(wait) => self.clock.after(wait, Event::Gathered(target)),
            Begin::Nothing => {}
        }
    }

    fn tell(&mut self, target: usize, messages: Vec<ToDraft>) {
        for message in messages {
            let way = self.scenario.way();
            self.clock.after(way, Event::ToDraft { target, message });
        }
    }

    fn snapshot(&self) -> Snapshot {
        Snapshot {
            at: self.clock.now(),
            targets: self.targets.iter().map(|target| target.counts).collect(),
            endpoints: self.endpoints.iter().map(|one| one.counts).collect(),
            granted: (0..self.targets.len())
                .map(|target| self.endpoints.iter().map(|one| one.granted()[target]).sum())
                .collect(),
        }
    }
}

impl Snapshot {
    /// What happened between this one and a later one.
    fn figures(&self, to: &Self) -> Figures {
        let seconds = to.at.saturating_sub(self.at).as_secs_f64();
        let pairs = || self.targets.iter().zip(&to.targets);
        let sum = |count: fn(&target::Counts) -> u64| {
            pairs().map(|(a, b)| count(b) - count(a)).sum::<u64>() as f64
        };
        let waited: Duration = pairs()
            .map(|(a, b)| b.waited.saturating_sub(a.waited))
            .sum();
        let drafts = || self.endpoints.iter().zip(&to.endpoints);
        let busy: Duration = drafts().map(|(a, b)| b.busy.saturating_sub(a.busy)).sum();
        let prepared: u64 = drafts().map(|(a, b)| b.prepared - a.prepared).sum();
        let windows: u64 = drafts().map(|(a, b)| b.windows - a.windows).sum();
        let looked = sum(|c| c.hits + c.misses);
        let passes = sum(|c| c.passes);
        Figures {
            speeds: pairs()
                .map(|(a, b)| (b.tokens - a.tokens) as f64 / seconds)
                .collect(),
            tokens_per_round: sum(|c| c.tokens) / sum(|c| c.rounds),
            // With push the target looks verdicts up, otherwise the endpoint does.
            hit_rate: if looked > 0.0 {
                sum(|c| c.hits) / looked
            } else {
                prepared as f64 / (windows as f64).max(1.0)
            },
            round_ms: seconds * 1e3 * self.targets.len() as f64 / passes,
            wait_ms: waited.as_secs_f64() * 1e3 / passes,
            draft_busy: busy.as_secs_f64() / seconds / self.endpoints.len() as f64,
            lookahead: sum(|c| c.sought) / sum(|c| c.rounds),
            granted: self
                .granted
                .iter()
                .zip(&to.granted)
                .map(|(from, to)| (to - from) as f64)
                .collect(),
        }
    }
}
