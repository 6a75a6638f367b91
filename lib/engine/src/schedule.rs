//! Who runs in the next step: pure continuous batching over counters.
//!
//! ```text
//! submit --> waiting --admit--> running --finish-->
//!               ^                  |
//!               +---- preempt -----+   (pages dropped, tokens recomputed later)
//! ```
//!
//! Each [`Scheduler::plan`] divides a step's rows and the free pages in this order: one row for
//! every decoding request, prefill chunks in order of arrival, admissions, and last the speculative
//! windows. So windows shrink before anybody waits, and a long prompt never keeps others from
//! decoding.
//!
//! Admissions are fair between owners: whoever has the least running comes first, and nobody has
//! more than a few times the places that are then free (a dynamic threshold, Choudhury and Hahne
//! 1998). So a request for a hundred choices leaves places for those who come after it.
//!
//! Invariants: the oldest request always progresses, so every request finishes; nobody is
//! preempted for a window or an admission; rows never exceed the budget; pages never exceed what
//! is free.
//!
//! Not here: tokens, pages and clocks. The caller owns the [`crate::batch::Engine`] and does what
//! the plan says: close what is preempted, open what is admitted, feed the rest.

mod divide;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, VecDeque};

use self::divide::{Division, Share};
use crate::kv::pages_for;
use crate::runner::PAGE_TOKENS;

/// How many times the free places an owner may have running, so that one alone leaves a fifth of them.
const REACH: usize = 4;

/// Names a request; chosen by the caller, unique among those submitted and not finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// What a scheduler divides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Most requests that hold pages at once; at most `rows` are used, so that each can decode.
    pub running: usize,
    /// Most requests that wait.
    pub waiting: usize,
    /// Most rows of a step ([`crate::runner::RunnerInfo::max_rows`] or fewer).
    pub rows: usize,
    /// Most prefill rows of a step in which somebody decodes: bounds how much a prompt delays
    /// the tokens of others.
    pub prefill_rows: usize,
    /// Pages of the pool.
    pub pages: usize,
    /// Positions of the model.
    pub positions: usize,
}

impl Limits {
    /// The longest sequence that can run when nobody else does, in tokens. Requests should be cut
    /// to it before they are submitted.
    pub fn longest(&self) -> usize {
        self.positions.min(self.pages * PAGE_TOKENS)
    }
}

/// A request as it is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its name.
    pub id: RequestId,
    /// Whom it belongs to: the choices of one user's request, for example. Owners come before others
    /// who have more running.
    pub owner: u64,
    /// Tokens known so far: the prompt, and the output when it was moved from elsewhere.
    pub tokens: usize,
    /// Most tokens it may come to have, prompt included.
    pub max_tokens: usize,
}

/// The state of a running request, observed before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    /// Its name.
    pub id: RequestId,
    /// Tokens with KV ([`crate::batch::Engine::len`]).
    pub len: usize,
    /// All tokens known. One more than `len`: it decodes; several more: it is in prefill.
    pub tokens: usize,
    /// Pages that closing it would free ([`crate::batch::Engine::owned_pages`]).
    pub owned_pages: usize,
    /// Whether its next row copies a page ([`crate::batch::Engine::shares_tail`]).
    pub shares_tail: bool,
    /// What it wants of the step.
    pub ask: Ask,
}

/// What a running request wants of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Nothing: it waits for a window.
    SitOut,
    /// Rows for its known tokens and, when it decodes, `window` proposed tokens after them.
    Run {
        /// Proposed tokens to verify.
        window: usize,
    },
}

/// Rows of known tokens for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The request.
    pub id: RequestId,
    /// Known tokens to feed; fewer if a newly opened sequence has fewer left after its cached
    /// prefix.
    pub rows: usize,
}

/// One row, and a window, for a decoding request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decode {
    /// The request.
    pub id: RequestId,
    /// How many of the proposed tokens fit; at most those asked for.
    pub window: usize,
}

