//! Who decodes how, in the same deployment.

use std::time::Duration;

use foretoken_speculation::{
    control::{AnswerTime, ControlConfig, Controller, Load},
    fallback::{Fallback, Offer, OnMiss, RowWorth},
    fanout::FanOut,
    message::Delivery,
    policy::{Lookahead, Policy, SsdOptions},
    theory::{self, Ahead, Speculator},
};

use super::{
    endpoint::Service,
    pair::Pair,
    published::{self, HIT_RATE, LOG, Setting},
    times::Times,
    world::Scenario,
};

/// Outcomes that ours drafts for.
const BUDGET: u32 = 24;
/// Most tokens of a window of ours.
const LONGEST: u32 = 12;
/// Most proposals of a tree.
const NODES: u32 = 32;
/// Tokens of a request that pass before anything is measured.
const WARM_UP: u64 = 512;
/// Fewest tokens of a request that are measured.
const FEWEST: u64 = 128;

/// What all simulations share.
pub(super) struct Lab {
    /// Tokens measured over all requests of a simulation.
    tokens: u64,
    /// Time that a row more adds to a target's pass.
    row: Duration,
}

/// A pair in a setting.
pub(super) struct Case<'a> {
    lab: &'a Lab,
    setting: Setting,
    agreement: f64,
    pair: Pair,
    /// How many times slower the draft is.
    slower: u32,
}

impl Lab {
    /// Finds the time of a row from the log's round of sixteen requests, for which the hit rate of
    /// the log's single request is needed.
    pub(super) fn new(tokens: u64) -> anyhow::Result<Self> {
        let mut lab = Self {
            tokens,
            row: Duration::ZERO,
        };
        let case = lab.case(LOG, published::log_agreement());
        let single = case.reference(LOG.k).run()?;
        lab.row = published::log_row(single.hit_rate);
        Ok(lab)
    }

    /// A pair that agrees this often when greedy.
    pub(super) fn case(&self, setting: Setting, agreement: f64) -> Case<'_> {
        Case {
            lab: self,
            setting,
            agreement,
            pair: Pair::agreeing(agreement),
            slower: 1,
        }
    }
}

