//! A worker, an endpoint, and the hand that carries messages between them.

mod clock;
mod fault;

use std::{
    collections::{HashMap, VecDeque},
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Waker},
    time::Duration,
};

use foretoken_engine::{
    batch::Engine,
    runner::ModelRunner,
    sim::{Latency, SimOptions, SimRunner},
};
use foretoken_protocol::{
    Address, Callee,
    generate::{
        EventReceiver, EventSender, FinishReason, GenerateError, GenerateEvent, GenerateRequest,
        GenerationStats,
    },
    link::{LinkEvent, LoadReport, Welcome, WireSize},
};
use foretoken_speculation::{
    Seed, TokenId,
    control::StepCost,
    message::{ToDraft, ToTarget},
    sampling::SamplingParams,
};
use futures::Stream;
use prometheus_client::{encoding::text::encode, registry::Registry};

use self::clock::Timed;
pub(super) use self::{clock::TestClock, fault::Fault};
use super::endpoint::MiniEndpoint;
use crate::{
    check,
    config::TargetConfig,
    inbox::{Arrival, LinkKey, Message, Source},
    metrics::Metrics,
    worker::{Dial, Gauges, Outlet, Turn, Worker},
};

type Wire = Arc<Mutex<VecDeque<ToDraft>>>;

/// How often each link was said to be up.
type Ups = Arc<Mutex<HashMap<LinkKey, u64>>>;

struct TestDial(Wire, Ups);
struct TestOutlet {
    wire: Wire,
    link: LinkKey,
    ups: Ups,
}

impl Dial for TestDial {
    fn dial(&self, link: LinkKey, _callee: &Callee) -> Box<dyn Outlet> {
        Box::new(TestOutlet {
            wire: Arc::clone(&self.0),
            link,
            ups: Arc::clone(&self.1),
        })
    }
}

impl Outlet for TestOutlet {
    fn send(&self, up: u64, messages: Vec<ToDraft>) {
        let ups = self.ups.lock().expect("no test panicked");
        assert_eq!(ups.get(&self.link), Some(&up), "meant for another");
        self.wire.lock().expect("no test panicked").extend(messages);
    }
}

pub(super) struct Rig {
    pub(super) worker: Worker,
    pub(super) endpoint: MiniEndpoint,
    pub(super) fault: Fault,
    /// What its time is told by, unless that is the host's clock.
    clock: Option<TestClock>,
    wire: Wire,
    ups: Ups,
    late: Vec<(usize, ToTarget)>,
    turns: usize,
    carried: usize,
    /// How often the endpoint was asked to open a session.
    pub(super) opens: usize,
    /// Bytes of all messages, both ways.
    pub(super) bytes: u64,
    registry: Registry,
}

/// The answer to a request, as far as it has come.
pub(super) struct Output {
    events: EventReceiver,
    pub(super) tokens: Vec<TokenId>,
    pub(super) pieces: Vec<GenerateEvent>,
    pub(super) end: Option<Result<(FinishReason, GenerationStats), GenerateError>>,
}

impl Output {
    pub(super) fn collect(&mut self) -> bool {
        while let Some(event) = self.events.try_recv() {
            match event {
                Ok(GenerateEvent::Finished { reason, stats }) => {
                    self.end = Some(Ok((reason, *stats)));
                }
                Ok(GenerateEvent::Tokens(round)) => {
                    let tokens = round.tokens.iter().map(|token| token.token);
                    self.tokens.extend(tokens);
                    self.pieces.push(GenerateEvent::Tokens(round));
                }
                Ok(event) => self.pieces.push(event),
                Err(error) => self.end = Some(Err(error)),
            }
        }
        self.end.is_some()
    }

    /// Collects what has come, and leaves a waker for what comes next.
    pub(super) fn wait(&mut self, waker: &Waker) -> bool {
        let has_ended = self.collect();
        let next = Pin::new(&mut self.events).poll_next(&mut Context::from_waker(waker));
        assert!(has_ended || next.is_pending());
        has_ended
    }

    pub(super) fn stats(&self) -> &GenerationStats {
        &self
            .end
            .as_ref()
            .expect("it has ended")
            .as_ref()
            .expect("it has not failed")
            .1
    }

    pub(super) fn reason(&self) -> FinishReason {
        self.end
            .as_ref()
            .expect("it has ended")
            .as_ref()
            .expect("it has not failed")
            .0
    }
}

pub(super) fn language() -> SimOptions {
    SimOptions {
        language: 7,
        vocab_size: 64,
        latency: Latency::default(),
        ..SimOptions::default()
    }
}

/// The same, in steps that take so long.
pub(super) fn slow_language(base: Duration, per_row: Duration) -> SimOptions {
    SimOptions {
        latency: Latency {
            base,
            per_row,
            ..Latency::default()
        },
        ..language()
    }
}

