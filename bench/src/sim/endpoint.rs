//! A simulated speculation endpoint: sessions of many targets, drafted for in common steps.
//!
//! ```text
//! inbox ──service time──> sessions ──> step: windows, glue passes, branches of all ──> answers
//! ```
//!
//! A step is planned and its answers are made when it begins; they leave when it ends. Messages are
//! taken in between steps, so what a step was planned with cannot change under it.

mod forks;

use std::{collections::BTreeMap, time::Duration};

use foretoken_speculation::{
    SessionId,
    message::{ToDraft, ToTarget},
    policy::draft::{DraftSession, Planners, Purpose, Wants},
    sampling::Scratch,
    theory,
};

use self::forks::{Forks, Tail};
use super::{
    fit::{Leeway, Room},
    pair::{Pair, Role, VOCAB},
    times::{DraftRows, Times},
};

/// Tokens that a session may be behind if nobody waits for it.
const FOLLOW: usize = 32;

/// When an endpoint answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// As the paper's reference: it reads its inbox when everything for the last verdicts is drafted,
    /// and answers all of a target's requests at once.
    Blocking,
    /// It reads its inbox between any two steps, and sends whatever is ready.
    Streaming,
}

/// A message for a target.
pub(super) type Answer = (usize, ToTarget);

struct Session {
    target: usize,
    draft: DraftSession,
    /// What was fed last.
    fed: Tail,
    forks: Forks,
    leeway: Leeway,
}

/// An endpoint.
pub(super) struct Endpoint {
    service: Service,
    max_len: usize,
    /// Time from a step's end here until the target has its answer, and back.
    round_trip: Duration,
    sessions: BTreeMap<SessionId, Session>,
    planners: BTreeMap<usize, Planners>,
    inbox: Vec<(Duration, usize, ToDraft)>,
    held: Vec<Answer>,
    /// Branches of this round are still to be filled into the table.
    unfilled: bool,
    pub(super) busy: bool,
    pub(super) counts: Counts,
}

/// What an endpoint did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) busy: Duration,
    pub(super) windows: u64,
    /// Windows that had been drafted for before they were asked for.
    pub(super) prepared: u64,
}

impl Endpoint {
    pub(super) fn new(service: Service, max_len: usize, round_trip: Duration) -> Self {
        Self {
            service,
            max_len,
            round_trip,
            sessions: BTreeMap::new(),
            planners: BTreeMap::new(),
            inbox: Vec::new(),
            held: Vec::new(),
            unfilled: false,
            busy: false,
            counts: Counts::default(),
        }
    }

    /// A message has come.
    pub(super) fn receive(&mut self, now: Duration, target: usize, message: ToDraft) {
        self.inbox.push((now, target, message));
    }

    /// Does the next thing, if there is one; how long it takes, and what leaves after it.
    pub(super) fn work(
        &mut self,
        now: Duration,
        times: &Times,
        pair: &Pair,
        scratch: &mut Scratch,
    ) -> Option<(Duration, Vec<Answer>)> {
        if self.busy {
            return None;
        }
        let mut answers = Vec::new();
        let took = match self.service {
            Service::Streaming if !self.inbox.is_empty() => self.serve(times, &mut answers),
            Service::Streaming => self.step(now, times, pair, scratch, &mut answers)?,
            Service::Blocking => match self.step(now, times, pair, scratch, &mut answers) {
                Some(took) => took,
                None if !self.inbox.is_empty() => self.serve(times, &mut answers),
                None => return None,
            },
        };
        if self.service == Service::Blocking {
            self.held.append(&mut answers);
            if self.sessions.values().all(|s| s.draft.remaining() == 0) {
                answers.append(&mut self.held);
            }
        }
        for (_, answer) in &answers {
            if let ToTarget::Window(window) = answer
                && let Some(session) = self.sessions.get_mut(&window.session)
            {
                session.leeway.begin(now + took);
            }
        }
        self.busy = true;
        self.counts.busy += took;
        Some((took, answers))
    }

    /// Takes in all messages; how long that takes.
    fn serve(&mut self, times: &Times, answers: &mut Vec<Answer>) -> Duration {
        for (came, target, message) in std::mem::take(&mut self.inbox) {
            let id = match &message {
                ToDraft::Open(open) => open.session,
                ToDraft::Outcome(outcome) => outcome.session,
                ToDraft::Close { session, .. } => *session,
            };
            let max_len = self.max_len;
            let session = self.sessions.entry(id).or_insert_with(|| Session {
                target,
                draft: DraftSession::new(id, VOCAB as u32, max_len),
                fed: Tail::default(),
                forks: Forks::default(),
                leeway: Leeway::default(),
            });
            if let ToDraft::Outcome(outcome) = &message {
                session.leeway.end(came);
                if outcome.verifying.is_some() {
                    session.leeway.begin(came);
                }
            }
            let before = session.draft.stats();
            let answer = session.draft.handle(&message);
            // Contexts are made from tokens anyway.
            session.draft.take_decided();
            let after = session.draft.stats();
            self.counts.prepared += u64::from(after.prepared - before.prepared);
            self.counts.windows += u64::from(matches!(answer, Some(ToTarget::Window(_))));
            answers.extend(answer.map(|answer| (target, answer)));
        }
        self.unfilled = true;
        times.service
    }

