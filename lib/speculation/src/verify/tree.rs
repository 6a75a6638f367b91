//! Trees of proposals, and their coupled verification.

use alloc::vec::Vec;

use crate::{
    TokenId,
    sampling::{Sampler, Scratch},
};

/// Proposals that share prefixes. Node 0 is the last decided token; the others are proposals, in
/// breadth-first order: parents ascend. A node's mask has its own bit and those of its ancestors,
/// so masks are the rows that attention over the tree needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenTree {
    tokens: Vec<TokenId>,
    parents: Vec<usize>,
    masks: Vec<u64>,
}

/// Why a node cannot be added to a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The mask has no bit left.
    #[error(
        "a tree has at most {} nodes, its root included; propose fewer tokens",
        TokenTree::MAX_NODES
    )]
    Full,
    /// The parent does not exist, or comes before the parent of the last node added.
    #[error("node {parent} cannot be the parent of the next node: add nodes level by level")]
    Order {
        /// The parent that was given.
        parent: usize,
    },
}

impl TokenTree {
    /// Most nodes of a tree, the root included.
    pub const MAX_NODES: usize = 64;

    /// A tree without proposals after `decided`.
    pub fn new(decided: TokenId) -> Self {
        Self {
            tokens: [decided].into(),
            parents: [0].into(),
            masks: [1].into(),
        }
    }

    /// Adds `token` as the next child of node `parent`; returns the new node.
    ///
    /// # Errors
    /// If the tree is full or the node would break the breadth-first order.
    pub fn push(&mut self, parent: usize, token: TokenId) -> Result<usize, TreeError> {
        let node = self.tokens.len();
        if node >= Self::MAX_NODES {
            return Err(TreeError::Full);
        }
        if parent >= node || self.parents.last().is_some_and(|&last| parent < last) {
            return Err(TreeError::Order { parent });
        }
        self.tokens.push(token);
        self.parents.push(parent);
        self.masks.push(self.masks[parent] | 1 << node);
        Ok(node)
    }

    /// Tokens of all nodes, the root first.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// One mask for each node: bit j is set if node j is the node itself or an ancestor.
    pub fn masks(&self) -> &[u64] {
        &self.masks
    }

    /// Number of proposals: all nodes but the root.
    pub fn proposals(&self) -> usize {
        self.tokens.len() - 1
    }

    /// Proposals on the way to `node`, itself included.
    pub fn depth(&self, node: usize) -> usize {
        self.masks[node].count_ones() as usize - 1
    }

    /// The nodes after the root on the way to `node`, itself included, in order.
    pub fn path(&self, node: usize) -> impl Iterator<Item = usize> {
        let mask = self.masks[node];
        (1..=node).filter(move |bit| mask >> bit & 1 == 1)
    }

    /// The children of `node`, in the order they were added.
    pub fn children(&self, node: usize) -> impl Iterator<Item = usize> {
        let first = self.parents.partition_point(|&parent| parent < node).max(1);
        let is_child = move |&child: &usize| self.parents[child] == node;
        (first..self.tokens.len()).take_while(is_child)
    }
}

/// Outcome of verifying a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeVerdict {
    /// The last accepted node (0: no proposal is); [`TokenTree::path`] gives all of them.
    pub node: usize,
    /// The token emitted after it.
    pub decided: TokenId,
}

/// Coupled verification of a tree: from the root, descends to the child that equals the target's
/// own choice, as long as there is one. `row(node)` are the logits after `node`; only those on the
/// way are asked for. The accepted tokens and the decided one are pushed to `sampler`.
pub fn coupled_tree<'a>(
    sampler: &mut Sampler,
    scratch: &mut Scratch,
    tree: &TokenTree,
    row: impl Fn(usize) -> &'a [f32],
) -> TreeVerdict {
    let mut node = 0;
    loop {
        let decided = sampler.choose(row(node), scratch);
        sampler.push(decided);
        match tree
            .children(node)
            .find(|&child| tree.tokens[child] == decided)
        {
            Some(child) => node = child,
            None => return TreeVerdict { node, decided },
        }
    }
}
