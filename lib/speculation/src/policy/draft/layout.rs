//! Where branches stand in the tails of forks, step by step.
//!
//! The rows of a step are those of the first fork, then those of the second, and so on, in the order
//! of the plan. A branch has a row in each step until its continuation is long enough: likely outcomes
//! have longer ones than others, so later steps have fewer rows.

use alloc::{vec, vec::Vec};
use core::ops::Range;

use super::build::MAX_TAIL;
use crate::{
    TokenId,
    branch::{BranchPlan, Fork},
    fanout::Guess,
    message::Entries,
};

/// The rows of a build's steps. Memory is kept from build to build.
#[derive(Debug, Default)]
pub(super) struct Layout {
    forks: Vec<PlacedFork>,
    /// By branch of the plan: its place among the guesses, and the last node of its fork's tail that
    /// is its own.
    branches: Vec<(usize, Option<u32>)>,
    step: Step,
}

/// A fork, and what it holds.
#[derive(Debug)]
struct PlacedFork {
    fork: Fork,
    /// Nodes of a glue pass over a tree that it begins with.
    path: Vec<u32>,
    /// Nodes of its tail.
    nodes: u32,
    /// Its rows of the step at hand.
    rows: Range<usize>,
}

/// The rows of a step.
#[derive(Debug, Default)]
struct Step {
    tokens: Vec<TokenId>,
    parents: Vec<Option<u32>>,
    /// Branch of each row.
    branches: Vec<usize>,
}

/// What to feed to one fork in a step: a row for each of its branches that go on, as nodes of its
/// tail; there may be none. The logits of all of them are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForkFeed<'a> {
    /// Tokens of the trunk that the fork shares with the session's sequence.
    pub trunk_len: u32,
    /// Nodes of the tail of the session's sequence that are the last of them, if the window under
    /// verification is a tree; otherwise none.
    pub path: &'a [u32],
    /// One token for each branch.
    pub tokens: &'a [TokenId],
    /// Their parents in the tail; `None` is the last token of the trunk.
    pub parents: &'a [Option<u32>],
}

impl Layout {
    /// Forgets all branches.
    pub(super) fn clear(&mut self) {
        self.forks.clear();
        self.branches.clear();
        self.step.clear();
    }

    /// Places the branches of a plan that was made for these guesses, the first `widths[i]` of which
    /// have a row in step i. `glued` says whether the window was read as the tail of a sequence.
    pub(super) fn begin(
        &mut self,
        plan: &BranchPlan,
        guesses: &[Guess],
        widths: &[u32],
        glued: bool,
    ) {
        self.clear();
        self.branches.resize(plan.branches().len(), (0, None));
        // Within a node the plan keeps the order of the guesses.
        let mut next = vec![0; plan.window().len() + 1];
        for (branch, key) in plan.branches().iter().enumerate().rev() {
            next[key.accepted as usize] = branch;
        }
        for (place, guess) in guesses.iter().enumerate() {
            let branch = &mut next[guess.key.accepted as usize];
            self.branches[*branch].0 = place;
            *branch += 1;
        }
        for fork in plan.forks() {
            // The decided token is the first node of a glue pass over a tree.
            let path = if glued {
                [vec![0], plan.window().path(fork.node)].concat()
            } else {
                Vec::new()
            };
            for branches in self.split(fork.branches.clone(), widths) {
                self.forks.push(PlacedFork {
                    fork: Fork {
                        branches,
                        ..fork.clone()
                    },
                    path: path.clone(),
                    nodes: 0,
                    rows: 0..0,
                });
            }
        }
    }

    /// Cuts branches that leave at one node into as many forks as their tails need.
    fn split(&self, branches: Range<usize>, widths: &[u32]) -> Vec<Range<usize>> {
        let mut cut = Vec::new();
        let (mut start, mut nodes) = (branches.start, 0);
        for branch in branches.clone() {
            let place = self.branches[branch].0;
            let steps = widths.partition_point(|&width| width as usize > place);
            if nodes + steps > MAX_TAIL {
                cut.push(start..branch);
                (start, nodes) = (branch, 0);
            }
            nodes += steps;
        }
        cut.push(start..branches.end);
        cut
    }

    /// Lays out the next step: a row for each outcome that goes on with a token in `column`.
    pub(super) fn advance(&mut self, column: &[TokenId]) {
        self.step.clear();
        for placed in &mut self.forks {
            let start = self.step.tokens.len();
            for branch in placed.fork.branches.clone() {
                let (place, node) = &mut self.branches[branch];
                let Some(&token) = column.get(*place).filter(|&&t| t != Entries::ENDED) else {
                    continue;
                };
                self.step.tokens.push(token);
                self.step.parents.push(node.replace(placed.nodes));
                self.step.branches.push(branch);
                placed.nodes += 1;
            }
            placed.rows = start..self.step.tokens.len();
        }
    }