    /// Runs a step of all sessions that want one; how long it takes.
    fn step(
        &mut self,
        now: Duration,
        times: &Times,
        pair: &Pair,
        scratch: &mut Scratch,
        answers: &mut Vec<Answer>,
    ) -> Option<Duration> {
        self.plan(now, times);
        let waited_for = self.service == Service::Blocking
            && self.sessions.values().any(|s| s.draft.remaining() > 0);
        let mut rows = DraftRows::default();
        let round_trip = self.round_trip;
        for session in self.sessions.values_mut() {
            if self.service == Service::Streaming {
                let planners = self.planners.entry(session.target).or_default();
                let planner = planners.for_session(&session.draft);
                let acceptance = planner.map_or(0.0, |p| p.estimates().acceptance());
                if session.is_late(now, round_trip, times, acceptance) {
                    session.draft.drop_branches();
                }
            }
            let answer = session.feed(pair, scratch, &mut rows, waited_for);
            if let Some(answer) = answer {
                self.counts.windows += u64::from(matches!(answer, ToTarget::Window(_)));
                answers.push((session.target, answer));
            }
        }
        if rows.is_empty() {
            if self.service == Service::Blocking && std::mem::take(&mut self.unfilled) {
                return (times.fill > Duration::ZERO).then_some(times.fill);
            }
            return None;
        }
        Some(times.draft(rows))
    }

    /// Plans the branches of sessions whose candidates are known.
    fn plan(&mut self, now: Duration, times: &Times) {
        for session in self.sessions.values_mut() {
            let planners = self.planners.entry(session.target).or_default();
            session.draft.plan(planners);
        }
        if self.service == Service::Blocking {
            return;
        }
        let building = |session: &&Session| session.draft.build().is_some();
        let sharers = self.sessions.values().filter(building).count().max(1) as u32;
        for session in self.sessions.values_mut() {
            if session.draft.build().is_none() || session.forks.belong_to(session.draft.build()) {
                continue;
            }
            let Some(planners) = self.planners.get_mut(&session.target) else {
                continue;
            };
            let Some(planner) = planners.for_session(&session.draft) else {
                continue;
            };
            let acceptance = planner.estimates().acceptance();
            let room = Room {
                left: session.leeway.left(now, self.round_trip),
                steps: session.draft.branch_steps(),
                sharers,
            };
            let guesses = session.draft.plan(planners);
            let granted = room.branches(guesses, acceptance, |rows| {
                times.branch.base + times.branch.row * rows
            });
            session.draft.grant(&[granted as u32]);
        }
    }
}

impl Session {
    /// Whether the next step of its branches would end too late for the verdict, even if the target
    /// waits for as long as a token more is worth. It would be in vain, and the verdict would wait
    /// for it.
    fn is_late(&mut self, now: Duration, round_trip: Duration, times: &Times, a: f64) -> bool {
        let Some(work) = self.draft.branches() else {
            return false;
        };
        let (made, rows) = (work.step, work.rows() as u32);
        let step = times.draft(DraftRows {
            branch: rows,
            ..DraftRows::default()
        });
        let all = made + self.draft.branch_steps();
        let tokens = theory::expected_tokens(a, all);
        let grace = self.leeway.grace(a.powi(made as i32 + 1), tokens);
        let left = self.leeway.left(now, round_trip);
        left.is_some_and(|left| step > left + grace)
    }

    /// Feeds what the session wants, in `rows` of the step; what it answers.
    fn feed(
        &mut self,
        pair: &Pair,
        scratch: &mut Scratch,
        rows: &mut DraftRows,
        windows_only: bool,
    ) -> Option<ToTarget> {
        if let Some(work) = self.draft.work() {
            let (keep, fed) = (work.keep, work.tokens.len());
            let (ticket, wants, purpose) = (work.ticket, work.wants, work.purpose);
            let follows = purpose == Purpose::Follow && fed < FOLLOW;
            if follows || (windows_only && purpose != Purpose::Window) {
                return None;
            }
            match purpose {
                Purpose::Window => rows.token += fed as u32,
                Purpose::Ahead | Purpose::Follow => rows.glue += fed as u32,
            }
            let (tokens, parents) = (work.tokens.to_vec(), work.parents.map(<[_]>::to_vec));
            let chain = || (0..fed as u32).map(|node| node.checked_sub(1)).collect();
            let mut tail = Tail::after(&self.draft.tokens()[..keep]);
            tail.grow(&tokens, parents.unwrap_or_else(chain));
            let wanted = match wants {
                Wants::All => fed,
                Wants::Last => 1,
                Wants::None => 0,
            };
            let logits = pair.rows(Role::Draft, tail.last(wanted));
            let logits: Vec<&[f32]> = logits.chunks_exact(VOCAB).collect();
            self.fed = tail;
            return self.draft.stepped(ticket, fed, &logits, scratch);
        }
        if windows_only {
            return None;
        }
        let sequence = self.draft.tokens().to_vec();
        let work = self.draft.branches()?;
        rows.branch += work.rows() as u32;
        let ticket = work.ticket;
        let contexts = self.forks.feed(&sequence, &self.fed, &work);
        let logits = pair.rows(Role::Draft, &contexts);
        let logits: Vec<&[f32]> = logits.chunks_exact(VOCAB).collect();
        self.draft.branched(ticket, &logits, scratch)
    }
}
