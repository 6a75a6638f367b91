//! Tokens proposed to follow a sequence: a chain, or a tree of chains that share prefixes.
//!
//! Node 0 is the last token of the sequence; node i is the i-th proposal. A node's parent comes
//! before it, so that the first n proposals are a chain or a tree themselves: whoever has room for
//! fewer takes the first. In a chain the parent of node i is node i - 1, so that a node's number is
//! also how many proposals lead to it; a chain has no list of parents, on the wire neither.
//!
//! ```text
//! 0 -+- 1 -+- 2 --- 4        tokens  a b c d e      (of nodes 1 to 5)
//!    |     +- 5              parents 0 1 0 2 1
//!    +- 3
//! ```
//!
//! Siblings have different tokens: the one that is decided, if any, is one node.

pub mod choose;

use alloc::vec::Vec;

use crate::TokenId;

/// A chain or a tree of proposed tokens; see the [module](self).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Proposals {
    tokens: Vec<TokenId>,
    /// Parents of all nodes but the root; empty in a chain.
    parents: Vec<u32>,
}

/// Why tokens and parents are no tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// A mask of ancestors has no bit left.
    #[error("a tree has at most {} proposals; propose fewer", Proposals::MAX_TREE)]
    Full,
    /// There are not as many parents as tokens.
    #[error("{parents} parents for {tokens} proposals; give one for each, or none for a chain")]
    Count {
        /// Tokens given.
        tokens: usize,
        /// Parents given.
        parents: usize,
    },
    /// The parent does not come before its child.
    #[error("node {parent} cannot be the parent of node {node}: parents come before children")]
    Order {
        /// The node.
        node: u32,
        /// The parent that was given.
        parent: u32,
    },
    /// The parent has such a child already.
    #[error("node {parent} has two children with token {token}; propose it once")]
    Twice {
        /// The parent.
        parent: u32,
        /// The token.
        token: TokenId,
    },
}

impl Proposals {
    /// Most proposals of a tree that is no chain: with the root they fill a mask of 64 bits.
    pub const MAX_TREE: usize = 63;

    /// No proposals.
    pub const fn new() -> Self {
        Self {
            tokens: Vec::new(),
            parents: Vec::new(),
        }
    }

    /// Proposals of which `parents[i]` is the parent of node `i + 1`; without any they are a chain.
    ///
    /// # Errors
    /// If that is no tree.
    pub fn with_parents(tokens: Vec<TokenId>, parents: &[u32]) -> Result<Self, TreeError> {
        if parents.is_empty() {
            return Ok(tokens.into());
        }
        if parents.len() != tokens.len() {
            let (tokens, parents) = (tokens.len(), parents.len());
            return Err(TreeError::Count { tokens, parents });
        }
        let mut proposals = Self::new();
        for (token, &parent) in tokens.into_iter().zip(parents) {
            proposals.push(parent, token)?;
        }
        Ok(proposals)
    }

    /// The chain `spine`, and beside the token after its first `depth` ones those that
    /// `sides(depth)` gives, which nothing follows. The chain comes first, then what is beside its
    /// first tokens: whoever has room for fewer goes as deep as before. What does not fit, or is there
    /// already, is left out.
    pub fn with_sides<S: IntoIterator<Item = TokenId>>(
        spine: impl IntoIterator<Item = TokenId>,
        sides: impl Fn(usize) -> S,
    ) -> Self {
        let mut proposals: Self = spine.into_iter().collect::<Vec<_>>().into();
        for depth in 0..proposals.len() {
            for side in sides(depth) {
                let _ = proposals.push(depth as u32, side);
            }
        }
        proposals
    }

    /// Adds `token` as the last child of node `parent`; gives its node.
    ///
    /// # Errors
    /// If there is no such parent, it has such a child, or the tree is full.
    pub fn push(&mut self, parent: u32, token: TokenId) -> Result<u32, TreeError> {
        let last = self.tokens.len() as u32;
        let node = last + 1;
        if parent > last {
            return Err(TreeError::Order { node, parent });
        }
        if self.parents.is_empty() && parent == last {
            self.tokens.push(token);
            return Ok(node);
        }
        if self.tokens.len() >= Self::MAX_TREE {
            return Err(TreeError::Full);
        }
        if self.child(parent, token).is_some() {
            return Err(TreeError::Twice { parent, token });
        }
        if self.parents.is_empty() {
            self.parents.extend(0..last);
        }
        self.tokens.push(token);
        self.parents.push(parent);
        Ok(node)
    }

    /// Keeps the first `len` proposals.
    pub fn truncate(&mut self, len: usize) {
        if self.is_chain() {
            self.tokens.truncate(len);
        } else if len < self.len() {
            *self = self.select(0, |node| node as usize <= len);
        }
    }