    /// Of each row of the step: its branch, and the place of that among the guesses.
    pub(super) fn rows(&self) -> impl ExactSizeIterator<Item = (usize, usize)> {
        (0..self.step.branches.len()).map(|row| self.row(row))
    }

    /// The same of one row.
    pub(super) fn row(&self, row: usize) -> (usize, usize) {
        let branch = self.step.branches[row];
        (branch, self.branches[branch].0)
    }

    /// The last node of its fork's tail that a branch has.
    pub(super) fn node(&self, branch: usize) -> Option<u32> {
        self.branches[branch].1
    }

    /// The fork that has the branch of the guess at this place.
    pub(super) fn fork_of(&self, place: usize) -> Option<usize> {
        let own = |&(guess, _): &(usize, _)| guess == place;
        let branch = self.branches.iter().position(own)?;
        let mut forks = self.forks.iter();
        forks.position(|placed| placed.fork.branches.contains(&branch))
    }

    /// What to feed in the step, by fork.
    pub(super) fn feeds(&self) -> impl ExactSizeIterator<Item = ForkFeed<'_>> {
        self.forks.iter().map(|placed| ForkFeed {
            trunk_len: placed.fork.trunk_len,
            path: &placed.path,
            tokens: &self.step.tokens[placed.rows.clone()],
            parents: &self.step.parents[placed.rows.clone()],
        })
    }
}

impl Step {
    fn clear(&mut self) {
        self.tokens.clear();
        self.parents.clear();
        self.branches.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;
    use crate::branch::tests::{any_plan, seen};

    /// Guesses that are likely in another order than that of the plan.
    fn guesses(plan: &BranchPlan, order: u64) -> Vec<Guess> {
        let keys = plan.branches().iter().enumerate();
        let mut guesses: Vec<_> = keys
            .map(|(i, &key)| {
                // Those of a node stay in order.
                let node = u64::from(key.accepted).wrapping_mul(order) % 7;
                let guess = Guess {
                    key,
                    rank: 0,
                    probability: 0.0,
                };
                (node, i, guess)
            })
            .collect();
        guesses.sort_unstable_by_key(|&(node, i, _)| (node, i));
        guesses.into_iter().map(|(.., guess)| guess).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        #[test]
        fn each_row_sees_every_position_up_to_its_own_once(
            plan in any_plan(),
            order in 1..100_u64,
            mut widths in prop::collection::vec(1..40_u32, 1..40),
        ) {
            let guesses = guesses(&plan, order);
            for width in &mut widths {
                *width = (*width).min(guesses.len() as u32);
            }
            widths.sort_unstable_by(|a, b| b.cmp(a));
            let mut layout = Layout::default();
            layout.begin(&plan, &guesses, &widths, !plan.window().is_chain());
            let mut tails: Vec<Vec<(u32, Option<u32>)>> = Vec::new();
            tails.resize_with(layout.feeds().len(), Vec::new);
            for (step, &width) in (0..).zip(&widths) {
                // A token that tells whose it is.
                let column: Vec<_> = (0..width).map(|place| TokenId(100 * step + place)).collect();
                layout.advance(&column);
                let mut rows = layout.rows();
                prop_assert_eq!(rows.len(), width as usize);
                for (feed, tail) in layout.feeds().zip(&mut tails) {
                    for (&token, &parent) in feed.tokens.iter().zip(feed.parents) {
                        let (branch, place) = rows.next().unwrap();
                        prop_assert_eq!(guesses[place].key, plan.branches()[branch]);
                        prop_assert_eq!(token, column[place]);
                        let node = plan.branches()[branch].accepted;
                        let depth = plan.window().depth(node) as u32;
                        prop_assert_eq!(feed.trunk_len, plan.base_len() + depth);
                        prop_assert!(feed.path.is_empty() || feed.path.len() == 1 + depth as usize);
                        tail.push((plan.position(branch, step), parent));
                        let expected: Vec<u32> = (0..=plan.position(branch, step)).collect();
                        prop_assert_eq!(seen(tail, tail.len() - 1, feed.trunk_len), expected);
                    }
                    prop_assert!(tail.len() <= MAX_TAIL);
                }
                prop_assert!(rows.next().is_none());
            }
        }
    }
}
