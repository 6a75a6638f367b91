//! What a target and a speculation endpoint say to each other about one session.
//!
//! These are values: `lib/protocol` puts them on a wire, tests pass them by hand. All are keyed
//! by (session, epoch, round). A repeated message changes nothing, one of an older epoch or round
//! is dropped, and one that does not follow the receiver's state makes the endpoint ask for a
//! [`Resync`].

use alloc::{string::String, vec::Vec};
use core::time::Duration;

use crate::{
    Epoch, Proposals, Round, Seed, SessionId, TokenId,
    bounds::BoundCounts,
    fanout::{FanOut, Limit},
    guess::OutcomeKey,
    saguaro::Saguaro,
    sampling::SamplingParams,
    trace::TraceContext,
    verify::Verification,
};

/// From the target to the endpoint.
#[derive(Clone, Debug, PartialEq)]
pub enum ToDraft {
    /// Binds a session: everything the endpoint needs to draft for it.
    Open(Open),
    /// What the target decided, and how much it wants next.
    Outcome(Outcome),
    /// The session is over; its slot is free.
    Close {
        /// The session that ended.
        session: SessionId,
        /// Closes this epoch and older ones.
        epoch: Epoch,
    },
}

/// From the endpoint to the target.
#[derive(Clone, Debug, PartialEq)]
pub enum ToTarget {
    /// The session has a slot.
    Opened {
        /// The session that was opened.
        session: SessionId,
        /// The epoch of the `Open` it answers.
        epoch: Epoch,
    },
    /// The session has no slot; the target goes on without this endpoint.
    Refused {
        /// The session that was refused.
        session: SessionId,
        /// The epoch of the `Open` it answers.
        epoch: Epoch,
        /// Why, in words for an operator.
        reason: String,
        /// Whether a later `Open` may succeed.
        retry: bool,
    },
    /// A proposal.
    Window(Window),
    /// Proposals for outcomes of the round under verification.
    Entries(Entries),
    /// The endpoint's state does not follow from what it was told.
    Resync(Resync),
    /// What the endpoint did.
    Account(Account),
}

/// A message about one session.
pub trait Keyed {
    /// The session it is about, and the binding it belongs to.
    fn key(&self) -> (SessionId, Epoch);

    /// The session alone.
    fn session(&self) -> SessionId {
        self.key().0
    }
}

impl Keyed for ToDraft {
    fn key(&self) -> (SessionId, Epoch) {
        match self {
            Self::Open(Open { session, epoch, .. })
            | Self::Outcome(Outcome { session, epoch, .. })
            | Self::Close { session, epoch } => (*session, *epoch),
        }
    }
}

impl Keyed for ToTarget {
    fn key(&self) -> (SessionId, Epoch) {
        match self {
            Self::Opened { session, epoch }
            | Self::Refused { session, epoch, .. }
            | Self::Window(Window { session, epoch, .. })
            | Self::Entries(Entries { session, epoch, .. })
            | Self::Resync(Resync { session, epoch, .. })
            | Self::Account(Account { session, epoch, .. }) => (*session, *epoch),
        }
    }
}

/// Binds a session to an endpoint. `tokens` are all tokens so far; round 0 is the verification
/// that decides the token after them; no window belongs to it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Open {
    /// Session to bind.
    pub session: SessionId,
    /// Rises with each `Open` of the session.
    pub epoch: Epoch,
    /// How the target samples; a coupled draft samples the same way with the same noise.
    pub sampling: SamplingParams,
    /// How it verifies, and so what proposals are drawn from.
    pub verification: Verification,
    /// Seed of the noise.
    pub seed: Seed,
    /// How many of `tokens` are the prompt: penalties tell prompt from output.
    pub prompt_len: u32,
    /// Prompt and output so far.
    pub tokens: Vec<TokenId>,
    /// Whether, and how, to draft ahead of verdicts, from round 0 on.
    pub branching: Option<Branching>,
    /// What the endpoint keeps of these tokens is for sessions of the same tenant with the same salt; zeros
    /// if the request names none.
    pub salt: [u8; 32],
    /// Whether the endpoint is to keep nothing of them, and to find nothing that it has kept.
    pub keeps_nothing: bool,
    /// Trace that the session's work belongs to, if that is recorded. Nothing depends on it.
    pub trace: Option<TraceContext>,
}

