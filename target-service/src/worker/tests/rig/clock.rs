//! Time that stands still unless a step takes some, or somebody waits.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use foretoken_engine::{
    runner::{Logits, ModelRunner, PageCopy, RunnerError, RunnerInfo, SlotMove, StepPlan},
    sim::{Latency, SimOptions, SimRunner},
};

use crate::worker::clock::Clock;

/// By how much a look takes time on, so that whoever waits for it to pass does not wait for ever.
const TICK: Duration = Duration::from_micros(1);

#[derive(Clone)]
pub(in super::super) struct TestClock(Arc<Mutex<Instant>>);

impl TestClock {
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }

    pub(super) fn pass(&self, time: Duration) {
        *self.0.lock().expect("no test panicked") += time;
    }

    pub(super) fn pass_until(&self, until: Instant) {
        let mut now = self.0.lock().expect("no test panicked");
        *now = until.max(*now);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Instant {
        self.pass(TICK);
        *self.0.lock().expect("no test panicked")
    }
}

/// A simulated model whose steps take time by the clock, and none else.
pub(super) struct Timed {
    runner: SimRunner,
    latency: Latency,
    clock: TestClock,
}

impl Timed {
    pub(super) fn new(options: SimOptions, clock: TestClock) -> Self {
        let at_once = SimOptions {
            latency: Latency::default(),
            ..options
        };
        Self {
            runner: SimRunner::new(at_once),
            latency: options.latency,
            clock,
        }
    }
}

impl ModelRunner for Timed {
    fn info(&self) -> &RunnerInfo {
        self.runner.info()
    }

    fn forward(&mut self, plan: &StepPlan, logits: &mut Logits) -> Result<(), RunnerError> {
        self.clock.pass(self.latency.of(plan));
        self.runner.forward(plan, logits)
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) {
        self.runner.copy_pages(copies);
    }

    fn move_slots(&mut self, moves: &[SlotMove]) {
        self.runner.move_slots(moves);
    }
}
