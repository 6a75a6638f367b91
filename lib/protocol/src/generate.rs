//! What a router asks of a target, and what comes back.
//!
//! The router holds a [`GenerateClient`] per target; the target answers through
//! [`serve_generate`] and its [`GenerateService`]. Dropping a [`GenerateStream`] cancels the
//! request on the target at once.

mod client;
mod convert;
mod events;
mod server;

pub use client::{GenerateClient, GenerateStream};
pub use events::{Cancelled, EventReceiver, EventSender};
pub use server::{GenerateService, ServeError, serve_generate};

use std::time::Duration;

use foretoken_speculation::{
    Seed, TokenId, TraceContext, bounds::BoundCounts, control, fanout, message::Account,
    sampling::SamplingParams,
};

/// The metadata of a call that names its trace, as W3C Trace Context has it.
const TRACEPARENT: &str = "traceparent";

/// A completion to generate.
#[derive(Clone, Debug, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a field of the message"
)]
pub struct GenerateRequest {
    /// For logs and traces, on both sides.
    pub request_id: String,
    /// Whose it is: requests of one owner come after those of others who have less running. Choices of
    /// one user's request have the same; 0 is nobody, and each such request is alone.
    pub owner: u64,
    /// The prompt, followed by tokens that another target already emitted (replay).
    pub tokens: Vec<TokenId>,
    /// How many of `tokens` are the prompt.
    pub prompt_len: usize,
    /// How to sample.
    pub sampling: SamplingParams,
    /// Where the randomness comes from.
    pub seed: Seed,
    /// Stop after this many tokens of output, replayed ones included.
    pub max_tokens: u32,
    /// Go on after an end-of-sequence token.
    pub ignore_eos: bool,
    /// Tokens that end the output, besides the model's own end-of-sequence tokens.
    pub stop_token_ids: Vec<TokenId>,
    /// Report log-probabilities, with this many alternatives per token.
    pub logprobs: Option<u32>,
    /// Report log-probabilities of the prompt's tokens too (`echo`).
    pub prompt_logprobs: bool,
    /// Policy for this request, by name; none: the deployment's.
    pub policy: Option<String>,
    /// Lookahead for this request; none: the policy's own.
    pub lookahead: Option<u32>,
    /// Whether KV of this prompt may be kept and reused.
    pub cache_prompt: bool,
    /// Who may reuse what is kept of this request, in secret: only requests with the same salt.
    /// None: all those without one. Never empty.
    pub cache_salt: Option<String>,
    /// Speculation endpoints to try, best first; empty: the target's own order.
    pub endpoints: Vec<String>,
    /// Whether every round tells what it took so far: to whoever may end the output before its end, and
    /// for whom none waits, whatever `hold` says.
    pub tell_stats: bool,
    /// How long tokens may wait for later ones, to leave with them: handing a round on takes from the
    /// next one's time. Whole microseconds. Zero: no round waits. The first and the last never do.
    pub hold: Duration,
    /// Trace that the work belongs to. Travels beside the message, as the `traceparent` of its call.
    pub trace: Option<TraceContext>,
}

/// [`GenerateRequest::hold`] for whoever has no use for tokens before the last one. Not longer: what a
/// target has not handed on when it dies is computed again.
pub const HOLD_FOR_WHOLE: Duration = Duration::from_millis(20);

/// One piece of the answer, in order: `Started`, any number of `Tokens`, `Finished`.
#[derive(Clone, Debug, PartialEq)]
pub enum GenerateEvent {
    /// The prompt is in; the first token follows.
    Started {
        /// Prompt tokens whose KV was reused.
        cached_tokens: u32,
        /// Log-probabilities of prompt tokens 1.. if they were asked for.
        prompt_logprobs: Vec<TokenLogprobs>,
        /// Policy that serves it.
        policy: String,
        /// Rule by which proposals are accepted; empty if there are none.
        verification: String,
    },
    /// Tokens of one round.
    Tokens(Round),
    /// Nothing follows.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// What it took.
        stats: Box<GenerationStats>,
    },
}

/// What one pass of the target decided. A reader that stops early, or loses the target, has the
/// whole account of what it has read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// Tokens that a draft had proposed and this pass verified; none in the prompt's own pass.
    pub drafted: u32,
    /// What came of it.
    pub tokens: Vec<EmittedToken>,
    /// What the output took so far, if that was asked for.
    pub stats: Option<Box<GenerationStats>>,
}

/// A token of the output.
#[derive(Clone, Debug, PartialEq)]
pub struct EmittedToken {
    /// The token.
    pub token: TokenId,
    /// Whether a draft had proposed it.
    pub accepted: bool,
    /// Log-probabilities, if they were asked for.
    pub logprobs: Option<TokenLogprobs>,
}

/// Log-probabilities at one position, of the model's distribution before temperature and
/// truncation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenLogprobs {
    /// Of the token itself.
    pub logprob: f32,
    /// Rank of the token itself, 0 being the likeliest.
    pub rank: u32,
    /// The likeliest tokens, descending.
    pub top: Vec<(TokenId, f32)>,
}

/// Why an output ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence or stop token, which is the last token emitted.
    Stop(TokenId),
    /// `max_tokens` or the model's length.
    Length,
}

