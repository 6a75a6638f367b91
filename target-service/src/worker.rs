//! The engine thread: every request, stepped together.
//!
//! ```text
//! inbox --> requests --> plan --> engine step --> verdicts --> outcomes to endpoints
//!   ^                                                     '--> tokens to clients
//!   '---- windows, links, arrivals
//! ```
//!
//! Outcomes leave before anything else is done with a verdict, because drafts wait for them. The
//! thread sleeps when everything that could run waits for windows, until the first of them comes
//! or is overdue.

mod arrivals;
mod clock;
mod cohort;
mod endpoints;
mod feeding;
mod handing;
mod lingering;
mod linking;
mod parking;
mod plan;
mod stopgap;
mod telling;
mod verdict;

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use foretoken_engine::{
    batch::Engine,
    schedule::{Limits, RequestId, Scheduler},
};
use foretoken_protocol::{
    generate::{GenerateError, TargetLoad},
    link::Mailbox,
};
use foretoken_service::{
    report::{Board, LoadReport, TargetReport},
    rounds::Feed,
};
use foretoken_speculation::{TokenId, control::StepCost, policy::target::Input, sampling::Scratch};

use crate::{
    config::TargetConfig,
    inbox::{LinkKey, Message},
    metrics::Metrics,
    request::Request,
};
use clock::{Clock, HostClock};
pub(crate) use cohort::{Cohort, Regime};
use endpoints::Endpoints;
pub(crate) use endpoints::{Dial, Outlet};
use feeding::Feeding;
use stopgap::Stopgap;

/// How often requests that wait are looked at for clients that have gone.
const SWEEP: Duration = Duration::from_millis(20);
/// How fresh a look at the links is good enough before a pass that follows a message.
const LINK_PAUSE: Duration = Duration::from_micros(20);
/// Longest sleep of a target without requests.
const NAP: Duration = Duration::from_secs(1);
/// How often whoever asks is told something new.
const SHOW: Duration = Duration::from_millis(500);

/// What the engine thread tells the rest of the service.
#[derive(Default)]
pub(crate) struct Gauges {
    pub(crate) running: AtomicU32,
    pub(crate) waiting: AtomicU32,
    pub(crate) kv_permille: AtomicU32,
    pub(crate) draining: AtomicBool,
}

impl Gauges {
    /// The load as routers see it.
    pub(crate) fn load(&self) -> TargetLoad {
        TargetLoad {
            running: self.running.load(Ordering::Relaxed),
            waiting: self.waiting.load(Ordering::Relaxed),
            kv_used_permille: self.kv_permille.load(Ordering::Relaxed),
            draining: self.draining.load(Ordering::Relaxed),
        }
    }
}

/// The engine thread's state.
pub(crate) struct Worker {
    config: TargetConfig,
    eos: Vec<TokenId>,
    engine: Engine,
    scheduler: Scheduler,
    requests: BTreeMap<RequestId, Request>,
    /// Those of them that wait for their clients to read, first come first.
    parked: Vec<RequestId>,
    endpoints: Endpoints,
    stopgap: Stopgap,
    metrics: Metrics,
    feed: Feed,
    gauges: Arc<Gauges>,
    scratch: Scratch,
    feeding: Feeding,
    /// Requests so far; names the next one.
    arrivals: u64,
    clock: Box<dyn Clock>,
    started: Instant,
    now: Instant,
    sweep_due: Instant,
    board: Board,
    show_due: Instant,
    /// Requests that were given a place, and how long they had waited for it, all together.
    admitted: (u64, Duration),
}

/// Whether the thread goes on.
#[derive(PartialEq, Eq)]
enum Flow {
    On,
    End,
}

/// What a turn of the loop came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// A step ran, or may run now.
    Stepped,
    /// Nothing can run before a message comes or, if there is one, this time.
    Idle(Option<Instant>),
    /// It was told to stop.
    Ended,
}

