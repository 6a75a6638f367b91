//! One engine step over all sessions.
//!
//! First come the sessions whose target waits and that are nearly there (a row, or the few tokens
//! of a verdict), all of them; then prompts and long catch-ups, in chunks, so that they do not
//! hold up the windows of others. A session that only follows (its target asked for nothing) is
//! left until there is a batch of rows worth a step.

use std::time::Instant;

use foretoken_engine::batch::{Feed, StepError, Wants};
use foretoken_protocol::link::LinkId;
use foretoken_speculation::{
    SessionId,
    message::ToTarget,
    policy::draft::{self, Ticket, Work},
};

use super::{Outlet, Worker, sessions::Session};

/// Most pending tokens of a session that still counts as about to propose.
const SHORT: usize = 33;
/// Pending tokens from which a session that nobody waits for is brought up to date.
const FOLLOW: usize = 32;

/// What a session gets of a step.
#[derive(Clone, Copy)]
struct Grant {
    session: usize,
    rows: usize,
}

/// A feed under way.
#[derive(Clone, Copy)]
struct Flight {
    session: usize,
    ticket: Ticket,
    rows: usize,
    complete: bool,
}

impl<O: Outlet> Worker<O> {
    /// Runs one step if any session wants one; says whether it did.
    pub(crate) fn step(&mut self) -> bool {
        let grants = loop {
            let grants = self.grant();
            match self.make_room(&grants) {
                Ok(()) => break grants,
                // Somebody had to go, so the grants are different now.
                Err((link, id)) => self.evict(link, id, "the endpoint ran out of KV pages"),
            }
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
        self.metrics.step_rows.observe(rows as f64);
        self.metrics
            .step_seconds
            .observe(started.elapsed().as_secs_f64());
        self.conclude(&flights);
        true
    }

    /// Divides the rows of a step.
    fn grant(&mut self) -> Vec<Grant> {
        let count = self.sessions.len();
        let mut grants = Vec::with_capacity(count);
        let mut long: Vec<Grant> = Vec::new();
        let mut rows_left = self.limits.rows;
        for i in 0..count {
            let index = (i + self.turn) % count;
            let session = &mut self.sessions[index];
            let Some(work) = session.draft.work() else {
                continue;
            };
            let room = self.limits.positions.saturating_sub(work.keep);
            let rows = work.tokens.len().min(room);
            let grant = Grant {
                session: index,
                rows,
            };
            let waits = work.wants != draft::Wants::None;
            if rows == 0 || (session.primed && !waits && rows < FOLLOW) {
                continue;
            }
            if waits && rows <= SHORT {
                if rows <= rows_left {
                    rows_left -= rows;
                    grants.push(grant);
                }
            } else {
                long.push(grant);
            }
        }
        let mut budget = if grants.is_empty() {
            rows_left
        } else {
            self.limits.prefill_rows.min(rows_left)
        };
        for mut grant in long {
            if budget == 0 {
                break;
            }
            grant.rows = grant.rows.min(budget);
            budget -= grant.rows;
            grants.push(grant);
        }
        grants
    }

    /// Checks that the pages suffice. If not, names the session to end: the youngest, because it
    /// has the least to lose.
    fn make_room(&self, grants: &[Grant]) -> Result<(), (LinkId, SessionId)> {
        let mut needed = 0;
        for grant in grants {
            let session = &self.sessions[grant.session];
            // What is to be truncated first only makes this less.
            needed += self
                .engine
                .pages_needed(session.seq, grant.rows)
                .unwrap_or(0);
        }
        if needed <= self.engine.free_pages() {
            return Ok(());
        }
        let Some(youngest) = self.sessions.iter().max_by_key(|session| session.opened) else {
            return Ok(());
        };
        Err((youngest.link, youngest.draft.id()))
    }

    /// Feeds the engine what was granted.
    fn feed(&mut self, grants: &[Grant]) -> Result<Vec<Flight>, StepError> {
        let mut flights = Vec::with_capacity(grants.len());
        let mut feeds = Vec::with_capacity(grants.len());
        let mut rows_of = vec![0; self.sessions.len()];
        for grant in grants {
            rows_of[grant.session] = grant.rows;
        }
        for (index, session) in self.sessions.iter_mut().enumerate() {
            let rows = rows_of[index];
            let Session { draft, seq, .. } = session;
            if rows == 0 {
                continue;
            }
            let Some(Work {
                ticket,
                keep,
                tokens,
                wants,
                ..
            }) = draft.work()
            else {
                continue;
            };
            if self.engine.len(*seq)? > keep {
                self.engine.truncate(*seq, keep)?;
            }
            let complete = rows == tokens.len();
            let logits = if complete && wants != draft::Wants::None {
                Wants::Last
            } else {
                Wants::None
            };
            flights.push(Flight {
                session: index,
                ticket,
                rows,
                complete,
            });
            feeds.push(Feed {
                seq: *seq,
                tokens: &tokens[..rows],
                tree: None,
                logits,
            });
        }
        self.engine.step(&feeds)?;
        Ok(flights)
    }

    /// Samples the next token of every session that got its logits.
    fn conclude(&mut self, flights: &[Flight]) {
        let logits = self.engine.logits();
        let mut windows = Vec::new();
        for (feed, flight) in flights.iter().enumerate() {
            let session = &mut self.sessions[flight.session];
            session.primed |= flight.complete;
            let row = logits.last(feed);
            if row.is_some() {
                self.metrics.drafted.inc();
            }
            let window = session.draft.stepped(
                flight.ticket,
                flight.rows,
                row.as_slice(),
                &mut self.scratch,
            );
            if let Some(window) = window {
                windows.push((session.link, window));
            }
        }
        for (link, window) in windows {
            if matches!(window, ToTarget::Window(_)) {
                self.metrics.windows.inc();
            }
            self.answer(link, window);
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
