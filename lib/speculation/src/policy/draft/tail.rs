//! A tree under verification, as the engine holds it behind a session's sequence.

use alloc::vec::Vec;

use crate::Proposals;

/// What the tail of the engine's sequence is good for.
#[derive(Debug, Default)]
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
    /// After a verdict that went through the tree as far as `node`. Without one it went elsewhere, but
    /// the first node of the tail was decided before.
    pub(super) fn decide(&mut self, tree: Option<&Proposals>, node: Option<u32>) {
        *self = match (&self, tree) {
            (Self::Glued, Some(tree)) => {
                let path = tree.path(node.unwrap_or(0));
                Self::Decided([0].into_iter().chain(path).collect())
            }
            _ => Self::Idle,
        };
    }
}
