//! Names of things that must not be mixed up.

use core::fmt;

use crate::hash;

/// Index of an entry of the vocabulary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct TokenId(pub u32);

impl TokenId {
    /// The token's row in arrays over the vocabulary.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How many tokens two sequences begin with alike.
pub(crate) fn common_prefix(a: &[TokenId], b: &[TokenId]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// One request's conversation between a target and an endpoint; unique per link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Rises whenever a session is bound anew: on another endpoint, or after a resync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u32);

impl Epoch {
    /// The epoch after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Counts target verifications of a session within an epoch. Round 0 decides the first token
/// after the tokens of `Open`; no window belongs to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Round(pub u32);

impl Round {
    /// The round after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

/// Where a request's randomness comes from. The same seed, prompt and sampling parameters give
/// the same tokens, whatever drafted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Seed(pub u64);

impl Seed {
    /// Seed of the `choice`-th of several completions of one request. Choice 0 keeps the
    /// request's own seed, so `n = 1` and the first of `n` agree.
    #[must_use]
    pub fn derive(self, choice: u32) -> Self {
        if choice == 0 {
            return self;
        }
        Self(hash::finalise(
            self.0 ^ u64::from(choice).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        ))
    }
}
