//! What a driver says of a verification.

use core::time::Duration;

use crate::{
    TokenId,
    fallback::Fallback,
    message::{Cutoffs, TreeBudget},
    saguaro::Saguaro,
};

/// Result of a verification.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verified<'a> {
    /// Tokens that were emitted: the accepted ones, then (unless a stop ended the output before it)
    /// the decided one.
    pub tokens: &'a [TokenId],
    /// How many of them had been proposed.
    pub accepted: u32,
    /// How many tokens a controller wants in the next window; only an adaptive lookahead uses it.
    pub suggested: u32,
    /// Proposals of the target's own host to follow `tokens`: verified next if no endpoint serves
    /// the session, or if nothing was drafted ahead for this verdict and the fallback is
    /// [`Fallback::Local`]. Empty: there are none.
    pub local: &'a [TokenId],
    /// What is to follow if nothing was drafted ahead for this verdict; none: what the policy says,
    /// and [`Fallback::Remote`] where it leaves that to the driver.
    pub fallback: Option<Fallback>,
    /// Whether the endpoint had better draft for nothing but this verdict, whatever the policy says: not
    /// for the outcomes of the next round.
    pub refrains: bool,
    /// Whether the endpoint may propose trees, and what the driver has for them.
    pub tree: Option<TreeBudget>,
    /// How likely the tokens that the endpoint is asked for have to be.
    pub cutoffs: Cutoffs,
    /// How the tokens that are asked for are lowered, where they are drawn
    /// ([`Verification::Rejection`](crate::verify::Verification)).
    pub saguaro: Saguaro,
    /// How long the verdict waited for more of what was drafted for it; told to the endpoint.
    pub lingered: Duration,
    /// Tokens of it that were there before, if it waited.
    pub had: Option<u32>,
    /// Nothing follows: the output has ended.
    pub last: bool,
}
