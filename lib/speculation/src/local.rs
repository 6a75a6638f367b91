//! Proposals from the target's own host: after a miss, and when there is no endpoint.
//!
//! [`SuffixIndex`] continues the last place where the request said the same; [`Recycling`] chains
//! the tokens last seen to follow each other, in all requests of a tenant. A [`Proposer`] asks
//! both for every verdict and offers the one with more tokens that are likely to be accepted, as
//! far as they are worth their rows. Both are deterministic, so that a proposal is a certain one (a
//! point mass) to any verifier, and neither waits for anything.
//!
//! What each source would have proposed is held against what the target then said, whether it was
//! proposed or not, so nothing has to be tried to be known.

mod proposer;
mod recycling;
mod suffix;
mod tenant;
mod yields;

pub use self::{
    proposer::{Proposal, Proposer},
    recycling::Recycling,
    suffix::SuffixIndex,
    tenant::{Tenant, Tenants},
    yields::Yields,
};

/// Where local proposals came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// There are none.
    #[default]
    Nothing,
    /// From the recycling table.
    Recycled,
    /// From a place of the request that ends in the same tokens: how many.
    Suffix(u32),
}

impl Origin {
    /// The name used as a metric label.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Recycled => "recycled",
            Self::Suffix(_) => "suffix",
        }
    }
}

#[cfg(test)]
mod tests;
