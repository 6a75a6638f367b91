//! A simulated speculation endpoint: sessions of many targets, drafted for in common steps.
//!
//! ```text
//! inbox ──service time──> sessions ──> step: windows, glue passes, branches of all ──> answers
//! ```
//!
//! A step is planned and its answers are made when it begins; they leave when it ends. Messages are
//! taken in between steps, so what a step was planned with cannot change under it.

mod forks;
mod session;

use std::{collections::BTreeMap, time::Duration};

use foretoken_speculation::{
    SessionId,
    control::StepCost,
    fanout::{Budgets, Tenant, Turns},
    message::{ToDraft, ToTarget},
    policy::draft::{Grant, Planners, Purpose, Timing, divide},
    sampling::Scratch,
};

use self::session::Session;
use super::{
    pair::Pair,
    times::{DraftRows, Times},
};

/// Rows of steps that are measured before an endpoint serves.
const MEASURED: [u32; 5] = [1, 8, 32, 128, 512];

/// Rows that a step takes at most.
const ROWS: u32 = 1024;

/// When an endpoint answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// As the paper's reference: it reads its inbox when everything for the last verdicts is drafted,
    /// and answers all of a target's requests at once. It drafts for all that is asked for.
    Blocking,
    /// As here: it reads its inbox between any two steps, sends whatever is ready, and divides its
    /// time by what that brings.
    Streaming,
}

/// A message for a target.
pub(super) type Answer = (usize, ToTarget);

/// What was learned of one target.
#[derive(Default)]
struct Learned {
    planners: Planners,
    timing: Timing,
}

/// An endpoint.
pub(super) struct Endpoint {
    service: Service,
    max_len: usize,
    sessions: BTreeMap<SessionId, Session>,
    learned: BTreeMap<usize, Learned>,
    /// All targets.
    tenants: Vec<Tenant>,
    budgets: Budgets,
    /// Outcomes that each target was granted while others bid too.
    granted: Vec<u64>,
    steps: StepCost,
    /// What targets had of steps.
    turns: Turns,
    /// Whom of those that want rows the next step serves first, should there be too little for all.
    turn: usize,
    inbox: Vec<(usize, ToDraft)>,
    held: Vec<Answer>,
    /// Branches of this round are still to be filled into the table.
    unfilled: bool,
    pub(super) busy: bool,
    /// After how long branches go on whose next step was not begun, because their verdict is due.
    pub(super) resumes_in: Option<Duration>,
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
    pub(super) fn new(
        service: Service,
        max_len: usize,
        times: &Times,
        tenants: Vec<Tenant>,
    ) -> Self {
        let mut turns = Turns::new(ROWS as usize);
        turns.weigh(&tenants);
        let measured = MEASURED.map(|branch| {
            let rows = DraftRows {
                branch,
                ..DraftRows::default()
            };
            (branch, times.draft(rows))
        });
        Self {
            service,
            max_len,
            sessions: BTreeMap::new(),
            learned: BTreeMap::new(),
            granted: vec![0; tenants.len()],
            tenants,
            budgets: Budgets::default(),
            steps: StepCost::new(measured.to_vec()),
            turns,
            turn: 0,
            inbox: Vec::new(),
            held: Vec::new(),
            unfilled: false,
            busy: false,
            resumes_in: None,
            counts: Counts::default(),
        }
    }

    /// A message has come.
    pub(super) fn receive(&mut self, target: usize, message: ToDraft) {
        self.inbox.push((target, message));
    }

    /// Outcomes that it granted to each target while others bid too.
    pub(super) fn granted(&self) -> &[u64] {
        &self.granted
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
        let waits = !self.inbox.is_empty();
        let took = if self.service == Service::Streaming && waits {
            self.serve(now, times, &mut answers)
        } else {
            match self.step(now, times, pair, scratch, &mut answers) {
                Some(took) => took,
                None if waits => self.serve(now, times, &mut answers),
                None => return None,
            }
        };
        if self.service == Service::Blocking {
            self.held.append(&mut answers);
            if self.sessions.values().all(|s| s.draft.remaining() == 0) {
                answers.append(&mut self.held);
            }
        }
        self.busy = true;
        self.counts.busy += took;
        Some((took, answers))
    }