pub(super) fn request(seed: u64, temperature: f32, max_tokens: u32) -> GenerateRequest {
    let tokens: Vec<TokenId> = (0..20)
        .map(|i| TokenId((seed as u32 + i * 5) % 64))
        .collect();
    GenerateRequest {
        request_id: format!("request {seed}"),
        owner: 0,
        prompt_len: tokens.len(),
        tokens,
        sampling: SamplingParams {
            temperature,
            ..SamplingParams::default()
        },
        seed: Seed(seed),
        max_tokens,
        ignore_eos: false,
        stop_token_ids: Vec::new(),
        logprobs: None,
        prompt_logprobs: false,
        policy: None,
        lookahead: None,
        cache_prompt: true,
        cache_salt: None,
        endpoints: Vec::new(),
        tell_stats: false,
        hold: Duration::ZERO,
        trace: None,
    }
}

/// The output without any endpoint.
pub(super) fn plain(request: &GenerateRequest) -> Vec<TokenId> {
    let mut rig = Rig::new(TargetConfig::default(), language(), 1.0);
    let mut output = rig.ask(request.clone());
    rig.run(std::slice::from_mut(&mut output));
    assert_eq!(output.stats().drafted, 0);
    output.tokens
}

impl Rig {
    /// A worker without endpoints, for which time passes only while it steps or waits.
    pub(super) fn new(config: TargetConfig, language: SimOptions, agreement: f64) -> Self {
        let clock = TestClock::new();
        let runner = Box::new(Timed::new(language, clock.clone()));
        let mut rig = Self::with(config, runner, language, agreement);
        rig.worker = rig.worker.timed_by(clock.clone());
        rig.clock = Some(clock);
        rig
    }

    /// One that lives in the time of this host, for tests with threads.
    pub(super) fn in_real_time(config: TargetConfig, language: SimOptions, agreement: f64) -> Self {
        let runner = Box::new(SimRunner::new(language));
        Self::with(config, runner, language, agreement)
    }

    fn with(
        config: TargetConfig,
        runner: Box<dyn ModelRunner>,
        language: SimOptions,
        agreement: f64,
    ) -> Self {
        let engine = Engine::new(runner);
        let (metrics, registry) = Metrics::new("test", engine.info());
        let wire = Wire::default();
        let ups = Ups::default();
        let dial = Box::new(TestDial(Arc::clone(&wire), Arc::clone(&ups)));
        let steps = if language.latency == Latency::default() {
            Vec::new()
        } else {
            let Latency { base, per_row, .. } = language.latency;
            [1, 16].map(|rows| (rows, base + per_row * rows)).to_vec()
        };
        let steps = StepCost::new(steps);
        let worker = Worker::new(
            config,
            engine,
            dial,
            metrics,
            Arc::new(Gauges::default()),
            steps,
        );
        Self {
            worker,
            endpoint: MiniEndpoint::new(&language, agreement),
            fault: Fault::None,
            clock: None,
            wire,
            ups,
            late: Vec::new(),
            turns: 0,
            carried: 0,
            opens: 0,
            bytes: 0,
            registry,
        }
    }

    /// Adds the endpoint and brings its link up.
    pub(super) fn connect(&mut self) {
        self.endpoints(&[("draft", 1)]);
        self.link(LinkEvent::Up(Welcome::default()));
    }

    /// These are all endpoints there are, by name and port; each new one has the next link.
    pub(super) fn endpoints(&mut self, list: &[(&str, u16)]) {
        let named = |&(name, port): &(&str, u16)| Source {
            name: name.into(),
            callee: Address::loopback(port).into(),
            share: None,
        };
        let list = list.iter().map(named).collect();
        self.worker.take(Message::Endpoints(list));
    }

    /// The endpoint says that so many of its slots are taken.
    pub(super) fn load(&mut self, slots: u32, used: u32) {
        self.link(LinkEvent::Load(LoadReport {
            slots,
            used,
            draining: false,
        }));
    }

    /// Turns until so many tokens have come.
    pub(super) fn until(&mut self, output: &mut Output, tokens: usize) {
        while output.tokens.len() < tokens {
            self.turn();
            output.collect();
        }
    }

    pub(super) fn link(&mut self, event: LinkEvent) {
        self.hear(1, event);
    }

    /// A link says something.
    pub(super) fn hear(&mut self, link: u64, event: LinkEvent) {
        let (link, at) = (LinkKey(link), self.worker.clock.now());
        if let LinkEvent::Up(_) = event {
            let mut ups = self.ups.lock().expect("no test panicked");
            *ups.entry(link).or_default() += 1;
        }
        self.worker.take(Message::Link(link, event, at));
    }

