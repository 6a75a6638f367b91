//! A tree under verification, as the engine holds it behind a session's sequence.

use alloc::vec::Vec;

use crate::{Proposals, TokenId};

/// What the tail of the engine's sequence is good for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Tail {
    /// Nothing: there is none, or what it holds is over.
    #[default]
    Idle,
    /// It holds the last decided token, as its first node, and after it the tree under verification.
    Glued,
    /// These of its nodes follow the sequence: they were decided.
    Decided(Vec<u32>),
}

impl Tail {
    /// After a verdict that accepted these tokens.
    pub(super) fn decide(&mut self, tree: Option<&Proposals>, accepted: &[TokenId]) {
        *self = match (&self, tree) {
            (Self::Glued, Some(tree)) => {
                // Whatever was accepted, the first node was decided before.
                let node = tree.find(accepted).unwrap_or(0);
                Self::Decided([0].into_iter().chain(tree.path(node)).collect())
            }
            _ => Self::Idle,
        };
    }
}