impl Case<'_> {
    /// Makes the draft so many times slower.
    pub(super) fn draft_slower_by(&mut self, times: u32) {
        self.slower = times;
    }

    /// One token a pass.
    pub(super) fn plain(&self) -> Scenario {
        Scenario {
            pair: self.pair.clone(),
            times: self.times(),
            policy: Policy::Autoregressive,
            on_miss: None,
            tree: None,
            temperature: 0.0,
            batch: 1,
            lock_step: true,
            service: Service::Streaming,
            round_trip: Duration::ZERO,
            targets: 1,
            endpoints: 1,
            tokens: self.lab.tokens,
            warm_up: WARM_UP,
        }
    }

    /// Plain speculation in one process: draft, then verify.
    pub(super) fn speculative(&self, k: u32) -> Scenario {
        let mut scenario = self.plain();
        scenario.policy = Policy::Speculative(Lookahead::Fixed(k));
        scenario.times.service = Duration::ZERO;
        scenario
    }

    /// SSD as the paper's reference does it: as many guesses after any number of accepted tokens,
    /// asked for after the verdict, answered when all of them are drafted; a miss is drafted just in
    /// time while all requests of the batch wait.
    pub(super) fn reference(&self, k: u32) -> Scenario {
        let mut scenario = self.plain();
        scenario.service = Service::Blocking;
        scenario.policy = Policy::Ssd(SsdOptions {
            lookahead: Lookahead::Fixed(k),
            budget: self.setting.fan_out * (k + 1),
            fan_out: FanOut::Uniform,
            fallback: OnMiss::Remote,
            delivery: Delivery::Pull,
        });
        scenario
    }

    /// The reference at the lookahead that suits it best, of those around the published one.
    pub(super) fn best_reference(&self) -> anyhow::Result<(u32, Scenario)> {
        let mut best = (0.0, 1);
        for k in self.setting.k - 1..=self.setting.k + 2 {
            let speed = self.reference(k).run()?.speed();
            if speed > best.0 {
                best = (speed, k);
            }
        }
        Ok((best.1, self.reference(best.1)))
    }

    /// SSD as here: guesses by what was learned, sent as they are drafted and looked up by the target;
    /// requests do not wait for each other.
    pub(super) fn ours(&self, k: u32) -> Scenario {
        let mut scenario = self.plain();
        scenario.lock_step = false;
        scenario.policy = Policy::Ssd(SsdOptions {
            lookahead: Lookahead::Fixed(k),
            budget: BUDGET,
            fan_out: FanOut::Learned,
            fallback: OnMiss::Auto,
            delivery: Delivery::Push,
        });
        scenario.on_miss = Some(self.on_miss(k, 1, Duration::ZERO));
        scenario
    }

    /// The same for `batch` requests at once and a round trip, with what suits these: the lookahead
    /// and what follows a miss.
    pub(super) fn ours_for(&self, batch: usize, round_trip: Duration) -> (u32, Scenario) {
        let hidden = self.hidden_lookahead(batch, round_trip);
        let pays = self.late(hidden + 1, batch, round_trip) < self.delay(hidden + 1, batch);
        let k = hidden + u32::from(pays);
        let mut scenario = self.ours(k);
        scenario.round_trip = round_trip;
        scenario.on_miss = Some(self.on_miss(k, batch, round_trip));
        (k, self.batched(scenario, batch))
    }

    /// Lets windows be trees where that pays.
    pub(super) fn with_trees(&self, mut scenario: Scenario) -> Scenario {
        let answers = AnswerTime::new(Duration::ZERO, Duration::ZERO);
        let controller = Controller::new(ControlConfig::default(), self.times().target, answers);
        let load = Load::of(scenario.batch as u32);
        let lookahead = scenario.policy.lookahead(0);
        scenario.tree = controller.tree_budget(NODES, lookahead, load);
        scenario
    }

    /// What is fastest for one request, ours or plain speculation.
    pub(super) fn best(&self) -> anyhow::Result<(u32, Scenario)> {
        let (k, ours) = self.ours_for(1, Duration::ZERO);
        let mut best = (ours.run()?.speed(), k, ours);
        for k in 0..=LONGEST {
            let mut scenario = self.speculative(k);
            scenario.times = self.times();
            let speed = scenario.run()?.speed();
            if speed > best.0 {
                best = (speed, k, scenario);
            }
        }
        Ok((best.1, best.2))
    }

    /// With `batch` requests at once.
    pub(super) fn batched(&self, mut scenario: Scenario, batch: usize) -> Scenario {
        scenario.batch = batch;
        self.measure(&mut scenario, batch);
        scenario
    }

    /// With `targets` targets on `endpoints` endpoints.
    pub(super) fn shared(
        &self,
        mut scenario: Scenario,
        targets: usize,
        endpoints: usize,
    ) -> Scenario {
        scenario.targets = targets;
        scenario.endpoints = endpoints;
        self.measure(&mut scenario, targets);
        scenario
    }

    /// Sets how much of each of so many requests is measured.
    fn measure(&self, scenario: &mut Scenario, requests: usize) {
        let each = |tokens: u64| (tokens / requests as u64).max(FEWEST);
        scenario.tokens = each(self.lab.tokens);
        scenario.warm_up = each(WARM_UP);
    }

    /// The longest lookahead whose continuations are drafted while the target verifies.
    fn hidden_lookahead(&self, batch: usize, round_trip: Duration) -> u32 {
        let fits = |k: &u32| {
            let verification = self.verification(*k, batch);
            let (overhead, step) = self.drafting(*k, batch, round_trip);
            *k <= theory::hidden_lookahead(verification, overhead, step)
        };
        (1..=LONGEST).take_while(fits).last().unwrap_or(1)
    }

    /// How long after the verdict the last token of a continuation of `k` comes.
    fn late(&self, k: u32, batch: usize, round_trip: Duration) -> Duration {
        let (overhead, step) = self.drafting(k, batch, round_trip);
        (overhead + step * k).saturating_sub(self.verification(k - 1, batch))
    }

    /// How long the last of `k` tokens is worth waiting for.
    fn delay(&self, k: u32, batch: usize) -> Duration {
        let gain = self.agreement.powi(k as i32) * HIT_RATE;
        Duration::from_secs_f64(gain / self.worth(k, batch).rate)
    }

    /// What a request should do after a miss.
    fn on_miss(&self, k: u32, batch: usize, round_trip: Duration) -> Fallback {
        let times = self.times();
        let window = times.service + (times.token.base + times.token.row) * k + round_trip;
        let remote = Offer {
            fallback: Fallback::Remote,
            tokens: theory::expected_tokens(self.agreement, k) - 1.0,
            // Whoever waits while others go on misses their pass.
            delay: if batch > 1 {
                window.max(self.verification(k, batch))
            } else {
                window
            },
            next_hit: HIT_RATE,
        };
        let offers = [Offer::nothing(HIT_RATE), remote];
        self.worth(k, batch).choose(&offers)
    }

    /// What the time of a request is worth.
    fn worth(&self, k: u32, batch: usize) -> RowWorth {
        let speculator = |tokens| Speculator {
            tokens,
            time: 0.0,
            next_hit: HIT_RATE,
        };
        let ahead = Ahead {
            primary: speculator(theory::expected_tokens(self.agreement, k)),
            backup: speculator(1.0),
        };
        RowWorth::of(&ahead, self.verification(k, batch))
    }

    fn verification(&self, k: u32, batch: usize) -> Duration {
        self.times().pass(batch as u32 * (k + 1))
    }

    /// What an endpoint takes before it draws the first tokens of continuations, and for each step.
    fn drafting(&self, k: u32, batch: usize, round_trip: Duration) -> (Duration, Duration) {
        let times = self.times();
        let batch = batch as u32;
        let glue = times.glue.base + times.glue.row * (batch * (k + 1));
        let step = times.branch.base + times.branch.row * (batch * BUDGET);
        (times.service + glue + round_trip, step)
    }

    fn times(&self) -> Times {
        let mut times = self.setting.times(self.lab.row);
        for time in [&mut times.token, &mut times.glue, &mut times.branch] {
            time.base *= self.slower;
            time.row *= self.slower;
        }
        times.service *= self.slower;
        times
    }
}
