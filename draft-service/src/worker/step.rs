//! One engine step over all sessions.
//!
//! First come the sessions whose target waits and that are nearly there (a row, or the few tokens
//! of a verdict), all of them; then those that read a window under verification, to draft for its
//! outcomes; then prompts and long catch-ups, in chunks, so that they do not hold up the windows of
//! others; branches get the rows that are left. A session that only follows (its target asked for
//! nothing) is left until there is a batch of rows worth a step. Where there are not enough rows for
//! all, each tenant keeps to this order with its part of them ([`divide`]), and the sessions of
//! one take turns.

use std::time::Instant;

use foretoken_engine::batch::{Feed, StepError, StepLogits, Wants};
use foretoken_speculation::{
    message::ToTarget,
    policy::draft::{self, Grant, Purpose, Ticket, divide},
};

use super::{Limits, Outlet, Worker, sessions::Session, tenants::TenantId};

/// A feed under way, or those of a session's branches.
#[derive(Clone, Copy)]
struct Flight {
    session: usize,
    ticket: Ticket,
    /// Its feeds in the step.
    first: usize,
    feeds: usize,
    kind: Kind,
}

#[derive(Clone, Copy)]
enum Kind {
    /// Tokens of the sequence: how many, whether those are all, and whether a window needs them.
    Sequence {
        rows: usize,
        complete: bool,
        window: bool,
    },
    Branches,
}

impl<O: Outlet> Worker<O> {
    /// Runs one step if any session wants one; says whether it did.
    pub(crate) fn step(&mut self) -> bool {
        let grants = loop {
            self.prepare_branches();
            let turns = self.turns.clone();
            let grants = self.grant();
            // Whoever gave something up for them, they are different then.
            if !self.make_room(&grants) {
                break grants;
            }
            self.turns = turns;
        };
        if grants.is_empty() {
            return false;
        }
        self.turn = self.turn.wrapping_add(1);
        let started = Instant::now();
        let flights = match self.feed(&grants) {
            Ok(flights) => flights,
            Err(error) => {
                tracing::error!(%error, "a step failed; its sessions are refused");
                self.fail(&grants);
                return true;
            }
        };
        let rows: usize = grants.iter().map(|grant| grant.rows).sum();
        self.conclude(&flights);
        let took = started.elapsed();
        self.steps.observe(rows as u32, took);
        let purposes = grants.iter().map(|grant| grant.purpose);
        let was_for = purposes.min().unwrap_or(Purpose::Follow);
        self.busy += took;
        self.latest = took;
        self.metrics.note_step(was_for, rows, took);
        let granted = by_session(&grants, self.sessions.len());
        for (session, [sequence, branches]) in self.sessions.iter_mut().zip(granted) {
            if let Some(grant) = sequence.or(branches) {
                session.note_step(grant.purpose, took);
            }
        }
        true
    }

    /// Divides the rows of a step.
    fn grant(&mut self) -> Vec<Grant> {
        let wanted = self.demand();
        self.turns
            .weigh(&self.tenants.shares(&self.sessions_held()));
        let Limits {
            rows, prefill_rows, ..
        } = self.limits;
        divide(wanted, rows, prefill_rows, &mut self.turns)
    }

    /// What all sessions want, beginning with the one whose turn it is.
    fn demand(&mut self) -> Vec<Grant> {
        let mut demand = Vec::with_capacity(self.sessions.len());
        let count = self.sessions.len();
        self.resumes_at = None;
        for i in 0..count {
            let index = (i + self.turn) % count;
            let session = &mut self.sessions[index];
            let tenant = self.tenants.of(session.link);
            let tenant = tenant.map(|TenantId(tenant)| tenant);
            if let Some(work) = session.draft.work() {
                let room = self.limits.positions.saturating_sub(work.keep);
                let rows = work.tokens.len().min(room);
                let waits = rows == 0 || (session.primed && work.may_wait(rows));
                if work.wants == draft::Wants::All && rows > self.limits.rows {
                    session.draft.drop_branches();
                } else if !waits {
                    demand.push(work.demand(index, tenant, rows, self.limits.rows));
                }
            }
            self.demand_branches((index, tenant), &mut demand);
        }
        demand
    }

    fn demand_branches(
        &mut self,
        (session, tenant): (usize, Option<usize>),
        demand: &mut Vec<Grant>,
    ) {
        let Session {
            link,
            draft,
            outlook,
            ..
        } = &mut self.sessions[session];
        let Some(work) = draft.branches() else {
            return;
        };
        let (wanted, made) = (work.demand(session, tenant), work.step);
        if let Some(learned) = self.learned.get(link).filter(|_| !self.unhurried) {
            let (step, now) = (self.steps.seconds(wanted.rows as u32), Instant::now());
            let passed = now.saturating_duration_since(self.began);
            if let Some(pause) = outlook.pause(made, step, &learned.timing, passed) {
                let at = now + pause;
                self.resumes_at = Some(self.resumes_at.map_or(at, |soonest| soonest.min(at)));
                return;
            }
        }
        demand.push(wanted);
    }