impl Worker {
    /// A worker without requests; `steps` is what steps cost, as measured.
    pub(crate) fn new(
        config: TargetConfig,
        engine: Engine,
        dial: Box<dyn Dial>,
        metrics: Metrics,
        gauges: Arc<Gauges>,
        steps: StepCost,
    ) -> Self {
        let info = engine.info();
        let rows = match config.max_step_rows {
            0 => info.max_rows,
            rows => rows.min(info.max_rows),
        };
        let prefill_rows = match config.prefill_rows {
            0 => rows.div_ceil(2),
            rows => rows,
        };
        let limits = Limits {
            running: config.max_running,
            waiting: config.max_waiting,
            rows,
            prefill_rows,
            pages: info.pages,
            positions: info.max_positions,
        };
        let clock = HostClock;
        let now = clock.now();
        Self {
            eos: config.eos_tokens(),
            endpoints: Endpoints::new(dial, steps, &config),
            stopgap: Stopgap::new(config.on_loss, info.vocab_size as u32),
            config,
            engine,
            scheduler: Scheduler::new(limits),
            requests: BTreeMap::new(),
            parked: Vec::new(),
            metrics,
            feed: Feed::new("target", "", false),
            gauges,
            scratch: foretoken_engine::sampling::scratch(),
            feeding: Feeding::default(),
            arrivals: 0,
            clock: Box::new(clock),
            started: now,
            now,
            sweep_due: now,
            board: Board::default(),
            show_due: now,
            admitted: Default::default(),
        }
    }

    /// The same with somebody to tell rounds to.
    #[must_use]
    pub(crate) fn telling(mut self, feed: Feed) -> Self {
        self.feed = feed;
        self
    }

    /// The same with a board on which it says how it is doing.
    #[must_use]
    pub(crate) fn showing(mut self, board: Board) -> Self {
        self.board = board;
        self
    }