/// How an endpoint drafts for the outcomes of a verification that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branching {
    /// Tokens of each continuation for an outcome of round 0.
    pub lookahead: u32,
    /// Outcomes of round 0 to draft for, at most.
    pub branches: u32,
    /// How they are spread over outcomes.
    pub fan_out: FanOut,
    /// Who keeps what was drafted.
    pub delivery: Delivery,
}

/// Who looks an outcome up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Delivery {
    /// The target: [`Entries`] are sent as they are drafted, and a hit costs no round trip.
    #[default]
    Push,
    /// The endpoint: what is drafted stays there, and answers the next request for a window at
    /// once if it is for the right outcome. Fewer bytes, a round trip a round.
    Pull,
}

impl Delivery {
    /// The name used in manifests and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Push => "Push",
            Self::Pull => "Pull",
        }
    }
}

/// The verdict of one round, and what comes next.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Session this belongs to.
    pub session: SessionId,
    /// Binding this belongs to.
    pub epoch: Epoch,
    /// Round that was verified.
    pub round: Round,
    /// Tokens of the sequence before this round, prompt included.
    pub base_len: u32,
    /// Tokens that the round emitted: the accepted ones, then the decided one.
    pub tokens: Vec<TokenId>,
    /// How many tokens the target wants: in a window for round `round + 1`, or, if that one is
    /// `verifying` already, in each of the entries for its outcomes. 0: none, just follow.
    pub lookahead: u32,
    /// The window that round `round + 1` verifies, if that is settled and needs no answer. The
    /// window may be empty.
    pub verifying: Option<Proposals>,
    /// Outcomes of round `round + 1` to draft for, at most. 0: none.
    pub branches: u32,
    /// Whether what is asked for may be a tree, then `lookahead` tokens deep at most. Otherwise a
    /// chain.
    pub tree: Option<TreeBudget>,
    /// Where windows and continuations that are asked for end before they have `lookahead` tokens
    /// ([`Verification::Coupled`] only).
    pub cutoffs: Cutoffs,
    /// What is lowered of the distributions that the tokens asked for are drawn from
    /// ([`Verification::Rejection`] only).
    pub saguaro: Saguaro,
    /// How long the verdict waited, after its verification, for more of what was drafted for it. Whole
    /// microseconds.
    pub lingered: Duration,
    /// Tokens of what is verified next that came while it did.
    pub awaited: u32,
    /// How long after the last verdict of this binding it was sent. Whole microseconds, which add up to
    /// what passed; zero for the first.
    pub elapsed: Duration,
}

/// What the target has for a tree of proposals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeBudget {
    /// Most proposals of a tree.
    pub nodes: u32,
    /// How likely each of them has to be, the likelier ones before it.
    pub cutoff: Cutoff,
}

impl TreeBudget {
    /// A budget of up to `nodes` proposals, each of which has to be at least so likely.
    pub fn new(nodes: u32, probability: f64) -> Self {
        let cutoff = Cutoff::new(probability, Rise::default());
        Self { nodes, cutoff }
    }
}

/// How likely tokens have to be to be proposed, beside the first one of a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cutoffs {
    /// Those of a window, which is waited for while it is drafted, in ten-thousandths.
    pub window: u32,
    /// Those of continuations, which are drafted ahead, in ten-thousandths.
    pub entries: u32,
    /// What both rise by along a chain.
    pub rise: Rise,
}

impl Cutoffs {
    /// Those at these probabilities.
    pub fn new(window: f64, entries: f64, rise: Rise) -> Self {
        Self {
            window: parts(window),
            entries: parts(entries),
            rise,
        }
    }

    /// The one of a window.
    pub fn of_window(self) -> Cutoff {
        Cutoff {
            parts: self.window,
            rise: self.rise,
        }
    }

