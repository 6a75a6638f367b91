//! Who proposes tokens, and when the target verifies them.

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
