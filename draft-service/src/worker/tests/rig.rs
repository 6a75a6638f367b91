//! A worker without threads or sockets, and what is said to it.

use std::sync::{Arc, Mutex};

use foretoken_engine::{
    batch::{Engine, Feed, Reuse, Wants},
    sim::{SimOptions, SimRunner},
};
use foretoken_protocol::link::{Hello, LinkId, LoadReport, ServerEvent};
use foretoken_speculation::{
    Epoch, Round, Seed, SessionId, TokenId,
    message::{Open, Outcome, ToDraft, ToTarget, Window},
    sampling::{Sampler, SamplingParams, Scratch},
};

use crate::{
    config::DraftConfig,
    metrics::Metrics,
    worker::{Outlet, Worker},
};

pub(super) type Sent = Arc<Mutex<Vec<(LinkId, Vec<ToTarget>)>>>;

pub(super) struct TestOutlet {
    sent: Sent,
    loads: Arc<Mutex<Vec<LoadReport>>>,
}

impl Outlet for TestOutlet {
    fn send(&self, _listener: usize, link: LinkId, messages: Vec<ToTarget>) {
        self.sent
            .lock()
            .expect("no test panicked")
            .push((link, messages));
    }

    fn report(&self, load: LoadReport) {
        self.loads.lock().expect("no test panicked").push(load);
    }
}

pub(super) struct Rig {
    pub(super) worker: Worker<TestOutlet>,
    sent: Sent,
    pub(super) loads: Arc<Mutex<Vec<LoadReport>>>,
}

pub(super) const A: LinkId = LinkId(1);
pub(super) const B: LinkId = LinkId(2);

pub(super) fn language() -> SimOptions {
    SimOptions {
        vocab_size: 64,
        ..SimOptions::default()
    }
}

impl Rig {
    pub(super) fn new(config: &DraftConfig, options: SimOptions) -> Self {
        let engine = Engine::new(Box::new(SimRunner::new(options)));
        let (metrics, _) = Metrics::new("test", engine.info());
        let (sent, loads) = (Sent::default(), Arc::default());
        let outlet = TestOutlet {
            sent: Arc::clone(&sent),
            loads: Arc::clone(&loads),
        };
        let mut worker = Worker::new(engine, outlet, config, metrics);
        for link in [A, B] {
            worker.take(
                0,
                ServerEvent::Up {
                    link,
                    hello: Hello {
                        accounts: true,
                        late_entries: true,
                        ..Hello::default()
                    },
                },
            );
        }
        Self {
            worker,
            sent,
            loads,
        }
    }

    pub(super) fn tell(&mut self, link: LinkId, message: ToDraft) {
        self.worker.take(
            0,
            ServerEvent::Messages {
                link,
                messages: vec![message].into(),
            },
        );
    }

    /// Runs until nothing is left to do; says in how many steps, and what was sent.
    pub(super) fn settle(&mut self) -> (usize, Vec<(LinkId, ToTarget)>) {
        let mut steps = 0;
        while self.worker.step() {
            steps += 1;
            assert!(steps < 10_000, "the worker does not come to rest");
        }
        (steps, self.collect())
    }

    pub(super) fn collect(&mut self) -> Vec<(LinkId, ToTarget)> {
        self.worker.flush();
        self.take_sent()
    }

    /// What was sent since the last time.
    pub(super) fn take_sent(&self) -> Vec<(LinkId, ToTarget)> {
        let frames: Vec<_> = self
            .sent
            .lock()
            .expect("no test panicked")
            .drain(..)
            .collect();
        frames
            .into_iter()
            .flat_map(|(link, messages)| messages.into_iter().map(move |message| (link, message)))
            .collect()
    }

    pub(super) fn assert_idle(&self) {
        assert!(self.worker.sessions.is_empty());
        assert_eq!(
            self.worker.engine.usage().referenced,
            0,
            "pages are still referenced"
        );
    }
}

pub(super) fn prompt(len: u32) -> Vec<TokenId> {
    (0..len).map(|i| TokenId(i * 7 % 64)).collect()
}

pub(super) fn open(session: u64, tokens: Vec<TokenId>) -> ToDraft {
    ToDraft::Open(Open {
        session: SessionId(session),
        epoch: Epoch(1),
        sampling: SamplingParams::default(),
        seed: Seed(session),
        prompt_len: tokens.len() as u32,
        tokens,
        ..Open::default()
    })
}

pub(super) fn close(session: u64) -> ToDraft {
    ToDraft::Close {
        session: SessionId(session),
        epoch: Epoch(1),
    }
}

pub(super) fn outcome(
    session: u64,
    round: u32,
    base_len: usize,
    tokens: &[TokenId],
    k: u32,
) -> ToDraft {
    ToDraft::Outcome(Outcome {
        session: SessionId(session),
        epoch: Epoch(1),
        round: Round(round),
        base_len: base_len as u32,
        tokens: tokens.to_vec(),
        lookahead: k,
        ..Outcome::default()
    })
}

/// What the model itself says after `tokens`, `count` tokens long.
pub(super) fn continuation(
    options: SimOptions,
    seed: u64,
    tokens: &[TokenId],
    count: usize,
) -> Vec<TokenId> {
    let mut engine = Engine::new(Box::new(SimRunner::new(options)));
    let mut sampler =
        Sampler::new(SamplingParams::default(), Seed(seed), tokens, tokens.len()).expect("valid");
    let mut scratch = Scratch::new();
    let seq = engine.open(tokens, Reuse::Off);
    let mut next = tokens.to_vec();
    let mut out = Vec::new();
    for _ in 0..count {
        let feed = Feed {
            seq,
            tokens: &next,
            tree: None,
            logits: Wants::Last,
        };
        let logits = engine.step(&[feed]).expect("it fits");
        let token = sampler.choose(logits.last(0).expect("wanted"), &mut scratch);
        sampler.push(token);
        out.push(token);
        next = vec![token];
    }
    out
}

pub(super) fn windows(sent: &[(LinkId, ToTarget)]) -> Vec<(LinkId, &Window)> {
    sent.iter()
        .filter_map(|(link, message)| match message {
            ToTarget::Window(window) => Some((*link, window)),
            _ => None,
        })
        .collect()
}

pub(super) fn is_refusal(message: &ToTarget, may_retry: bool) -> bool {
    matches!(message, ToTarget::Refused { retry, .. } if *retry == may_retry)
}