    /// The one of continuations.
    pub fn of_entries(self) -> Cutoff {
        Cutoff {
            parts: self.entries,
            rise: self.rise,
        }
    }
}

/// By how much likelier later proposals have to be, where their rows are dearer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rise {
    /// Proposals before them.
    pub after: u32,
    /// In ten-thousandths.
    pub parts: u32,
}

impl Rise {
    /// By this probability after so many proposals.
    pub fn new(after: u32, probability: f64) -> Self {
        Self {
            after,
            parts: parts(probability),
        }
    }
}

/// The least probability of being accepted, with all tokens before it, for which a token is worth
/// the time that it adds to a round. By default every token is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cutoff {
    /// In ten-thousandths.
    pub parts: u32,
    /// By how much later proposals have to be likelier than that.
    pub rise: Rise,
}

impl Cutoff {
    /// The one at this probability.
    pub fn new(probability: f64, rise: Rise) -> Self {
        Self {
            parts: parts(probability),
            rise,
        }
    }

    /// Whether it leaves any token out.
    pub fn cuts(self) -> bool {
        self.parts > 0 || self.rise.parts > 0
    }

    /// How many proposals with these chances, each no likelier than the one before, are worth it: they end
    /// before the first that is too unlikely, but never before the first of all.
    pub fn tokens(self, mut chances: impl Iterator<Item = f64>) -> u32 {
        let first = u32::from(chances.next().is_some());
        let later = (first..).zip(chances);
        let worth = later.take_while(|&(index, chance)| chance >= self.at(index));
        first + worth.count() as u32
    }

    /// The probability that a proposal has to have that comes after `index` others.
    pub fn at(self, index: u32) -> f64 {
        let rises = index >= self.rise.after;
        let more = if rises { self.rise.parts } else { 0 };
        f64::from(self.parts.saturating_add(more)) / SHARE_UNIT
    }
}

/// One in numbers of ten-thousandths.
const SHARE_UNIT: f64 = 10_000.0;

/// A probability in ten-thousandths. A number that is none becomes 0.
fn parts(probability: f64) -> u32 {
    libm::round(probability.clamp(0.0, 1.0) * SHARE_UNIT) as u32
}

impl Outcome {
    /// Tokens of the window that the target now waits for, if any.
    pub fn asks(&self) -> Option<u32> {
        (self.lookahead > 0 && self.verifying.is_none()).then_some(self.lookahead)
    }
}

/// Tokens proposed for one round.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Session this belongs to.
    pub session: SessionId,
    /// Binding this belongs to.
    pub epoch: Epoch,
    /// Round that is to verify it.
    pub round: Round,
    /// Length of the sequence that `tokens` continue.
    pub base_len: u32,
    /// The proposed continuation.
    pub proposals: Proposals,
    /// What the tokens at each depth were drawn from, before it was lowered
    /// ([`Verification::Rejection`] only; empty otherwise). Of a tree the first token at a depth is that
    /// of its spine, and the others were drawn beside it from what that left.
    pub q: Vec<SparseDistribution>,
    /// How it was lowered.
    pub saguaro: Saguaro,
    /// Place of the verdict before it among the outcomes that were drafted for, likeliest first, if it
    /// begins with what was drafted for that.
    pub place: Option<u32>,
}