/// What a completion took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationStats {
    /// Target passes after the prompt.
    pub rounds: u32,
    /// Tokens proposed and verified.
    pub drafted: u32,
    /// Of these, accepted.
    pub accepted: u32,
    /// Verdicts that a window had been drafted for while they were under way.
    pub hits: u32,
    /// Verdicts for which only other outcomes, or nothing yet, had been drafted.
    pub misses: u32,
    /// Rounds that went on without the window they had asked for.
    pub late: u32,
    /// Bytes of messages to and from endpoints, without framing.
    pub bytes: u64,
    /// What else is counted of drafting ahead.
    pub ahead: AheadStats,
    /// What was measured of its rounds.
    pub measured: RoundStats,
    /// What endpoints said of their work for it.
    pub endpoint: EndpointStats,
    /// Factor by which the endpoint drew less of what it guessed, at the end; none if proposals
    /// were not drawn ahead.
    pub saguaro_c: Option<f32>,
    /// Prompt tokens whose KV was reused.
    pub cached_tokens: u32,
    /// Policy that served it.
    pub policy: String,
    /// Time from arrival to the first token.
    pub prefill: Duration,
    /// Time from the first token to the last.
    pub decode: Duration,
}

/// What is counted of drafting ahead, beside hits and misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AheadStats {
    /// Hits that were the first verdict of a binding, for which an endpoint has little time.
    pub first_hits: u32,
    /// Misses that were.
    pub first_misses: u32,
    /// Verdicts without a hit after which nothing was proposed.
    pub alone: u32,
    /// Verdicts without a hit after which proposals of the target's host were verified.
    pub local: u32,
    /// Verdicts without a hit after which the endpoint was asked.
    pub remote: u32,
    /// Tokens drafted ahead that came in time.
    pub received: u64,
    /// Of these, in windows.
    pub used: u64,
    /// Tokens drafted ahead that came too late, or twice, or out of order.
    pub late: u64,
    /// Hits that were found among the outcomes drafted for: not the rest of a window.
    pub placed: u32,
    /// Sum of the places of these, the likeliest outcome being 1.
    pub places: u64,
}

/// What is measured of rounds, from one verdict to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundStats {
    /// Bytes of messages to and from endpoints.
    pub bytes: u64,
    /// Rounds in which there were any.
    pub weighed: u32,
    /// Time of rounds whose window had been drafted ahead.
    pub hit: Duration,
    /// Of that, in the steps that verified the windows.
    pub hit_verification: Duration,
    /// Time of rounds that waited for the window they had asked for, which had not been drafted before,
    /// without the steps that verified.
    pub awaited: Duration,
    /// Choices of a lookahead, by what kept them from being larger.
    pub limits: BoundCounts<control::Limit>,
}

/// What endpoints said of their work for a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Verdicts that candidates were held against.
    pub judged: u32,
    /// Of these, those whose decided token was among the best candidates of its row, hits and misses alike.
    pub ranked: u32,
    /// Sum of the ranks of these, the best being 1.
    pub ranks: u64,
    /// Time of steps that drafted ahead of verdicts.
    pub ahead: Duration,
    /// Time of steps that the target waited for, for a window or with a verdict.
    pub awaited: Duration,
    /// Builds, by what kept them from drafting for more outcomes.
    pub limits: BoundCounts<fanout::Limit>,
}

impl EndpointStats {
    /// Adds what one of them said.
    pub fn add(&mut self, account: &Account) {
        self.judged = self.judged.saturating_add(account.judged);
        self.ranked = self.ranked.saturating_add(account.ranked);
        self.ranks += u64::from(account.ranks);
        self.ahead += account.ahead;
        self.awaited += account.awaited;
        self.limits.merge(&account.limits);
    }
}

/// What a target is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetInfo {
    /// Name of this replica.
    pub instance: String,
    /// Digest of configuration and weights.
    pub model_digest: String,
    /// Arithmetic path; logits are bit-equal between equal digests and paths.
    pub path: String,
    /// Digest of its tokenizer, by which a router knows that its tokens mean the same there; empty:
    /// it has none.
    pub tokenizer_digest: String,
    /// Entries of the vocabulary.
    pub vocab_size: u32,
    /// Longest sequence, prompt and output together.
    pub max_positions: u32,
    /// Policy requests get if they name none.
    pub policy: String,
    /// Load right now.
    pub load: TargetLoad,
}

/// How busy a target is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TargetLoad {
    /// Requests decoding.
    pub running: u32,
    /// Requests waiting for a place.
    pub waiting: u32,
    /// KV pages in use, in thousandths.
    pub kv_used_permille: u32,
    /// Whether it is draining: finish what runs, send nothing new.
    pub draining: bool,
}

/// Why a target gave no (more) tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GenerateError {
    /// The request can never be served; the message says what to change.
    #[error("{0}")]
    Invalid(String),
    /// The target has no room now; another may.
    #[error("target {instance} is full or draining")]
    Busy {
        /// Who.
        instance: String,
    },
    /// The connection or the target was lost; replay on another target.
    #[error("lost target {instance}: {cause}")]
    Lost {
        /// Who.
        instance: String,
        /// What was seen.
        cause: String,
    },
}

impl GenerateError {
    /// Whether the same request, with the tokens so far, may succeed on another target.
    pub fn replayable(&self) -> bool {
        match self {
            Self::Invalid(_) => false,
            Self::Busy { .. } | Self::Lost { .. } => true,
        }
    }
}
