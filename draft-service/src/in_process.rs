//! An endpoint in its caller's own thread: the same sessions, steps and branches without a link.

use std::sync::mpsc::{self, Receiver, Sender};

use foretoken_engine::batch::Engine;
use foretoken_protocol::link::{Hello, LinkId, LoadReport, ServerEvent};
use foretoken_speculation::message::{ToDraft, ToTarget};

use crate::{
    config::DraftConfig,
    metrics::Metrics,
    worker::{Outlet, Worker},
};

/// The only link.
const LINK: LinkId = LinkId(1);

/// A speculation endpoint that works when it is told to, for one target in the same process.
///
/// ```text
/// tell(Open | Outcome | Close) --> step() until it has nothing to do --> answers()
/// ```
///
/// It drafts for all outcomes that it is asked for, since nothing goes on meanwhile, so what it says
/// depends on what it is told alone.
pub struct InProcess {
    worker: Worker<Answers>,
    answers: Receiver<Vec<ToTarget>>,
}

/// Where answers wait for the caller.
struct Answers(Sender<Vec<ToTarget>>);

impl Outlet for Answers {
    fn send(&self, _listener: usize, _link: LinkId, messages: Vec<ToTarget>) {
        // The other end lives as long as this one.
        self.0.send(messages).ok();
    }

    fn report(&self, _load: LoadReport) {}
}

impl InProcess {
    /// An endpoint without sessions.
    pub fn new(engine: Engine) -> Self {
        let config = DraftConfig {
            // Nobody is held up by a prompt.
            prefill_rows: engine.info().max_rows,
            ..DraftConfig::default()
        };
        let (metrics, _) = Metrics::new(&config.instance, engine.info());
        let (sender, answers) = mpsc::channel();
        let mut worker = Worker::new(engine, Answers(sender), &config, metrics).unhurried();
        let hello = Hello {
            late_entries: true,
            ..Hello::default()
        };
        worker.take(0, ServerEvent::Up { link: LINK, hello });
        Self { worker, answers }
    }

    /// Takes in what the target says.
    pub fn tell(&mut self, messages: Vec<ToDraft>) {
        let (link, messages) = (LINK, messages.into());
        self.worker
            .take(0, ServerEvent::Messages { link, messages });
    }

    /// Makes one step if any session wants one; says whether it did.
    pub fn step(&mut self) -> bool {
        self.worker.step()
    }

    /// What it has to say since the last time.
    pub fn answers(&mut self) -> Vec<ToTarget> {
        self.worker.flush();
        self.answers.try_iter().flatten().collect()
    }
}