    /// Drops all proposals; their memory is kept.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.parents.clear();
    }

    /// Keeps the proposals down to a depth of `depth`.
    pub fn cut_below(&mut self, depth: usize) {
        if self.is_chain() {
            self.tokens.truncate(depth);
        } else if self.height() > depth {
            *self = self.select(0, |node| self.depth(node) <= depth);
        }
    }

    /// What follows `node`, as proposals that follow its token.
    #[must_use]
    pub fn below(&self, node: u32) -> Self {
        if self.is_chain() {
            return self.tokens.get(node as usize..).unwrap_or_default().into();
        }
        self.select(node, |_| true)
    }

    /// The nodes below `root` that are wanted, as proposals that follow its token. Of a node that is
    /// not wanted no descendant is.
    fn select(&self, root: u32, wanted: impl Fn(u32) -> bool) -> Self {
        let mut selected = Self::new();
        let mut numbers = alloc::vec![None; self.len() + 1];
        if let Some(number) = numbers.get_mut(root as usize) {
            *number = Some(0);
        }
        for (node, &token) in (1..).zip(&self.tokens) {
            let parent = numbers[self.parent(node) as usize];
            if let Some(parent) = parent.filter(|_| node > root && wanted(node)) {
                numbers[node as usize] = selected.push(parent, token).ok();
            }
        }
        selected
    }

    /// Tokens of all nodes but the root.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Parents of all nodes but the root; none for a chain.
    pub fn parents(&self) -> &[u32] {
        &self.parents
    }

    /// Number of proposals.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Whether no node has two children.
    pub fn is_chain(&self) -> bool {
        self.parents.is_empty()
    }

    /// Token of a node; none of the root, and of nodes that there are not.
    pub fn token(&self, node: u32) -> Option<TokenId> {
        self.tokens.get((node as usize).checked_sub(1)?).copied()
    }

    /// Parent of a node; the root's is itself.
    pub fn parent(&self, node: u32) -> u32 {
        let before = node.saturating_sub(1);
        self.parents.get(before as usize).copied().unwrap_or(before)
    }

    /// Children of `node`, in the order they were added.
    pub fn children(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let last = self.tokens.len() as u32;
        let end = if self.is_chain() {
            last.min(node.saturating_add(1))
        } else {
            last
        };
        (node.saturating_add(1)..=end).filter(move |&child| self.parent(child) == node)
    }

    /// The nodes after the root of the chain of first children; all of them in a chain.
    pub fn spine(&self) -> impl Iterator<Item = u32> + '_ {
        let first = |&node: &u32| self.children(node).next();
        core::iter::successors(first(&0), first)
    }

    /// The tokens proposed after `node` beside its first child's, in their order.
    pub fn beside(&self, node: u32) -> impl Iterator<Item = TokenId> + '_ {
        let others = self.children(node).skip(1);
        others.filter_map(|child| self.token(child))
    }

    /// The child of `node` with this token.
    pub fn child(&self, node: u32, token: TokenId) -> Option<u32> {
        self.children(node)
            .find(|&child| self.token(child) == Some(token))
    }

    /// Goes down from the root along `tokens`; the last of their nodes, if all of them have one.
    pub fn find(&self, tokens: &[TokenId]) -> Option<u32> {
        let mut node = 0;
        for &token in tokens {
            node = self.child(node, token)?;
        }
        Some(node)
    }

    /// Proposals on the way to `node`, itself included.
    pub fn depth(&self, node: u32) -> usize {
        if self.is_chain() {
            return node as usize;
        }
        self.up(node).count()
    }

    /// Depth of the deepest node.
    pub fn height(&self) -> usize {
        if self.is_chain() {
            return self.len();
        }
        let depths = (1..=self.len() as u32).map(|node| self.depth(node));
        depths.max().unwrap_or(0)
    }

    /// Proposals, one after the other, that were held against the target's choice if `node` is the last
    /// that was accepted. Of a chain those are all: after the first that is wrong the others are too.
    pub fn tried(&self, node: u32) -> u32 {
        if self.is_chain() {
            return self.len() as u32;
        }
        let refused = self.children(node).next().is_some();
        self.depth(node) as u32 + u32::from(refused)
    }

    /// The nodes after the root on the way to `node`, itself included, in order.
    pub fn path(&self, node: u32) -> Vec<u32> {
        let mut path: Vec<u32> = self.up(node).collect();
        path.reverse();
        path
    }

    /// The tokens of that path: what follows the sequence if `node` is accepted last.
    pub fn spelled(&self, node: u32) -> Vec<TokenId> {
        let mut tokens: Vec<_> = self.up(node).filter_map(|node| self.token(node)).collect();
        tokens.reverse();
        tokens
    }

    /// The nodes from `node` up to the root, which is left out.
    fn up(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        core::iter::successors(Some(node), |&node| Some(self.parent(node)))
            .take_while(|&node| node > 0)
    }
}

impl Clone for Proposals {
    fn clone(&self) -> Self {
        Self {
            tokens: self.tokens.clone(),
            parents: self.parents.clone(),
        }
    }

    /// Keeps the memory there is.
    fn clone_from(&mut self, source: &Self) {
        self.tokens.clone_from(&source.tokens);
        self.parents.clone_from(&source.parents);
    }
}

impl From<Vec<TokenId>> for Proposals {
    /// A chain.
    fn from(tokens: Vec<TokenId>) -> Self {
        Self {
            tokens,
            parents: Vec::new(),
        }
    }
}

impl From<&[TokenId]> for Proposals {
    /// A chain.
    fn from(tokens: &[TokenId]) -> Self {
        tokens.to_vec().into()
    }
}

#[cfg(test)]
mod tests;