    /// The same in the time of another clock than the host's.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn timed_by(mut self, clock: impl Clock + 'static) -> Self {
        let now = clock.now();
        self.clock = Box::new(clock);
        (self.started, self.now, self.sweep_due, self.show_due) = (now, now, now, now);
        self
    }

    /// Works until told to stop, or told to drain and done.
    pub(crate) fn run(mut self, inbox: &Mailbox<Message>) {
        let mut pause = Duration::ZERO;
        loop {
            // An empty look also sends what the step before had to say.
            if self.hear(inbox, pause) == Flow::End {
                return;
            }
            pause = Duration::ZERO;
            let draining = self.gauges.draining.load(Ordering::Relaxed);
            if draining && self.requests.is_empty() {
                return;
            }
            let until = match self.turn(Some(inbox)) {
                Turn::Stepped => {
                    if self.feeding.looked {
                        inbox.send();
                        pause = LINK_PAUSE;
                    }
                    continue;
                }
                Turn::Idle(until) => until,
                Turn::Ended => return,
            };
            let patience = until.map_or(NAP, |until| {
                until.saturating_duration_since(self.clock.now())
            });
            if let Some(message) = inbox.recv_timeout(patience) {
                if self.take(message) == Flow::End {
                    return;
                }
                // The links have just been looked at.
                pause = LINK_PAUSE;
            }
        }
    }

    /// Looks at everything once: cancelled requests, the next step. What has come into `inbox`
    /// during the pass is taken in before anything follows from its verdicts.
    pub(crate) fn turn(&mut self, inbox: Option<&Mailbox<Message>>) -> Turn {
        self.now = self.clock.now();
        self.sweep();
        let turn = self.step(inbox);
        if let Turn::Idle(_) = turn {
            self.hand_on();
        }
        // Before anybody else can take the places that the step has freed.
        let unparked = self.unpark();
        self.publish();
        if self.now >= self.show_due {
            self.show_due = self.now + SHOW;
            self.board.show_target(TargetReport {
                endpoints: self.endpoints.told(),
                load: Some(self.load()),
            });
        }
        match turn {
            Turn::Idle(_) if unparked => Turn::Stepped,
            // Somebody who waits for a place may go away without a message.
            Turn::Idle(None) if !self.requests.is_empty() => Turn::Idle(Some(self.now + SWEEP)),
            Turn::Idle(Some(until)) => Turn::Idle(Some(until.min(self.now + SWEEP))),
            turn => turn,
        }
    }

    /// Takes in what has come, from links too unless they were looked at within `pause`.
    fn hear(&mut self, inbox: &Mailbox<Message>, pause: Duration) -> Flow {
        for message in inbox.arrived(pause) {
            if self.take(message) == Flow::End {
                return Flow::End;
            }
        }
        Flow::On
    }

    fn take(&mut self, message: Message) -> Flow {
        self.now = self.clock.now();
        match message {
            Message::Generate(arrival) => self.arrive(*arrival),
            Message::Link(link, event, at) => self.link_event(link, event, at),
            Message::Endpoints(list) => self.set_endpoints(list),
            Message::Drain => self.gauges.draining.store(true, Ordering::Relaxed),
            Message::Stop => {
                self.lose_all("the target is shutting down");
                return Flow::End;
            }
        }
        Flow::On
    }

    /// Ends the requests whose clients have gone or, for all that is known here, have enough, and forgets
    /// refusals that are old.
    fn sweep(&mut self) {
        let all = self.now >= self.sweep_due;
        if all {
            self.sweep_due = self.now + SWEEP;
            for request in self.requests.values_mut() {
                request.refused.forget_old(self.now);
            }
        }
        let gone: Vec<_> = self
            .requests
            .iter()
            .filter(|(_, request)| (all || request.seq.is_some()) && request.events.is_cancelled())
            .map(|(&id, _)| id)
            .collect();
        for id in gone {
            if let Some(mut request) = self.requests.remove(&id) {
                self.count_cancelled(&request);
                if let Some(recording) = request.recording.take() {
                    recording.cancelled(self.now);
                }
                let effects = request.session.handle(self.elapsed(), Input::Cancelled);
                self.endpoints.post(request.link, effects.messages);
                self.release(&mut request);
            }
        }
        self.endpoints.flush();
    }

    /// Gives back what a request holds here.
    fn release(&mut self, request: &mut Request) {
        request.unlink(&self.metrics);
        self.scheduler.finish(request.id);
        if let Some(seq) = request.seq.take()
            && let Err(error) = self.engine.close(seq)
        {
            tracing::error!(%error, "a request had no sequence");
        }
    }

    /// Ends a request with an error that makes the router replay it elsewhere.
    fn lose(&mut self, id: RequestId, cause: &str) {
        let Some(mut request) = self.requests.remove(&id) else {
            return;
        };
        self.metrics.lost.inc();
        let effects = request.session.handle(self.elapsed(), Input::Cancelled);
        self.endpoints.post(request.link, effects.messages);
        self.release(&mut request);
        if let Some(recording) = request.recording.take() {
            recording.failed(cause);
        }
        // So much is not computed again.
        request.flush(self.now);
        let instance = self.config.instance.clone();
        request.events.fail(GenerateError::Lost {
            instance,
            cause: cause.into(),
        });
    }

    fn lose_all(&mut self, cause: &str) {
        let all: Vec<_> = self.requests.keys().copied().collect();
        for id in all {
            self.lose(id, cause);
        }
        self.endpoints.flush();
    }

    /// Shows how busy this target is.
    fn publish(&self) {
        let (running, waiting) = (
            self.scheduler.running().len(),
            self.scheduler.waiting().len(),
        );
        let pages = self.engine.info().pages.max(1);
        let used = self.engine.usage().referenced;
        self.gauges.running.store(running as u32, Ordering::Relaxed);
        self.gauges.waiting.store(waiting as u32, Ordering::Relaxed);
        self.gauges
            .kv_permille
            .store((used * 1000 / pages) as u32, Ordering::Relaxed);
        self.metrics.running.set(running as i64);
        self.metrics.waiting.set(waiting as i64);
        self.metrics.parked.set(self.parked.len() as i64);
        self.metrics.kv_usage.set(used as f64 / pages as f64);
    }

    /// How busy this target is, for whoever decides how many there are.
    fn load(&self) -> LoadReport {
        let (admitted, waited) = self.admitted;
        LoadReport {
            running: self.scheduler.running().len() as u32,
            places: self.scheduler.limits().running as u32,
            waiting: self.scheduler.waiting().len() as u32,
            admitted,
            waited_millis: u64::try_from(waited.as_millis()).unwrap_or(u64::MAX),
            pages: self.engine.info().pages as u64,
            pages_in_use: self.engine.usage().referenced as u64,
        }
    }

    /// Time as sessions see it.
    fn elapsed(&self) -> Duration {
        self.now.saturating_duration_since(self.started)
    }
}

/// The request bound to `link` that has this name there.
fn bound(
    requests: &mut BTreeMap<RequestId, Request>,
    link: LinkKey,
    session: u64,
) -> Option<&mut Request> {
    requests
        .get_mut(&RequestId(session))
        .filter(|request| request.link == Some(link))
}

#[cfg(test)]
mod tests;
