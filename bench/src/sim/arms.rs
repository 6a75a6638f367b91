//! Who decodes how, in the same deployment.

use std::time::Duration;

use anyhow::Context;
use foretoken_speculation::{
    fallback::OnMiss,
    fanout::FanOut,
    message::Delivery,
    policy::{Lookahead, Policy, SsdOptions},
};

use super::{
    endpoint::Service,
    pair::Pair,
    published::{self, LOG, Setting},
    times::Times,
    world::{Conduct, Scenario},
};

/// Lookaheads among which the best is sought.
const SHORTEST: u32 = 2;
const LONGEST: u32 = 12;
/// Tokens of a simulation that pass before anything is measured: the longest that anything takes to
/// settle is to compare trees with chains.
const WARM_UP: u64 = 4096;
/// The same of each target of several, which learn apart.
const WARM_UP_EACH: u64 = 1024;
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
            conduct: Conduct::LockStep,
            temperature: 0.0,
            batch: 1,
            service: Service::Streaming,
            round_trip: Duration::ZERO,
            targets: 1,
            endpoints: 1,
            weights: Vec::new(),
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

    /// The reference at the lookahead that suits it best.
    pub(super) fn best_reference(&self) -> anyhow::Result<(u32, Scenario)> {
        fastest((SHORTEST..=LONGEST).map(|k| (k, self.reference(k))))
    }

    /// SSD as here, with the options that it has by default: guesses by what was learned, sent as they
    /// are drafted and looked up by the target; requests do not wait for each other; and how much is
    /// drafted, how long a verdict waits and what follows a miss is decided by what was measured.
    pub(super) fn ours(&self) -> Scenario {
        let mut scenario = self.plain();
        scenario.conduct = Conduct::Learned { trees: false };
        scenario.policy = Policy::Ssd(SsdOptions::default());
        scenario
    }

    /// Ours at the lookahead that suits it best.
    pub(super) fn best_of_ours(&self) -> anyhow::Result<(u32, Scenario)> {
        let fixed = |k| {
            let mut scenario = self.ours();
            scenario.look_ahead(k);
            scenario
        };
        fastest((SHORTEST..=LONGEST).map(|k| (k, fixed(k))))
    }

    /// What is fastest for one request, ours or plain speculation.
    pub(super) fn best(&self) -> anyhow::Result<Scenario> {
        let speculative = |k| Scenario {
            times: self.times(),
            ..self.speculative(k)
        };
        let plain = (0..=LONGEST).map(|k| (k, speculative(k)));
        let (_, best) = fastest(std::iter::once((0, self.ours())).chain(plain))?;
        Ok(best)
    }

    /// With `batch` requests at once.
    pub(super) fn batched(&self, mut scenario: Scenario, batch: usize) -> Scenario {
        scenario.batch = batch;
        scenario.tokens = self.each(batch);
        scenario.warm_up = (WARM_UP / batch as u64).max(FEWEST);
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
        scenario.tokens = self.each(targets);
        scenario.warm_up = (WARM_UP / targets as u64).max(WARM_UP_EACH);
        scenario
    }

    /// How much of each of so many requests is measured.
    fn each(&self, requests: usize) -> u64 {
        (self.lab.tokens / requests as u64).max(FEWEST)
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

/// The fastest of several, with its number.
fn fastest(scenarios: impl Iterator<Item = (u32, Scenario)>) -> anyhow::Result<(u32, Scenario)> {
    let mut best: Option<(f64, u32, Scenario)> = None;
    for (number, scenario) in scenarios {
        let speed = scenario.run()?.speed();
        if best.as_ref().is_none_or(|(most, ..)| speed > *most) {
            best = Some((speed, number, scenario));
        }
    }
    let (_, number, scenario) = best.context("there is no scenario")?;
    Ok((number, scenario))
}
