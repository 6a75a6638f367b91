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

/// A policy with its parameters, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// One token a step: the baseline.
    Autoregressive,
    /// The draft proposes a window after each verdict: vanilla speculative decoding.
    Speculative(Lookahead),
}

impl Policy {
    /// The name used in manifests, requests and usage.
    pub fn name(self) -> &'static str {
        match self {
            Self::Autoregressive => "Autoregressive",
            Self::Speculative(_) => "Speculative",
        }
    }

    /// How many tokens to ask for, given what a controller suggests.
    pub fn lookahead(self, suggested: u32) -> u32 {
        match self {
            Self::Autoregressive => 0,
            Self::Speculative(Lookahead::Fixed(k)) => k,
            Self::Speculative(Lookahead::Adaptive { max }) => suggested.min(max),
        }
    }
}

/// How many tokens a window has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookahead {
    /// Always this many (near the maximum length: fewer).
    Fixed(u32),
    /// As many as pay, measured while serving: 0 up to `max`.
    Adaptive {
        /// Upper bound.
        max: u32,
    },
}

#[cfg(test)]
mod tests;
