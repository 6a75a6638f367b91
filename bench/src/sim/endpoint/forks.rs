//! What the branches of a session have seen.

use foretoken_speculation::{
    TokenId,
    policy::draft::{BranchWork, BuildId},
};

use crate::sim::pair::Context;

/// A sequence and the tree of tokens that follows it.
#[derive(Default)]
pub(super) struct Tail {
    trunk: Context,
    nodes: Vec<Context>,
}

impl Tail {
    /// Nothing after these tokens.
    pub(super) fn after(tokens: &[TokenId]) -> Self {
        Self {
            trunk: Context::of(tokens),
            nodes: Vec::new(),
        }
    }

    /// Adds a node for each token; without a parent they follow the sequence.
    pub(super) fn grow(
        &mut self,
        tokens: &[TokenId],
        parents: impl IntoIterator<Item = Option<u32>>,
    ) {
        for (&token, parent) in tokens.iter().zip(parents) {
            let before = parent.map_or(self.trunk, |parent| self.nodes[parent as usize]);
            self.nodes.push(before.with(token));
        }
    }

    /// The nodes added last.
    pub(super) fn last(&self, count: usize) -> &[Context] {
        &self.nodes[self.nodes.len() - count..]
    }
}

/// The forks of the build under way.
#[derive(Default)]
pub(super) struct Forks {
    build: Option<BuildId>,
    forks: Vec<Tail>,
}

impl Forks {
    /// Feeds a step; the contexts of its rows. Forks are of `sequence`, or of what was fed after it
    /// if the window under verification is a tree.
    pub(super) fn feed(
        &mut self,
        sequence: &[TokenId],
        fed: &Tail,
        work: &BranchWork<'_>,
    ) -> Vec<Context> {
        if self.build != Some(work.build) {
            self.build = Some(work.build);
            self.forks.clear();
        }
        let new = work.forks().skip(self.forks.len());
        self.forks.extend(new.map(|fork| match fork.path {
            [] => Tail::after(&sequence[..fork.trunk_len as usize]),
            [.., node] => Tail {
                trunk: fed.nodes[*node as usize],
                nodes: Vec::new(),
            },
        }));
        let mut contexts = Vec::with_capacity(work.rows());
        for (fork, feed) in self.forks.iter_mut().zip(work.forks()) {
            fork.grow(feed.tokens, feed.parents.iter().copied());
            contexts.extend_from_slice(fork.last(feed.tokens.len()));
        }
        contexts
    }
}
