//! Proposals from the target's own host: after a miss, and when there is no endpoint.
//!
//! [`SuffixIndex`] continues the last place where the request said the same; [`Recycling`] chains
//! the tokens last seen to follow each other. Both are deterministic, so that a proposal is a
//! certain one (a point mass) to any verifier, and neither waits for anything.

mod recycling;
mod suffix;

use alloc::vec::Vec;

pub use self::{recycling::Recycling, suffix::SuffixIndex};
use crate::TokenId;

/// Where local proposals came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// There are none.
    Nothing,
    /// From the recycling table.
    Recycled,
    /// From a place of the request that ends in the same tokens: how many.
    Suffix(u32),
}

/// Replaces `proposals` by up to `n` tokens to follow `tokens`: from the longest suffix that
/// occurred before, else from the table of successors. `suffixes` has taken in `tokens`.
pub fn propose(
    suffixes: &SuffixIndex,
    recycling: Option<&Recycling>,
    tokens: &[TokenId],
    n: usize,
    proposals: &mut Vec<TokenId>,
) -> Origin {
    if let Some(matched) = suffixes.propose(tokens, n, proposals) {
        return Origin::Suffix(matched);
    }
    if let (Some(recycling), Some(&last)) = (recycling, tokens.last()) {
        recycling.propose(last, n, proposals);
    }
    if proposals.is_empty() {
        Origin::Nothing
    } else {
        Origin::Recycled
    }
}

#[cfg(test)]
mod tests;
