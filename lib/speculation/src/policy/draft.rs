//! The endpoint's side of one session.
//!
//! The session knows the sequence the engine should hold: the tokens the target decided, then its
//! own proposals or the window under verification. A driver asks [`DraftSession::work`], truncates
//! its engine sequence to `keep`, feeds the tokens, and reports with [`DraftSession::stepped`];
//! verdicts may arrive in between. The driver may feed fewer tokens than offered (a chunk of a long
//! prompt).
//!
//! A session whose target wants entries also drafts for the outcomes of the verification under way:
//!
//! ```text
//! Outcome ──> work: glue pass ──> stepped ──> plan ──> branches: step 0 ──> branched ──> Entries
//!    ^                                        grant       └ step 1 ──> branched ──> Entries ..
//!    └── the next one ends this wherever it is
//! ```
//!
//! Branches live in forks of the session's sequence, which the driver makes at step 0 and drops
//! when [`DraftSession::build`] names another build, or none. The sequence itself never holds them,
//! so nothing needs to be undone when a build is cut.
//!
//! After a hit no glue pass is needed: the branch of the outcome has read the window but for its last token,
//! and its fork holds what it read ([`DraftSession::take_confirmed`]). Then the outcomes before the window's
//! end are drafted for at once, beside that token, and those after it from the next step on.

mod arrivals;
mod batch;
mod build;
mod follow;
mod forks;
mod growth;
mod layout;
mod lookup;
mod outlook;
mod planners;
mod rows;
mod seen;
mod tail;
mod timing;
mod work;

use alloc::{string::ToString, vec::Vec};

use self::{
    build::{Build, COUPLED},
    growth::{Growth, nothing_drawn},
    tail::Tail,
    work::{BranchFlight, Flight},
};
pub use self::{
    build::{BuildId, MAX_TAIL},
    forks::BranchWork,
    layout::ForkFeed,
    lookup::Confirmed,
    outlook::{Judged, Outlook},
    planners::{Planners, Scores},
    rows::{Grant, divide},
    timing::Timing,
    work::{Purpose, Ticket, Wants, Work},
};
use crate::{
    Epoch, Proposals, Round, Seed, SessionId, TokenId,
    fanout::{Chances, FanOut, Planner},
    guess::{Candidates, OutcomeKey},
    ids::common_prefix,
    message::{
        Branching, Cutoff, Cutoffs, Entries, Resync, SparseDistribution, ToDraft, ToTarget,
        TreeBudget,
    },
    proposal::Proposer,
    saguaro::Saguaro,
    sampling::Sampler,
    verify::Verification,
};

/// Most outcomes that a session drafts for unless its driver says otherwise, whatever a target
/// asks for.
pub const MAX_BRANCHES: u32 = 256;

/// Ranks of decided tokens that are counted one by one.
pub const COUNTED_RANKS: usize = 32;

/// Counts for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftStats {
    /// Windows sent.
    pub windows: u32,
    /// Windows whose first tokens had been drafted before they were asked for.
    pub prepared: u32,
    /// Builds of entries that were begun.
    pub builds: u32,
    /// Builds that a verdict ended before they were complete.
    pub cut: u32,
    /// Builds that the driver gave up.
    pub dropped: u32,
    /// Tokens that branches drew.
    pub built: u32,
    /// Tokens of continuations that were sent.
    pub pushed: u32,
    /// Tokens of continuations for the outcomes that came about which were drafted in time to be
    /// verified.
    pub timely: u32,
    /// The same, not in time.
    pub late: u32,
    /// Tokens of continuations for the outcomes that came about that were granted.
    pub planned: u32,
    /// Of these, those that were not there when its verification ended.
    pub missing: u32,
    /// Verdicts that the candidates were held against.
    pub judged: u32,
    /// By rank of the decided token among the candidates of its row, 0 being the best: how often.
    /// Hits and misses alike.
    pub ranks: [u32; COUNTED_RANKS],
}

/// What a target asks for: a window, and continuations for the outcomes of its round.
#[derive(Clone, Copy, Debug)]
struct Wish {
    /// The round that the window is for.
    round: Round,
    /// Tokens of the window, and of each continuation.
    lookahead: u32,
    /// Outcomes, at most.
    branches: u32,
    saguaro: Saguaro,
    /// Whether windows and continuations may be trees.
    tree: Option<TreeBudget>,
    /// How likely tokens have to be.
    cutoffs: Cutoffs,
}

impl Wish {
    /// Whether it matters how likely the tokens of the window are.
    fn weighs(&self) -> bool {
        self.tree.is_some() || self.cutoffs.of_window().cuts()
    }
}

/// The window being drafted, and what to do then.
#[derive(Debug)]
struct Job {
    wish: Wish,
    /// What the proposals were drawn from, if they are drawn.
    q: Vec<SparseDistribution>,
    /// See [`Prepared::place`].
    place: Option<u32>,
}