    /// Feeds the engine what was granted.
    fn feed(&mut self, grants: &[Grant]) -> Result<Vec<Flight>, StepError> {
        let mut flights = Vec::with_capacity(grants.len());
        let mut feeds = Vec::with_capacity(grants.len());
        let granted = by_session(grants, self.sessions.len());
        for (index, (session, grants)) in self.sessions.iter_mut().zip(granted).enumerate() {
            let [sequence, branches] = grants;
            if sequence.or(branches).is_none() {
                continue;
            }
            let Session {
                draft,
                seq,
                forks,
                outcomes,
                ..
            } = session;
            let (work, step) = draft.works();
            if let Some((work, grant)) = work.zip(sequence) {
                let (len, tail) = (self.engine.len(*seq)?, self.engine.tail(*seq)?);
                if len > work.keep || !tail.is_empty() {
                    self.engine.truncate(*seq, work.keep)?;
                }
                let complete = grant.rows == work.tokens.len();
                flights.push(Flight {
                    session: index,
                    ticket: work.ticket,
                    first: feeds.len(),
                    feeds: 1,
                    kind: Kind::Sequence {
                        rows: grant.rows,
                        complete,
                        window: work.purpose == Purpose::Window,
                    },
                });
                feeds.push(Feed {
                    seq: *seq,
                    tokens: &work.tokens[..grant.rows],
                    tree: work.parents,
                    logits: match work.wants {
                        draft::Wants::Last if complete => Wants::Last,
                        draft::Wants::All if complete => Wants::All,
                        draft::Wants::None | draft::Wants::Last | draft::Wants::All => Wants::None,
                    },
                });
            }
            if let Some((step, _)) = step.zip(branches) {
                if step.step == 0 {
                    *outcomes = step.outcomes;
                    self.metrics
                        .build_outcomes
                        .observe(f64::from(step.outcomes));
                }
                let first = feeds.len();
                forks.feed(&mut self.engine, *seq, &step, &mut feeds)?;
                flights.push(Flight {
                    session: index,
                    ticket: step.ticket,
                    first,
                    feeds: feeds.len() - first,
                    kind: Kind::Branches,
                });
            }
        }
        self.engine.step(&feeds)?;
        Ok(flights)
    }

    /// Samples the next token of every session and branch that got its logits.
    fn conclude(&mut self, flights: &[Flight]) {
        let logits = self.engine.logits();
        let mut answers = Vec::new();
        let mut rows = Vec::new();
        for flight in flights {
            flight.rows(logits, &mut rows);
            let session = &mut self.sessions[flight.session];
            let (draft, scratch) = (&mut session.draft, &mut self.scratch);
            let answer = match flight.kind {
                Kind::Branches => {
                    let parts = draft.branched(flight.ticket, &rows, scratch);
                    answers.extend(parts.into_iter().map(|part| (session.link, part)));
                    None
                }
                Kind::Sequence {
                    rows: fed,
                    complete,
                    window,
                } => {
                    if complete && !session.primed {
                        session.primed = true;
                        if let Some(recording) = &session.recording {
                            recording.primed(Instant::now());
                        }
                    }
                    if window && !rows.is_empty() {
                        self.metrics.drafted.inc();
                    }
                    draft.stepped(flight.ticket, fed, &rows, scratch)
                }
            };
            if draft.learns_as().is_some() {
                self.metrics.note(&session.take_stats());
            }
            if let Some(ToTarget::Window(window)) = &answer {
                let now = self.began.elapsed();
                session.outlook.begin(now, window.proposals.len());
            }
            answers.extend(answer.map(|answer| (session.link, answer)));
        }
        for (link, answer) in answers {
            if matches!(answer, ToTarget::Window(_)) {
                self.metrics.windows.inc();
            }
            self.answer(link, answer);
        }
    }

    /// Ends the sessions of a step that failed; their targets go on alone.
    fn fail(&mut self, grants: &[Grant]) {
        let failed: Vec<_> = grants
            .iter()
            .map(|grant| &self.sessions[grant.session])
            .map(|session| (session.link, session.draft.id()))
            .collect();
        for (link, id) in failed {
            self.evict(link, id, "the endpoint could not run a step");
        }
    }
}

/// What each of so many sessions was granted: rows of its sequence, and of its branches.
fn by_session(grants: &[Grant], sessions: usize) -> Vec<[Option<&Grant>; 2]> {
    let mut granted = vec![[None; 2]; sessions];
    for grant in grants {
        granted[grant.session][usize::from(grant.is_of_branches())] = Some(grant);
    }
    granted
}

impl Flight {
    /// Collects the logits of all its rows that wanted them.
    fn rows<'a>(&self, logits: StepLogits<'a>, rows: &mut Vec<&'a [f32]>) {
        rows.clear();
        for feed in self.first..self.first + self.feeds {
            rows.extend((0..logits.rows(feed)).map(|row| logits.row(feed, row)));
        }
    }
}