/// Continuations for outcomes of one round, or the next tokens of them.
///
/// They come in parts, each a number of columns: the first names the outcomes and has the first
/// token (or more) of each continuation, later ones append to those of the first outcomes: to as many
/// as the column before, or, as a part of its own, a column for fewer, after which the other
/// continuations are complete. One among them that is complete has [`Self::ENDED`] in the place of its
/// next token, and of those that follow it. A continuation is of use as soon as it has a token. A part
/// fits if as
/// many tokens are `before` it as are known; any other is dropped, so that a repeated part changes
/// nothing and a lost one only leaves the continuations shorter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// Session this belongs to.
    pub session: SessionId,
    /// Binding this belongs to.
    pub epoch: Epoch,
    /// Round whose outcomes these are.
    pub round: Round,
    /// Length of the sequence before that round.
    pub base_len: u32,
    /// Whether these are outcomes after the whole window that were begun later than the others: they have
    /// parts of their own.
    pub late: bool,
    /// Tokens that the longest continuations have before this part.
    pub before: u32,
    /// In the first part (`before` is 0): the outcomes, likeliest first. Otherwise empty.
    pub keys: Vec<OutcomeKey>,
    /// One token for each outcome that has one more, in their order; then the next of each, and so on.
    pub tokens: Vec<TokenId>,
    /// Second choices, which make trees of continuations. Only if asked for. Where tokens are drawn they
    /// come with the one that they are beside, and were drawn from what that left.
    pub sides: Vec<Side>,
    /// What each of `tokens` was drawn from, before it was lowered ([`Verification::Rejection`]
    /// only; empty otherwise).
    pub q: Vec<SparseDistribution>,
    /// How it was lowered.
    pub saguaro: Saguaro,
}

impl Entries {
    /// In the place of a token: this continuation has no more of them.
    pub const ENDED: TokenId = TokenId(u32::MAX);

    /// Tokens that it has: continuations that have ended have none.
    pub fn drawn(&self) -> u32 {
        Self::drawn_of(&self.tokens)
    }

    /// The same of a column alone.
    pub(crate) fn drawn_of(column: &[TokenId]) -> u32 {
        let drawn = column.iter().filter(|&&token| token != Self::ENDED);
        drawn.count() as u32
    }
}

/// A proposal that nothing follows, beside the tokens of a continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// Place of the outcome whose continuation it belongs to.
    pub entry: u32,
    /// Tokens of the continuation before it: fewer than that has with this part.
    pub after: u32,
    /// Another token than the continuation's own at this place.
    pub token: TokenId,
}

/// A distribution over part of the vocabulary: what a draft really samples from, after its own
/// truncation. Weights are whole numbers, so that both sides know it to the last bit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SparseDistribution {
    /// (token, weight), by ascending token; no weight is 0. A token's probability is its share of
    /// the sum of all weights.
    pub entries: Vec<(TokenId, u32)>,
}

impl SparseDistribution {
    /// Largest weight that can be sent.
    pub const MAX_WEIGHT: u32 = u16::MAX as u32;

    /// Sum of the weights, exact for as many tokens as any vocabulary has.
    pub fn total(&self) -> f64 {
        self.entries.iter().map(|entry| f64::from(entry.1)).sum()
    }

    /// Weight of `token`; 0 if it has none.
    pub fn weight(&self, token: TokenId) -> u32 {
        let found = self.entries.binary_search_by_key(&token, |entry| entry.0);
        found.map_or(0, |place| self.entries[place].1)
    }
}

/// Asks for an `Open` of a new epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Resync {
    /// Session that lost its thread.
    pub session: SessionId,
    /// Epoch that is broken.
    pub epoch: Epoch,
    /// Tokens the endpoint has of it, for logs.
    pub have_len: u32,
}

/// What an endpoint that drafts ahead did since it last said so, and what it had thought of verdicts. For
/// whoever watches: nothing depends on it, and it comes with the first column of a build, or with a
/// window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Session this belongs to.
    pub session: SessionId,
    /// Binding this belongs to.
    pub epoch: Epoch,
    /// Verdicts that candidates were held against.
    pub judged: u32,
    /// Of these, those whose decided token was among the best candidates of its row
    /// ([`COUNTED_RANKS`](crate::policy::draft::COUNTED_RANKS)), hits and misses alike.
    pub ranked: u32,
    /// Sum of the ranks of these, the best being 1.
    pub ranks: u32,
    /// Time of steps that drafted ahead of verdicts, also while these waited for more. Whole microseconds
    /// are sent.
    pub ahead: Duration,
    /// Time of steps for windows that the target waited for. The same.
    pub awaited: Duration,
    /// Builds, by what kept them from drafting for more outcomes.
    pub limits: BoundCounts<Limit>,
}