/// What of a window had been drafted for the verdict before it.
#[derive(Debug, Default)]
struct Prepared {
    /// What its proposals were drawn from, if they are drawn.
    q: Vec<SparseDistribution>,
    /// Place of the verdict among the outcomes drafted for; none: nothing had been.
    place: Option<u32>,
}

/// What a session knows beside its tokens for which it matters how likely they are.
#[derive(Debug)]
struct Choices {
    /// What is thought of tokens by how clearly they were drawn, and whether that may have changed.
    chances: Chances,
    stale: bool,
    /// Tokens drawn since the last verdict, with the next best of each.
    drawn: Candidates,
    /// Those drawn before it, and what was decided, until somebody learns from it.
    judged: Candidates,
    verdict: Option<OutcomeKey>,
    /// What is drawn beside the tokens of a window, for verification by ratio; and the same where the
    /// last verdict left it, with the token drawn first.
    growth: Growth,
    refused: (Option<TokenId>, Vec<TokenId>),
}

impl Choices {
    /// Takes in what was emitted after the tokens that were drawn since the last time. The next ones
    /// may be a tree, or not.
    fn judge(&mut self, emitted: &[TokenId], trees: bool) {
        let accepted = common_prefix(self.drawn.window().tokens(), emitted);
        // Whatever was accepted teaches; of what comes after the last token drawn nothing is known. More
        // can have been drawn than was verified: then the decided token is one of those, too.
        let accepted = accepted.min(emitted.len().saturating_sub(1));
        if let Some(&token) = emitted.get(accepted) {
            let accepted = accepted as u32;
            self.verdict = Some(OutcomeKey { accepted, token });
            let first = self.drawn.window().tokens().get(accepted as usize);
            self.refused.0 = first.copied();
            self.refused.1.clear();
            self.refused.1.extend(self.growth.sides_at(accepted));
            core::mem::swap(&mut self.drawn, &mut self.judged);
        }
        self.growth.sides.clear();
        self.drawn.reset(COUPLED, Chances::beside(trees));
        self.stale = true;
    }

    /// Probability that one more token than were drawn is accepted, as far as is known before it is
    /// drawn.
    fn next(&self) -> f64 {
        let accepts = self.drawn.rows().map(|row| self.chances.of(&row).0);
        accepts.product::<f64>() * self.chances.acceptance()
    }

    /// Learns from the last verdict that nobody learned from yet, and teaches it unless others do.
    fn learn(&mut self, planner: &mut Planner, teaches: bool) {
        if let Some(verdict) = self.verdict.take().filter(|_| teaches) {
            planner.observe(&self.judged, verdict);
            let (first, beside) = &self.refused;
            planner.observe_beside(*first, beside, verdict.token);
        }
        if core::mem::take(&mut self.stale) {
            self.chances = planner.estimates().chances();
        }
    }

    fn new() -> Self {
        Self {
            chances: Chances::default(),
            stale: true,
            drawn: nothing_drawn(),
            judged: nothing_drawn(),
            verdict: None,
            growth: Growth::new(),
            refused: (None, Vec::new()),
        }
    }

    /// Before a window of `lookahead` tokens, of which those `known` are there already; `drawn` if it is to
    /// be a tree of tokens that are drawn.
    fn begin(&mut self, known: &[TokenId], drawn: Option<TreeBudget>, lookahead: usize) {
        for &token in known {
            self.drawn.assume(token);
        }
        if drawn.is_some() {
            self.growth.chances.clone_from(&self.chances);
            self.growth.begin(drawn, Cutoff::default(), lookahead, 1);
            self.growth.assume(0, known.len());
        }
    }

    /// Takes in `token`, which `proposer` has just drawn as the one of the window after `after` others,
    /// and draws what is to be verified beside it.
    fn drawn(&mut self, token: TokenId, after: u32, proposer: &mut Proposer, seed: Seed) {
        self.drawn.drawn(token, proposer.ranked());
        self.growth.draw_beside((0, after), token, proposer, seed);
    }
}

#[derive(Debug)]
struct Binding {
    epoch: Epoch,
    /// Round of the next `Outcome`.
    round: Round,
    /// An outcome was missed; only an `Open` helps.
    broken: bool,
    /// At some token of the sequence; brought to where it is needed.
    sampler: Sampler,
    verification: Verification,
    branching: Option<Branching>,
    job: Option<Job>,
}

/// One session on an endpoint.
#[derive(Debug)]
pub struct DraftSession {
    session: SessionId,
    vocab_size: u32,
    max_len: usize,
    max_branches: u32,
    /// Epochs up to this one are closed or were refused.
    closed: Option<Epoch>,
    binding: Option<Binding>,
    /// Decided tokens, then proposals of the current job or the window under verification.
    tokens: Vec<TokenId>,
    decided: usize,
    /// The window under verification if that is a tree, of which `tokens` has the first chain.
    tree: Option<Proposals>,
    /// Once it was asked for something for which that matters.
    choices: Option<Choices>,
    /// Tokens whose KV the engine holds.
    fed: usize,
    /// What it holds behind them.
    tail: Tail,
    /// A branch that has read more, if a verdict has just confirmed one.
    confirmed: Option<Confirmed>,
    flight: Option<Flight>,
    branch_flight: Option<BranchFlight>,
    tickets: u64,
    build: Build,
    proposer: Proposer,
    stats: DraftStats,
}

