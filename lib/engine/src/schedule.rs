//! Who runs in the next step: pure continuous batching over counters.
//!
//! ```text
//! submit --> waiting --admit--> running --finish-->
//!               ^                  |
//!               +---- preempt -----+   (pages dropped, tokens recomputed later)
//! ```
//!
//! Each [`Scheduler::plan`] divides a step's rows and the free pages in this order: one row for
//! every decoding request, prefill chunks in order of arrival, admissions in order of arrival,
//! and last the speculative windows. So windows shrink before anybody waits, and a long prompt
//! never keeps others from decoding.
//!
//! Invariants: the oldest request always progresses, so every request finishes; nobody is
//! preempted for a window or an admission; rows never exceed the budget; pages never exceed what
//! is free.
//!
//! Not here: tokens, pages and clocks. The caller owns the [`crate::batch::Engine`] and does what
//! the plan says: close what is preempted, open what is admitted, feed the rest.

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
        self.positions.min(self.pages * crate::runner::PAGE_TOKENS)
    }
}

/// A request as it is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its name.
    pub id: RequestId,
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
}

impl Scheduler {
    /// A scheduler without requests.
    pub fn new(limits: Limits) -> Self {
        Self { limits }
    }

    /// Takes a request into the queue.
    pub fn submit(&mut self, request: Request) -> Result<(), Refusal> {
        let _ = request;
        unimplemented!()
    }

    /// Forgets a request that is done or cancelled, waiting or running. Unknown ids are ignored.
    pub fn finish(&mut self, id: RequestId) {
        let _ = id;
        unimplemented!()
    }

    /// Divides one step. `running` describes the running requests; those it leaves out sit out
    /// and own nothing.
    pub fn plan(&mut self, free_pages: usize, running: &[Running]) -> Plan {
        let _ = (free_pages, running);
        unimplemented!()
    }

    /// What it divides.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Running requests, oldest first.
    pub fn running(&self) -> impl ExactSizeIterator<Item = RequestId> + '_ {
        [].into_iter()
    }

    /// Waiting requests, next to be admitted first.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = RequestId> + '_ {
        [].into_iter()
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It has no token to start from.
    #[error("a request needs at least one token")]
    Empty,
    /// More tokens than the model has positions.
    #[error("{tokens} tokens exceed the model's {limit} positions: shorten the prompt or max_tokens")]
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
