//! What the branches of a session have seen.

use foretoken_speculation::{
    TokenId,
    policy::draft::{BranchWork, BuildId},
};

use super::super::pair::Context;

/// The forks of the build under way: of each, the trunk and the nodes of its tail.
#[derive(Default)]
pub(super) struct Forks {
    build: Option<BuildId>,
    forks: Vec<(Context, Vec<Context>)>,
}

impl Forks {
    /// Whether the forks of this build are there already.
    pub(super) fn belong_to(&self, build: Option<BuildId>) -> bool {
        self.build == build
    }

    /// Feeds a step; the contexts of its rows.
    pub(super) fn feed(&mut self, trunk: &[TokenId], work: &BranchWork<'_>) -> Vec<Context> {
        if self.build != Some(work.build) {
            self.build = Some(work.build);
            self.forks.clear();
            self.forks.extend(work.forks().map(|fork| {
                let trunk = Context::of(&trunk[..fork.trunk_len as usize]);
                (trunk, Vec::new())
            }));
        }
        let mut contexts = Vec::with_capacity(work.rows());
        for ((trunk, tail), feed) in self.forks.iter_mut().zip(work.forks()) {
            for (&token, parent) in feed.tokens.iter().zip(feed.parents) {
                let before = parent.map_or(*trunk, |parent| tail[parent as usize]);
                let context = before.with(token);
                tail.push(context);
                contexts.push(context);
            }
        }
        contexts
    }
}
