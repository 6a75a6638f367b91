//! The engine thread: sessions of all targets, stepped together.
//!
//! ```text
//! inbox --> sessions --> plan: next rows of each --> engine step --> windows --> one frame a link
//!   ^_______________________________________________________________________________|
//! ```
//!
//! The thread sleeps only when no session wants anything and everything that came was taken in. A
//! window leaves with the step that completed it.

mod branches;
mod held;
mod outgoing;
mod report;
mod room;
mod sessions;
mod step;
mod tenants;
mod unheard;

use std::{
    collections::HashMap,
    ops::ControlFlow,
    time::{Duration, Instant},
};

use foretoken_engine::batch::Engine;
use foretoken_protocol::link::{LinkId, LinkServer, LoadReport, Mailbox, ServerEvent};
use foretoken_service::{complaints::Complaints, report::Board, rounds::Feed};
use foretoken_speculation::{
    control::StepCost,
    fanout::{Budgets, Turns},
    message::{Open, ToDraft, ToTarget},
    policy::draft::{Planners, Timing},
    sampling::Scratch,
};
use foretoken_telemetry::Tracer;

use crate::{
    config::DraftConfig,
    inbox::Message,
    metrics::{Direction, Metrics},
};
use sessions::Session;
use tenants::Tenants;
use unheard::Unheard;

/// Most refused targets whose reasons are remembered, so that each is logged once.
const MOST_REFUSED: usize = 256;

/// Longest sleep: how often leases are looked at.
const NAP: Duration = Duration::from_millis(500);
/// Longest time that sessions may have to end.
const LONGEST_GRACE: Duration = Duration::from_secs(365 * 24 * 3600);

/// How long links may wait between the steps of a window: a look at them (4 us) after each step
/// of a small model would be a tenth of its time.
const LINK_PAUSE: Duration = Duration::from_micros(100);

/// How long messages are taken in between two steps, if so many have come: verdicts that come
/// together are to share a step. Where steps take longer it is as long as the one before, so that
/// whoever sends more than that doubles the time of others' steps and no more.
const HEARING: Duration = Duration::from_micros(500);

/// What steps take by rows, where nobody measured it; the real times are learned within some hundreds
/// of steps.
const FIRST_COSTS: [(u32, Duration); 4] = [
    (1, Duration::from_micros(50)),
    (8, Duration::from_micros(100)),
    (32, Duration::from_micros(300)),
    (128, Duration::from_micros(1200)),
];

/// Where answers go.
pub(crate) trait Outlet: Send {
    /// Sends one step's messages over a link of the given listener.
    fn send(&self, listener: usize, link: LinkId, messages: Vec<ToTarget>);
    /// Tells all targets how busy the endpoint is.
    fn report(&self, load: LoadReport);
}

impl Outlet for Vec<LinkServer> {
    fn send(&self, listener: usize, link: LinkId, messages: Vec<ToTarget>) {
        // A lost link reports itself, and a target that missed messages asks again or goes on
        // alone: either way there is nothing to do here.
        if let Err(error) = self[listener].send(link, messages) {
            tracing::debug!(?link, %error, "messages were not sent");
        }
    }

    fn report(&self, load: LoadReport) {
        for server in self {
            server.report(load);
        }
    }
}

/// Sizes the worker keeps to.
struct Limits {
    sessions: usize,
    rows: usize,
    prefill_rows: usize,
    lookahead: u32,
    branches: u32,
    lease: Duration,
    grace: Duration,
    vocab_size: u32,
    positions: usize,
    pages: usize,
}

/// What was learned of one target. Targets learn apart: one that lies about its verdicts spoils its
/// own guesses only.
#[derive(Default)]
struct Learned {
    planners: Planners,
    timing: Timing,
}

/// A target that is connected.
struct Peer {
    /// On which listener it came in.
    listener: usize,
    /// What it calls itself.
    name: String,
    /// Whether it is to be told what is done for it.
    accounts: bool,
    /// Whether it takes late entries.
    late_entries: bool,
    complaints: Complaints,
}