impl DraftSession {
    /// A session that nothing is known of yet. `vocab_size` and `max_len` are the draft model's.
    pub fn new(session: SessionId, vocab_size: u32, max_len: usize) -> Self {
        Self {
            session,
            vocab_size,
            max_len,
            max_branches: MAX_BRANCHES,
            closed: None,
            binding: None,
            tokens: Vec::new(),
            decided: 0,
            tree: None,
            choices: None,
            fed: 0,
            tail: Tail::Idle,
            confirmed: None,
            flight: None,
            branch_flight: None,
            tickets: 0,
            build: Build::new(),
            proposer: Proposer::default(),
            stats: DraftStats::default(),
        }
    }

    /// The same with another bound on the outcomes it drafts for.
    #[must_use]
    pub fn with_max_branches(mut self, max_branches: u32) -> Self {
        self.max_branches = max_branches;
        self
    }

    /// The answer to a message for a session that the endpoint does not have (its `Open` was lost,
    /// or the endpoint restarted). An `Open` is answered by making a session instead.
    pub fn answer_unknown(message: &ToDraft) -> Option<ToTarget> {
        match message {
            ToDraft::Outcome(outcome) => Some(ToTarget::Resync(Resync {
                session: outcome.session,
                epoch: outcome.epoch,
                have_len: 0,
            })),
            ToDraft::Open(_) | ToDraft::Close { .. } => None,
        }
    }

    /// Takes in a message of the target; the answer is to be sent. Every message is legal in every
    /// state.
    pub fn handle(&mut self, message: &ToDraft) -> Option<ToTarget> {
        match message {
            ToDraft::Open(open) if open.session == self.session => self.open(open),
            ToDraft::Outcome(outcome) if outcome.session == self.session => self.outcome(outcome),
            ToDraft::Close { session, epoch } if *session == self.session => {
                self.close(*epoch);
                None
            }
            ToDraft::Open(_) | ToDraft::Outcome(_) | ToDraft::Close { .. } => None,
        }
    }

    /// Gives the session up, for want of slots for example. The answer is to be sent; the driver
    /// may then forget the session.
    pub fn evict(&mut self, reason: &str) -> Option<ToTarget> {
        let epoch = self.binding.as_ref()?.epoch;
        self.close(epoch);
        Some(self.refuse(epoch, reason.to_string(), true))
    }

    /// A column that it has made is on its way: its tokens count as pushed. Not all are sent: a verdict
    /// may come before.
    pub fn note_pushed(&mut self, column: &Entries) {
        self.stats.pushed += column.drawn();
    }

    /// Counts so far.
    pub fn stats(&self) -> DraftStats {
        self.stats
    }

    /// How the session's budgets are spent, and what it ranks outcomes by.
    pub fn learns_as(&self) -> Option<(FanOut, Scores)> {
        let binding = self.binding.as_ref()?;
        let scores = match binding.verification {
            _ if binding.sampler.params().is_greedy() => Scores::Greedy,
            Verification::Coupled => Scores::Noisy,
            Verification::Rejection { .. } => Scores::Likely,
        };
        let branching = binding.branching.map(|branching| branching.fan_out);
        let weighs = self.choices.as_ref().map(|_| FanOut::Learned);
        Some((branching.or(weighs)?, scores))
    }

    /// Whether its target wants continuations for the outcomes of verifications.
    pub fn drafts_ahead(&self) -> bool {
        let binding = self.binding.as_ref();
        binding.is_some_and(|binding| binding.branching.is_some())
    }

    /// Name of the session.
    pub fn id(&self) -> SessionId {
        self.session
    }

    /// The outcome that comes next: none if only an `Open` helps. A message that leaves it as it is
    /// has said nothing new.
    pub fn awaits(&self) -> Option<(Epoch, Round)> {
        let binding = self.binding.as_ref().filter(|binding| !binding.broken)?;
        Some((binding.epoch, binding.round))
    }

    /// Whether the session holds a binding; if not, its slot is free.
    pub fn is_bound(&self) -> bool {
        self.binding.is_some()
    }

    /// Tokens still to be drafted for the window being made, at most.
    pub fn remaining(&self) -> usize {
        let job = self
            .binding
            .as_ref()
            .and_then(|binding| binding.job.as_ref());
        job.map_or(0, |job| {
            let lookahead = job.wish.lookahead as usize;
            lookahead.saturating_sub(self.tokens.len() - self.decided)
        })
    }

    /// The window under verification, if it is a tree.
    pub fn tree(&self) -> Option<&Proposals> {
        self.tree.as_ref()
    }

    /// Tokens that the target decided.
    pub fn decided(&self) -> &[TokenId] {
        &self.tokens[..self.decided]
    }

    /// The sequence as the session wants it: decided tokens, then proposals or the window under
    /// verification.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }
}