    pub(super) fn ask(&mut self, request: GenerateRequest) -> Output {
        let (events, receiver) = EventSender::channel();
        let (tokens, pieces) = (Vec::new(), Vec::new());
        let mut output = Output {
            events: receiver,
            tokens,
            pieces,
            end: None,
        };
        let info = self.worker.engine.info();
        match check::request(&request, &self.worker.config, info) {
            Err(error) => output.end = Some(Err(error)),
            Ok(policy) => {
                let arrival = Arrival {
                    request,
                    policy,
                    events,
                    at: self.worker.clock.now(),
                    recording: None,
                };
                self.worker.take(Message::Generate(Box::new(arrival)));
            }
        }
        output
    }

    /// What its time is told by.
    pub(super) fn clock(&self) -> TestClock {
        self.clock.clone().expect("it has its own")
    }

    /// Nothing happens for some time.
    pub(super) fn pass(&mut self, time: Duration) {
        self.clock.as_ref().expect("it has its own").pass(time);
    }

    /// One turn of the worker, and of everything around it. Whether the worker had nothing to compute.
    pub(super) fn turn(&mut self) -> bool {
        self.turns += 1;
        assert!(self.turns < 50_000, "the worker does not get anywhere");
        let turn = self.worker.turn(None);
        let delivered = self.carry();
        if let (Turn::Idle(Some(until)), false, Some(clock)) = (&turn, delivered, &self.clock) {
            clock.pass_until(*until);
        }
        matches!(turn, Turn::Idle(_))
    }

    pub(super) fn run(&mut self, outputs: &mut [Output]) {
        while !outputs.iter_mut().all(Output::collect) {
            self.turn();
        }
        self.turn();
    }

    /// What metrics show of `series`, over all of its labels.
    pub(super) fn shown(&self, series: &str) -> f64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("it is written to memory");
        let lines = text.lines().filter_map(|line| line.split_once('{'));
        let values = lines.filter(|(name, _)| *name == series);
        let values = values.filter_map(|(_, rest)| rest.rsplit_once(' ')?.1.parse::<f64>().ok());
        values.sum()
    }

    /// The same of what is counted in whole numbers.
    pub(super) fn counted(&self, series: &str) -> u64 {
        self.shown(series) as u64
    }

    /// That nothing is held any more.
    pub(super) fn assert_idle(&self) {
        assert!(self.worker.requests.is_empty());
        assert_eq!(
            self.worker.engine.usage().referenced,
            0,
            "pages are still referenced"
        );
        assert_eq!(self.worker.scheduler.running().len(), 0);
        assert_eq!(self.worker.metrics.sessions.get(), 0);
    }

    /// What was sent to the endpoint since the last time.
    pub(super) fn sent(&self) -> Vec<ToDraft> {
        let mut wire = self.wire.lock().expect("no test panicked");
        wire.drain(..).collect()
    }

    fn carry(&mut self) -> bool {
        let sent = self.sent();
        self.weigh(&sent);
        let mut answers = Vec::new();
        for message in &sent {
            if !self.lost() {
                self.answer(message, &mut answers);
            }
        }
        self.fault.spoil(&mut answers);
        for answer in answers {
            if !self.lost() {
                let delay = self.fault.delay(&answer);
                self.late.push((self.turns + delay, answer));
            }
        }
        let (due, late): (Vec<_>, Vec<_>) = std::mem::take(&mut self.late)
            .into_iter()
            .partition(|(at, _)| *at <= self.turns);
        self.late = late;
        let due = due.into_iter().map(|(_, answer)| answer).collect();
        let due = self.fault.deliver(due);
        self.weigh(&due);
        let delivered = !due.is_empty();
        if delivered {
            self.link(LinkEvent::Messages(due.into()));
        }
        delivered
    }

    fn answer(&mut self, message: &ToDraft, answers: &mut Vec<ToTarget>) {
        self.opens += usize::from(matches!(message, ToDraft::Open(_)));
        if let (Fault::Refuse { retry }, ToDraft::Open(open)) = (self.fault, message) {
            let reason = "all slots are taken".into();
            let (session, epoch) = (open.session, open.epoch);
            answers.push(ToTarget::Refused {
                session,
                epoch,
                reason,
                retry,
            });
            return;
        }
        self.endpoint.handle(message, answers);
    }

    fn weigh(&mut self, messages: &[impl WireSize]) {
        let bytes: usize = messages.iter().map(WireSize::wire_size).sum();
        self.bytes += bytes as u64;
    }

    fn lost(&mut self) -> bool {
        self.carried += 1;
        matches!(self.fault, Fault::Lose(n) if self.carried.is_multiple_of(n))
    }
}
