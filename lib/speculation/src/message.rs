//! What a target and a speculation endpoint say to each other about one session.
//!
//! These are values: `lib/protocol` puts them on a wire, tests pass them by hand. All are keyed
//! by (session, epoch, round). A repeated message changes nothing, one of an older epoch or round
//! is dropped, and one that does not follow the receiver's state makes the endpoint ask for a
//! [`Resync`].

use alloc::{string::String, vec::Vec};

use crate::{Epoch, Round, Seed, SessionId, TokenId, sampling::SamplingParams};

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
    /// The endpoint's state does not follow from what it was told.
    Resync(Resync),
}

/// Binds a session to an endpoint. `tokens` are all tokens so far; round 0 is the verification
/// that decides the token after them.
#[derive(Clone, Debug, PartialEq)]
pub struct Open {
    /// Session to bind.
    pub session: SessionId,
    /// Rises with each `Open` of the session.
    pub epoch: Epoch,
    /// How the target samples; a coupled draft samples the same way with the same noise.
    pub sampling: SamplingParams,
    /// Seed of the noise.
    pub seed: Seed,
    /// How many of `tokens` are the prompt: penalties tell prompt from output.
    pub prompt_len: u32,
    /// Prompt and output so far.
    pub tokens: Vec<TokenId>,
}

/// The verdict of one round.
#[derive(Clone, Debug, PartialEq)]
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
    /// How many tokens the target wants for round `round + 1`; 0: none, just follow.
    pub lookahead: u32,
}

/// Tokens proposed for one round.
#[derive(Clone, Debug, PartialEq)]
pub struct Window {
    /// Session this belongs to.
    pub session: SessionId,
    /// Binding this belongs to.
    pub epoch: Epoch,
    /// Round that is to verify it.
    pub round: Round,
    /// Length of the sequence that `tokens` continue.
    pub base_len: u32,
    /// The proposed continuation, in order.
    pub tokens: Vec<TokenId>,
    /// What each token was sampled from (rejection mode only; empty in coupled mode).
    pub q: Vec<SparseDistribution>,
}

/// A distribution over part of the vocabulary: what the draft really sampled from, after its own
/// truncation and renormalisation. Probabilities are positive and sum to 1 up to rounding.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SparseDistribution {
    /// (token, probability), by ascending token.
    pub entries: Vec<(TokenId, f32)>,
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
