//! Who proposes tokens, and when the target verifies them.
//!
//! ```text
//!            target                                   endpoint
//!  start     Open(tokens) ──────────────────────────> extends its KV, answers Opened
//!  round 0   verifies [] ─── Outcome(0, [t], K) ────> drafts K tokens
//!  round 1   verifies <───── Window(1, x1..xK) ──────
//!            ─────────────── Outcome(1, [..], K) ───> truncates, drafts K tokens
//!  end       Close ─────────────────────────────────> frees the slot
//! ```
//!
//! [`Policy::Ssd`] (SSD, Kumar et al. 2026, arXiv 2603.03251) drafts while the target verifies:
//!
//! ```text
//!  round r   verifies x ──────────────────────────┐     ranks what may be decided after each x_i,
//!            <───── Entries(r, (k, t) -> y..) ────┤     drafts a continuation for each outcome
//!            looks its verdict (k, t) up          │
//!  hit       verifies y at once ── Outcome(r, .., verifying y) ──> stops, goes on from y
//!  miss      falls back ────────── Outcome(r, .., lookahead | verifying) ──> as above
//! ```
//!
//! Both sides are total state machines: every input is legal in every state, time is an argument,
//! messages are values. What a target emits is a function of its own sampler alone; the machines
//! only decide how many tokens a pass verifies and how long it waits for them.
//!
//! Invariants: a window is verified only in the round and at the length it was drafted for; a
//! duplicate, stale or foreign message changes nothing; a target never waits past its patience;
//! whatever is lost, the next `Outcome` reveals it and a `Resync` repairs it.

pub mod draft;
mod patience;
pub mod target;

pub use self::patience::Patience;
use crate::{
    fallback::OnMiss,
    fanout::FanOut,
    message::{Branching, Delivery},
};

/// A policy with its parameters, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// One token a step: the baseline.
    Autoregressive,
    /// The draft proposes a window after each verdict: vanilla speculative decoding.
    Speculative(Lookahead),
    /// The draft proposes windows for the likeliest verdicts while the target verifies:
    /// speculative speculative decoding.
    Ssd(SsdOptions),
}

/// Parameters of [`Policy::Ssd`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsdOptions {
    /// Tokens of a window, and of each continuation.
    pub lookahead: Lookahead,
    /// Outcomes that are drafted for in a round, at most.
    pub budget: u32,
    /// How they are spread over outcomes.
    pub fan_out: FanOut,
    /// What a row verifies after a verdict that nothing was drafted for. Where this leaves a choice
    /// the driver makes it: [`Verified::fallback`](target::Verified::fallback).
    pub fallback: OnMiss,
    /// Who looks verdicts up.
    pub delivery: Delivery,
}

impl Default for SsdOptions {
    fn default() -> Self {
        Self {
            lookahead: Lookahead::Adaptive { max: 15 },
            budget: 24,
            fan_out: FanOut::Learned,
            fallback: OnMiss::Auto,
            delivery: Delivery::Push,
        }
    }
}

impl SsdOptions {
    /// Whether it is left open to draft ahead: who leaves open what follows a miss does. Where nothing is
    /// drafted ahead, windows are asked for; the other fallbacks live on hits to come. What is pulled is
    /// kept by the endpoint, and asked for anyway.
    pub fn may_refrain(&self) -> bool {
        self.fallback == OnMiss::Auto && self.delivery == Delivery::Push
    }
}

impl Policy {
    /// The name used in manifests, requests and usage.
    pub fn name(self) -> &'static str {
        match self {
            Self::Autoregressive => "Autoregressive",
            Self::Speculative(_) => "Speculative",
            Self::Ssd(_) => "SSD",
        }
    }

    /// How many tokens to ask for, given what a controller suggests.
    pub fn lookahead(self, suggested: u32) -> u32 {
        match self {
            Self::Autoregressive => 0,
            Self::Speculative(lookahead) | Self::Ssd(SsdOptions { lookahead, .. }) => {
                lookahead.of(suggested)
            }
        }
    }

    /// What an endpoint is to do ahead of verdicts, with continuations of this many tokens for
    /// round 0.
    pub fn branching(self, lookahead: u32) -> Option<Branching> {
        match self {
            Self::Autoregressive | Self::Speculative(_) => None,
            Self::Ssd(options) => Some(Branching {
                lookahead,
                branches: options.budget,
                fan_out: options.fan_out,
                delivery: options.delivery,
            }),
        }
    }
}

/// How many tokens a window has at most: it may end before one that is not worth its row, see
/// [`Controller::cutoffs`](crate::control::Controller::cutoffs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookahead {
    /// Always up to this many (near the maximum length: fewer).
    Fixed(u32),
    /// As many as pay, measured while serving: 0 up to `max`.
    Adaptive {
        /// Upper bound.
        max: u32,
    },
}

impl Lookahead {
    /// How many tokens to ask for, given what a controller suggests.
    pub fn of(self, suggested: u32) -> u32 {
        match self {
            Self::Fixed(k) => k,
            Self::Adaptive { max } => suggested.min(max),
        }
    }

    /// The most tokens it ever asks for.
    pub fn most(self) -> u32 {
        match self {
            Self::Fixed(k) => k,
            Self::Adaptive { max } => max,
        }
    }
}

#[cfg(test)]
mod tests;