/// The engine thread's state.
pub(crate) struct Worker<O> {
    engine: Engine,
    outlet: O,
    limits: Limits,
    prefix_cache: bool,
    metrics: Metrics,
    feed: Feed,
    tracer: Tracer,
    board: Board,
    began: Instant,
    /// Time in steps so far.
    busy: Duration,
    /// Time that the latest step took.
    latest: Duration,
    unheard: Unheard,
    sessions: Vec<Session>,
    /// Whom the links belong to.
    tenants: Tenants,
    /// What was learned of each target's verdicts.
    learned: HashMap<LinkId, Learned>,
    /// Divides the time of steps among sessions.
    budgets: Budgets,
    /// What steps take, with all that follows from their logits.
    steps: StepCost,
    /// Targets that were refused, and why, as far as that was logged.
    refused: HashMap<String, String>,
    /// Who is at the other end of a link.
    links: HashMap<LinkId, Peer>,
    outgoing: Vec<(LinkId, Vec<ToTarget>)>,
    scratch: Scratch,
    /// Whom the next step serves first, should there be too little for all: of tenants, and of the
    /// sessions of one.
    turns: Turns,
    turn: usize,
    /// Sessions opened so far.
    opened: u64,
    reported: Option<LoadReport>,
    /// It drafts for all outcomes that are asked for, however long that takes.
    unhurried: bool,
    /// When branches go on whose next step was not begun, because their verdict is due.
    resumes_at: Option<Instant>,
    /// When it ends whatever is open, once it was told to drain.
    leaves_at: Option<Instant>,
    now: Instant,
}

impl<O: Outlet> Worker<O> {
    /// A worker without sessions.
    pub(crate) fn new(engine: Engine, outlet: O, config: &DraftConfig, metrics: Metrics) -> Self {
        let info = engine.info();
        let rows = match config.max_step_rows {
            0 => info.max_rows,
            rows => rows.min(info.max_rows),
        };
        let limits = Limits {
            sessions: config.max_sessions,
            rows,
            prefill_rows: config.prefill_rows.min(rows),
            lookahead: config.max_lookahead,
            branches: config.max_branches,
            lease: config.lease,
            grace: config.grace,
            vocab_size: info.vocab_size as u32,
            positions: info.max_positions,
            pages: info.pages,
        };
        Self {
            engine,
            outlet,
            limits,
            prefix_cache: config.prefix_cache,
            metrics,
            feed: Feed::new("draft", "", false),
            tracer: Tracer::default(),
            board: Board::default(),
            began: Instant::now(),
            busy: Duration::ZERO,
            latest: Duration::ZERO,
            unheard: Unheard::default(),
            sessions: Vec::new(),
            tenants: Tenants::new(config.quotas.clone()),
            learned: HashMap::new(),
            budgets: Budgets::default(),
            steps: StepCost::new(FIRST_COSTS.to_vec()),
            refused: HashMap::new(),
            links: HashMap::new(),
            outgoing: Vec::new(),
            scratch: foretoken_engine::sampling::scratch(),
            turns: Turns::new(rows),
            turn: 0,
            opened: 0,
            reported: None,
            unhurried: false,
            resumes_at: None,
            leaves_at: None,
            now: Instant::now(),
        }
    }

    /// The same that knows what steps take.
    #[must_use]
    pub(crate) fn costing(mut self, steps: StepCost) -> Self {
        self.steps = steps;
        self
    }

    /// The same with somebody to tell builds to.
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

    /// The same with somebody to record what it does for requests.
    #[must_use]
    pub(crate) fn traced_by(mut self, tracer: Tracer) -> Self {
        self.tracer = tracer;
        self
    }

    /// The same for a target that waits until everything is drafted.
    #[must_use]
    pub(crate) fn unhurried(mut self) -> Self {
        self.unhurried = true;
        self
    }

    /// Works until told to stop.
    pub(crate) fn run(mut self, inbox: &Mailbox<Message>) {
        self.report();
        self.show();
        let mut leases_due = Instant::now() + NAP;
        let mut pause = Duration::ZERO;
        loop {
            // The look at the links also sends what the step before had to say.
            for message in inbox.arrived(pause) {
                if self.hear(message).is_break() {
                    return;
                }
            }
            self.listen(self.latest.max(HEARING));
            self.now = Instant::now();
            if self.now >= leases_due {
                leases_due = self.now + NAP;
                self.expire();
                self.show();
            }
            let worked = self.step();
            // A verdict that ends a build is worth hearing at once.
            let sent = if worked {
                self.flush_urgent()
            } else {
                self.flush()
            };
            pause = if sent || self.builds() {
                Duration::ZERO
            } else {
                LINK_PAUSE
            };
            self.report();
            if self.may_leave() {
                return;
            }
            let nap = self.nap();
            if worked || nap.is_zero() {
                continue;
            }
            if let Some(message) = inbox.recv_timeout(nap)
                && self.hear(message).is_break()
            {
                return;
            }
        }
    }

    /// Time since it began.
    fn clock(&self) -> Duration {
        self.began.elapsed()
    }

    /// The same when it took in what it takes in now.
    fn heard_at(&self) -> Duration {
        self.now.saturating_duration_since(self.began)
    }

    /// Whether branches are drafted for any session.
    fn builds(&self) -> bool {
        let building = |session: &Session| session.draft.is_branching();
        self.sessions.iter().any(building)
    }