/// What to do in the next step, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Close their sequences, keep their tokens; they are waiting again.
    pub preempt: Vec<RequestId>,
    /// Feed one known token and `window` proposed ones.
    pub decode: Vec<Decode>,
    /// Feed a chunk of known tokens.
    pub prefill: Vec<Chunk>,
    /// Open a sequence and feed its first chunk.
    pub admit: Vec<Chunk>,
}

/// Decides who runs.
#[derive(Clone, Debug)]
pub struct Scheduler {
    limits: Limits,
    /// Oldest first.
    running: Vec<Entry>,
    /// Oldest first.
    waiting: VecDeque<Entry>,
    arrivals: u64,
}

/// A request that is not finished.
#[derive(Clone, Copy, Debug)]
struct Entry {
    request: Request,
    /// Its place among all requests ever submitted.
    arrival: u64,
    /// Whether it ran and lost its pages.
    preempted: bool,
}

impl Scheduler {
    /// A scheduler without requests.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            running: Vec::new(),
            waiting: VecDeque::new(),
            arrivals: 0,
        }
    }

    /// Takes a request into the queue.
    pub fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        let Limits {
            pages,
            positions,
            waiting,
            ..
        } = self.limits;
        let most = request.max_tokens.max(request.tokens);
        if request.tokens == 0 {
            return Err(Refusal::Empty);
        }
        if most > positions {
            return Err(Refusal::TooLong {
                tokens: most,
                limit: positions,
            });
        }
        if pages_for(most) > pages {
            return Err(Refusal::NeverFits {
                needed: pages_for(most),
                pages,
            });
        }
        if self
            .running()
            .chain(self.waiting())
            .any(|id| id == request.id)
        {
            return Err(Refusal::Duplicate(request.id));
        }
        if self.waiting.len() >= waiting {
            return Err(Refusal::Full { limit: waiting });
        }
        self.waiting.push_back(Entry {
            request,
            arrival: self.arrivals,
            preempted: false,
        });
        self.arrivals += 1;
        Ok(())
    }

    /// Forgets a request that is done or cancelled, waiting or running. Unknown ids are ignored.
    pub fn finish(&mut self, id: RequestId) {
        self.running.retain(|entry| entry.request.id != id);
        self.waiting.retain(|entry| entry.request.id != id);
    }

    /// Divides one step. `running` describes the running requests; one that it leaves out sits
    /// out and owns nothing. Ids that are not running are ignored.
    pub fn plan(&mut self, free_pages: usize, running: &[Running]) -> Plan {
        let shares = self.shares(running);
        let decoding = shares.iter().any(Share::decodes);
        let rows = self.limits.rows;
        let prefill_rows = if decoding {
            self.limits.prefill_rows.max(1)
        } else {
            rows
        };
        let mut step = Division {
            shares,
            rows,
            prefill_rows,
            pages: free_pages,
        };
        step.decode();
        step.prefill();
        step.unblock();
        let preempt = self.preempt(&step.shares);
        let admit = if preempt.is_empty() {
            self.admit(&mut step)
        } else {
            Vec::new()
        };
        step.windows();

        let mut plan = Plan {
            preempt,
            admit,
            ..Plan::default()
        };
        for share in step.shares.iter().filter(|share| share.rows > 0) {
            let id = share.state.id;
            if share.decodes() {
                plan.decode.push(Decode {
                    id,
                    window: share.rows - 1,
                });
            } else {
                plan.prefill.push(Chunk {
                    id,
                    rows: share.rows,
                });
            }
        }
        plan
    }

    /// What it divides.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Running requests, oldest first.
    pub fn running(&self) -> impl ExactSizeIterator<Item = RequestId> + '_ {
        self.running.iter().map(|entry| entry.request.id)
    }

    /// Waiting requests, next to be admitted first.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = RequestId> + '_ {
        self.waiting.iter().map(|entry| entry.request.id)
    }

    fn shares(&self, running: &[Running]) -> Vec<Share> {
        let share = |(i, entry): (usize, &Entry)| {
            let Request {
                id,
                tokens,
                max_tokens,
                ..
            } = entry.request;
            // Callers usually keep the order of `running()`.
            let there = running.get(i).filter(|state| state.id == id);
            let state = there.or_else(|| running.iter().find(|state| state.id == id));
            let absent = Running {
                id,
                len: 0,
                tokens,
                owned_pages: 0,
                shares_tail: false,
                ask: Ask::SitOut,
            };
            let state = state.copied().unwrap_or(absent);
            // A round emits its window and one more token.
            let most_window = max_tokens.saturating_sub(state.tokens + 1);
            Share {
                state,
                most_window,
                rows: 0,
                preempted: false,
            }
        };
        self.running.iter().enumerate().map(share).collect()
    }

    /// Puts the preempted back in the queue, where their age puts them before all others.
    fn preempt(&mut self, shares: &[Share]) -> Vec<RequestId> {
        let mut preempted = Vec::new();
        for (i, share) in shares
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, share)| share.preempted)
        {
            let mut entry = self.running.remove(i);
            entry.request.tokens = share.state.tokens;
            entry.preempted = true;
            let place = self
                .waiting
                .partition_point(|other| other.arrival < entry.arrival);
            self.waiting.insert(place, entry);
            preempted.push(share.state.id);
        }
        preempted
    }

    /// Who of those that wait is next: whoever ran before, then whose owner has the least running, the
    /// oldest of them. None whose owner has so many running that little would be left for others.
    fn next(&self) -> Option<usize> {
        let slots = self.limits.running.min(self.limits.rows);
        let free = slots.checked_sub(self.running.len()).filter(|&n| n > 0)?;
        let preempted = self.waiting.iter().position(|entry| entry.preempted);
        if preempted.is_some() {
            return preempted;
        }
        let mut held: HashMap<u64, usize> = HashMap::new();
        for entry in &self.running {
            *held.entry(entry.request.owner).or_default() += 1;
        }
        let of = |entry: &Entry| held.get(&entry.request.owner).copied().unwrap_or(0);
        let waiting = self.waiting.iter().map(of).enumerate();
        waiting
            .filter(|&(_, held)| held < REACH * free)
            .min_by_key(|&(place, held)| (held, place))
            .map(|(place, _)| place)
    }

    /// Lets waiting requests in, one after the other, while all their known tokens fit beside what is
    /// running.
    fn admit(&mut self, step: &mut Division) -> Vec<Chunk> {
        let mut admitted = Vec::new();
        let promised: usize = step.shares.iter().map(Share::outstanding).sum();
        while step.rows_for_prefill() > 0
            && let Some(place) = self.next()
            && let Some(&entry) = self.waiting.get(place)
        {
            let Request {
                id,
                tokens,
                max_tokens,
                ..
            } = entry.request;
            // A page to grow for everyone, or the next step might preempt whom this one let in.
            let spare = if self.running.is_empty() {
                0
            } else {
                self.running.len() + 1
            };
            let needed = pages_for((tokens + 1).min(max_tokens.max(tokens)));
            if promised + spare + needed > step.pages {
                break;
            }
            let rows = tokens.min(step.rows_for_prefill());
            step.prefill_rows -= rows;
            step.rows -= rows;
            step.pages -= needed;
            admitted.push(Chunk { id, rows });
            self.waiting.remove(place);
            let place = self
                .running
                .partition_point(|other| other.arrival < entry.arrival);
            self.running.insert(place, entry);
        }
        admitted
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It has no token to start from.
    #[error("a request needs at least one token")]
    Empty,
    /// More tokens than the model has positions.
    #[error(
        "{tokens} tokens exceed the model's {limit} positions: shorten the prompt or max_tokens"
    )]
    TooLong {
        /// Tokens it may come to have.
        tokens: usize,
        /// Positions of the model.
        limit: usize,
    },
    /// More pages than the pool has.
    #[error("the request needs {needed} KV pages and the pool has {pages}: raise the KV memory")]
    NeverFits {
        /// Pages it may come to need.
        needed: usize,
        /// Pages of the pool.
        pages: usize,
    },
    /// Too many wait already.
    #[error("{limit} requests are waiting already: try again later")]
    Full {
        /// Most that may wait.
        limit: usize,
    },
    /// The name is taken.
    #[error("request {0:?} is running or waiting already")]
    Duplicate(RequestId),
}