    /// Takes in all messages; how long that takes.
    fn serve(&mut self, now: Duration, times: &Times, answers: &mut Vec<Answer>) -> Duration {
        for (target, message) in std::mem::take(&mut self.inbox) {
            let id = match &message {
                ToDraft::Open(open) => open.session,
                ToDraft::Outcome(outcome) => outcome.session,
                ToDraft::Close { session, .. } => *session,
            };
            let max_len = self.max_len;
            let session = self.sessions.entry(id);
            let session = session.or_insert_with(|| Session::new(id, target, max_len));
            let learned = self.learned.entry(target).or_default();
            let before = session.draft.stats();
            let joins = self.service == Service::Streaming;
            let answer = session.hear(now, &message, joins, learned);
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
        match self.service {
            Service::Streaming => self.prepare_branches(now),
            Service::Blocking => {
                for session in self.sessions.values_mut() {
                    let learned = self.learned.entry(session.target).or_default();
                    session.draft.plan(&mut learned.planners);
                }
            }
        }
        let mut rows = DraftRows::default();
        let first = answers.len();
        let mut granted = vec![[None; 2]; self.sessions.len()];
        for grant in self.grant(now) {
            granted[grant.session][usize::from(!grant.is_of_branches())] = Some(grant);
        }
        for (session, grants) in self.sessions.values_mut().zip(granted) {
            // What is read of a sequence is of use to branches from the next step on.
            for grant in grants.into_iter().flatten() {
                let said = session.feed(&grant, pair, scratch, &mut rows);
                answers.extend(said.into_iter().map(|answer| (session.target, answer)));
            }
        }
        if rows.is_empty() {
            let fills = self.service == Service::Blocking && std::mem::take(&mut self.unfilled);
            return (fills && times.fill > Duration::ZERO).then_some(times.fill);
        }
        self.turn += 1;
        let took = times.draft(rows);
        self.steps.observe(rows.all(), took);
        let ends = now + took;
        for (_, answer) in &answers[first..] {
            if let ToTarget::Window(window) = answer
                && let Some(session) = self.sessions.get_mut(&window.session)
            {
                self.counts.windows += 1;
                session.outlook.begin(ends, window.proposals.len());
            }
        }
        Some(took)
    }

    /// Plans the branches of sessions whose candidates are known, and divides the time among them.
    fn prepare_branches(&mut self, now: Duration) {
        let mut fresh = Vec::new();
        for (&id, session) in &mut self.sessions {
            let Learned { planners, timing } = self.learned.entry(session.target).or_default();
            let (outlook, draft) = (&mut session.outlook, &mut session.draft);
            if outlook.plan(draft, planners, timing, &self.steps) {
                fresh.push(id);
            }
        }
        if !fresh.is_empty() {
            self.divide(now, &fresh);
        }
    }

    fn divide(&mut self, now: Duration, fresh: &[SessionId]) {
        let (mut owners, mut contenders) = (Vec::new(), Vec::new());
        for (&id, session) in &self.sessions {
            let is_fresh = fresh.contains(&id);
            let learned = self.learned.get(&session.target);
            let bid = learned.and_then(|learned| {
                let (outlook, timing) = (&session.outlook, &learned.timing);
                outlook.bid(session.target, is_fresh, timing, now)
            });
            if let Some(contender) = bid {
                owners.push((id, session.target));
                contenders.push(contender);
            }
        }
        let shared = owners.iter().any(|(_, target)| *target != owners[0].1);
        let step = |rows| self.steps.seconds(rows);
        let granted = self.budgets.grant(&self.tenants, &contenders, ROWS, step);
        for granted in granted {
            let (id, target) = owners[granted.contender];
            if shared {
                self.granted[target] += u64::from(granted.branches);
            }
            if let Some(session) = self.sessions.get_mut(&id) {
                session.outlook.grant(&mut session.draft, &granted);
            }
        }
    }

    /// Who gets what of the next step, sessions by their places.
    fn grant(&mut self, now: Duration) -> Vec<Grant> {
        let mut demand = self.demand(now);
        let count = demand.len().max(1);
        demand.rotate_left(self.turn % count);
        match self.service {
            Service::Streaming => divide(demand, ROWS as usize, ROWS as usize, &mut self.turns),
            // As the reference works, nothing is done beside windows that are waited for.
            Service::Blocking => {
                let windows_only = self.sessions.values().any(|s| s.draft.remaining() > 0);
                demand.retain(|grant| !windows_only || grant.purpose == Purpose::Window);
                demand
            }
        }
    }

    /// What sessions want of the next step.
    fn demand(&mut self, now: Duration) -> Vec<Grant> {
        let mut demand = Vec::with_capacity(self.sessions.len());
        self.resumes_in = None;
        for (index, session) in self.sessions.values_mut().enumerate() {
            for grant in session.demand(index, ROWS as usize).into_iter().flatten() {
                let learned = self.learned.get(&session.target);
                let hurries = self.service == Service::Streaming && grant.is_of_branches();
                if let Some(learned) = learned.filter(|_| hurries) {
                    let made = session.draft.branches().map_or(0, |work| work.step);
                    let step = self.steps.seconds(grant.rows as u32);
                    if let Some(pause) = session.outlook.pause(made, step, &learned.timing, now) {
                        let soonest = self.resumes_in.map_or(pause, |soonest| soonest.min(pause));
                        self.resumes_in = Some(soonest);
                        continue;
                    }
                }
                demand.push(grant);
            }
        }
        demand
    }
}