    /// Is told one thing; a break ends the thread. What links say is for [`Self::listen`].
    fn hear(&mut self, message: Message) -> ControlFlow<()> {
        match message {
            Message::Link(listener, event) => self.unheard.add(listener, event),
            Message::Drain => self.drain(),
            Message::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    /// From now on new sessions are turned away.
    pub(crate) fn drain(&mut self) {
        let now = Instant::now();
        let grace = self.limits.grace.min(LONGEST_GRACE);
        self.leaves_at = Some(now + grace);
    }

    /// Whether it was told to drain, and nobody is left or the grace is over.
    fn may_leave(&self) -> bool {
        let is_left = self.sessions.is_empty() && self.unheard.links() == 0;
        self.leaves_at.is_some_and(|at| is_left || self.now >= at)
    }

    /// How long to sleep if nothing happens.
    fn nap(&self) -> Duration {
        if self.unheard.links() > 0 {
            return Duration::ZERO;
        }
        let due = [self.leaves_at, self.resumes_at];
        let left = |at: Instant| at.saturating_duration_since(Instant::now());
        due.into_iter()
            .flatten()
            .map(left)
            .min()
            .unwrap_or(NAP)
            .min(NAP)
    }

    /// Takes in what a link says.
    pub(crate) fn take(&mut self, listener: usize, event: ServerEvent) {
        self.now = Instant::now();
        match event {
            ServerEvent::Up { link, hello } => {
                tracing::info!(?link, target = %hello.instance, "target connected");
                self.refused.remove(&hello.instance);
                self.tenants.join(link, hello.consumer);
                let name = hello.instance;
                let peer = Peer {
                    listener,
                    name,
                    accounts: hello.accounts,
                    late_entries: hello.late_entries,
                    complaints: Complaints::default(),
                };
                self.links.insert(link, peer);
                self.metrics.links.set(self.links.len() as i64);
            }
            ServerEvent::Down { link, reason } => {
                tracing::info!(?link, %reason, "target disconnected");
                self.links.remove(&link);
                self.outgoing.retain(|(to, _)| *to != link);
                self.metrics.links.set(self.links.len() as i64);
                self.close_where(|session| session.link == link);
                self.learned.remove(&link);
                self.tenants.leave(link);
            }
            ServerEvent::Refused { instance, reason } => self.refuse_target(instance, reason),
            ServerEvent::Malformed { link, malformed } => {
                if let Some(peer) = self.links.get_mut(&link) {
                    peer.complaints.log(&peer.name, &malformed, self.now);
                }
                for malformed in malformed {
                    self.metrics.malformed.inc();
                    if let Some(id) = malformed.session {
                        self.evict(link, id, "malformed message");
                    }
                }
            }
            ServerEvent::Messages { link, messages } => {
                for message in messages {
                    self.take_message(link, message);
                }
            }
        }
    }

    fn take_message(&mut self, link: LinkId, message: ToDraft) {
        self.metrics.note_bytes(Direction::Received, &message);
        match message {
            ToDraft::Open(open) if self.leaves_at.is_some() => self.turn_away(link, &open),
            message => self.handle(link, message),
        }
    }

    /// Counts a target that does not match, which comes every second or two; the log has a line
    /// for each reason.
    fn refuse_target(&mut self, instance: String, reason: String) {
        self.metrics.targets_refused.inc();
        if self.refused.get(&instance) == Some(&reason) {
            return;
        }
        tracing::warn!(target = instance, reason, "refused a target");
        if self.refused.len() >= MOST_REFUSED {
            self.refused.clear();
        }
        self.refused.insert(instance, reason);
    }

    /// Tells the targets how busy this endpoint is, if that changed.
    pub(crate) fn report(&mut self) {
        let load = LoadReport {
            slots: self.limits.sessions as u32,
            used: self.sessions.len() as u32,
            draining: self.leaves_at.is_some(),
        };
        if self.reported != Some(load) {
            self.reported = Some(load);
            self.outlet.report(load);
        }
        self.metrics.slots.set(self.limits.sessions as i64);
        self.metrics.sessions.set(self.sessions.len() as i64);
        let used = self.engine.usage().referenced as f64;
        self.metrics
            .kv_usage
            .set(used / self.limits.pages.max(1) as f64);
    }

    /// Answers an `Open` that comes too late. The endpoint may be started again: the target may ask
    /// again.
    fn turn_away(&mut self, link: LinkId, open: &Open) {
        self.metrics.refused.inc();
        let refused = ToTarget::Refused {
            session: open.session,
            epoch: open.epoch,
            reason: "this endpoint is stopping".into(),
            retry: true,
        };
        self.answer(link, refused);
    }
}

#[cfg(test)]
mod tests;
