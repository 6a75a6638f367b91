//! Geometry of branch decode: where the rows of a glue pass and of its branches stand, and what
//! they attend to (SSD, Kumar et al. 2026, arXiv 2603.03251, section 4).
//!
//! The sequence has `base_len` tokens, the last decided one included; a window `x_1..x_K` is under
//! verification. A *glue* pass over the decided token and the window gives K + 1 rows of logits.
//! A branch belongs to an outcome (k, t): it assumes that the first k tokens of the window are
//! accepted and t is decided after them. Its step 0 feeds t, each later step what it drew before.
//! If the window is a tree, k is the node accepted last, and what leads to it is accepted.
//!
//! ```text
//! trunk 0 .. N0-2 │ glue row 0 (decided) ─ 1 (x_1) ─ 2 (x_2) ─ .. ─ K (x_K)
//!                 │          │                │
//!                 │          └ (0, t) ─ ..    └ (2, t') ─ ..      one chain a branch
//! ```
//!
//! Row u of the glue stands at position `N0 - 1 + d(u)`, step i of a branch at `N0 + d(k) + i`, with
//! d the depth of a node: in a chain its number. A step sees the trunk, the glue's rows on the way to
//! k and the branch's own steps up to i, so that every position up to its own is seen once. Rows of different branches share positions: a position is not a place in the
//! KV cache. That place follows from the parents, which come in the two forms an engine can take:
//!
//! * one *tail* with all rows ([`BranchPlan::glue_parents`], [`BranchPlan::tail_parents`]);
//! * the glue as part of the trunk and one *fork* of it a depth ([`BranchPlan::forks`]), whose
//!   tail holds the branches that leave there: smaller tails. Which of its nodes is which row is
//!   the layout's affair, since branches need not all be as long.

use alloc::vec::Vec;
use core::ops::Range;

use crate::{Proposals, guess::OutcomeKey};

/// What a row attends to directly before itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// This row of the glue.
    Glue(u32),
    /// This step of the same branch.
    Step(u32),
}

/// The branches of one session in one round.
///
/// Branches are kept by ascending node, in the order they were given within a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BranchPlan {
    base_len: u32,
    window: Proposals,
    branches: Vec<OutcomeKey>,
}

/// Why branches cannot be planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BranchError {
    /// There is no decided token to start from.
    #[error("branches need a sequence of at least one token; open the session with its tokens")]
    NoTokens,
    /// An outcome accepts what the window does not have.
    #[error("an outcome accepts node {accepted} of a window of {window} tokens")]
    Depth {
        /// The node that the outcome accepts.
        accepted: u32,
        /// Tokens of the window.
        window: u32,
    },
    /// Positions would not fit 32 bits.
    #[error("{base_len} tokens are too many for a sequence; shorten the request")]
    TooLong {
        /// Tokens of the sequence.
        base_len: u32,
    },
}

/// Branches that leave the glue at the same row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The proposal accepted last: the glue row that the branches leave from.
    pub node: u32,
    /// Tokens of the trunk that they see: those of the sequence and those of the window that are
    /// accepted.
    pub trunk_len: u32,
    /// Which branches of the plan.
    pub branches: Range<usize>,
}

impl BranchPlan {
    /// A plan without branches.
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins a plan for a sequence of `base_len` tokens (the last decided one included) and a window,
    /// without branches.
    ///
    /// # Errors
    /// If there is no token, or the sequence is longer than any can be; there are no branches then.
    pub fn begin(&mut self, base_len: u32, window: Proposals) -> Result<(), BranchError> {
        self.branches.clear();
        self.base_len = base_len;
        self.window = window;
        if base_len == 0 {
            return Err(BranchError::NoTokens);
        }
        let end = base_len.checked_add(self.window.len() as u32);
        if end.is_none_or(|end| end > u32::MAX / 2) {
            return Err(BranchError::TooLong { base_len });
        }
        Ok(())
    }

    /// Plans a branch for each of `outcomes`, in place of those that were planned before.
    ///
    /// # Errors
    /// If an outcome is impossible; no branch is planned then.
    pub fn set(
        &mut self,
        outcomes: impl IntoIterator<Item = OutcomeKey>,
    ) -> Result<(), BranchError> {
        self.branches.clear();
        let window = self.window.len() as u32;
        for key in outcomes {
            if key.accepted > window {
                self.branches.clear();
                let accepted = key.accepted;
                return Err(BranchError::Depth { accepted, window });
            }
            let place = self
                .branches
                .partition_point(|other| other.accepted <= key.accepted);
            self.branches.insert(place, key);
        }
        Ok(())
    }

    /// Tokens of the sequence, the last decided one included.
    pub fn base_len(&self) -> u32 {
        self.base_len
    }

    /// The window under verification.
    pub fn window(&self) -> &Proposals {
        &self.window
    }

    /// The outcome of each branch, by ascending node.
    pub fn branches(&self) -> &[OutcomeKey] {
        &self.branches
    }

    /// Rows of the glue pass: the decided token and the window.
    pub fn glue_rows(&self) -> u32 {
        self.window.len() as u32 + 1
    }

    /// Position of a row of the glue: that of the decided token, then of the window's tokens.
    pub fn glue_position(&self, row: u32) -> u32 {
        self.base_len - 1 + self.window.depth(row) as u32
    }

    /// Position of what `branch` feeds in `step`; the decided token that it assumes is step 0.
    ///
    /// # Panics
    /// If there are fewer branches.
    pub fn position(&self, branch: usize, step: u32) -> u32 {
        self.trunk_len(self.branches[branch].accepted) + step
    }

    /// The row before the one that `branch` feeds in `step`. All others that it sees are reached
    /// through parents: of glue row u its parent in the window, of row 0 the trunk.
    ///
    /// # Panics
    /// If there are fewer branches.
    pub fn parent(&self, branch: usize, step: u32) -> Parent {
        match step.checked_sub(1) {
            None => Parent::Glue(self.branches[branch].accepted),
            Some(before) => Parent::Step(before),
        }
    }

    /// Parents of the glue's rows as the first nodes of a tail over trunk tokens 0 to N0 - 2.
    pub fn glue_parents(&self) -> impl Iterator<Item = Option<u32>> + '_ {
        glue_parents(&self.window)
    }

    /// Parents of the rows of `step`, one a branch, in a tail that begins with the glue's rows and
    /// goes on with all branches, step by step.
    pub fn tail_parents(&self, step: u32) -> impl Iterator<Item = Option<u32>> + '_ {
        (0..self.branches.len()).map(move |branch| {
            Some(match self.parent(branch, step) {
                Parent::Glue(row) => row,
                Parent::Step(before) => self.tail_node(branch, before),
            })
        })
    }

    /// The node of that tail which `branch` feeds in `step`.
    pub fn tail_node(&self, branch: usize, step: u32) -> u32 {
        self.glue_rows() + step * self.branches.len() as u32 + branch as u32
    }

    /// Nodes of that tail after `steps` steps.
    pub fn tail_len(&self, steps: u32) -> u32 {
        self.tail_node(0, steps)
    }

    /// The branches by the glue row that they leave from, ascending; rows without any are left out.
    pub fn forks(&self) -> impl Iterator<Item = Fork> + '_ {
        let mut start = 0;
        core::iter::from_fn(move || {
            let node = self.branches.get(start)?.accepted;
            let end = self.branches.partition_point(|key| key.accepted <= node);
            let branches = start..end;
            start = end;
            Some(Fork {
                node,
                trunk_len: self.trunk_len(node),
                branches,
            })
        })
    }

    /// Tokens up to a node of the window.
    fn trunk_len(&self, node: u32) -> u32 {
        self.base_len + self.window.depth(node) as u32
    }
}

/// Parents of the rows of a glue pass over `window`: the decided token has none.
pub(crate) fn glue_parents(window: &Proposals) -> impl Iterator<Item = Option<u32>> + '_ {
    (0..=window.len() as u32).map(|row| (row > 0).then(|| window.parent(row)))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{vec, vec::Vec};

    use proptest::prelude::*;

    use super::*;
    use crate::TokenId;

    fn chain(len: u32) -> Proposals {
        (0..len).map(TokenId).collect::<Vec<_>>().into()
    }

    pub(crate) fn any_plan() -> impl Strategy<Value = BranchPlan> {
        let chain = (0..9_u32).prop_map(chain);
        let tree = prop::collection::vec(any::<u32>(), 0..9).prop_map(|parents| {
            let mut tree = Proposals::new();
            for (i, parent) in (0..).zip(parents) {
                tree.push(parent % (i + 1), TokenId(i)).unwrap();
            }
            tree
        });
        (1..50_u32, prop_oneof![chain, tree])
            .prop_flat_map(|(base_len, window)| {
                let keys = prop::collection::vec((0..=window.len() as u32, 0..100_u32), 0..30);
                (Just(base_len), Just(window), keys)
            })
            .prop_map(|(base_len, window, keys)| {
                let mut plan = BranchPlan::new();
                let keys = keys.into_iter().map(|(accepted, token)| OutcomeKey {
                    accepted,
                    token: TokenId(token),
                });
                plan.begin(base_len, window).unwrap();
                plan.set(keys).unwrap();
                plan
            })
    }

    /// Positions that a node sees, itself included, by walking up the parents of its tail; tail
    /// nodes are given with their positions, the trunk has positions 0 to `trunk_len`.
    pub(crate) fn seen(nodes: &[(u32, Option<u32>)], node: usize, trunk_len: u32) -> Vec<u32> {
        let mut positions: Vec<u32> = (0..trunk_len).collect();
        let mut next = Some(node);
        while let Some(node) = next {
            positions.push(nodes[node].0);
            next = nodes[node].1.map(|parent| parent as usize);
        }
        positions.sort_unstable();
        positions
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        #[test]
        fn a_row_sees_every_position_up_to_its_own_once(plan in any_plan(), steps in 1..8_u32) {
            let mut nodes: Vec<(u32, Option<u32>)> = Vec::new();
            for (row, parent) in (0..).zip(plan.glue_parents()) {
                nodes.push((plan.glue_position(row), parent));
                let end = plan.base_len() - 1 + plan.window().depth(row) as u32;
                let expected: Vec<u32> = (0..=end).collect();
                prop_assert_eq!(seen(&nodes, row as usize, plan.base_len() - 1), expected);
            }
            for step in 0..steps {
                for (branch, parent) in plan.tail_parents(step).enumerate() {
                    prop_assert_eq!(plan.tail_node(branch, step) as usize, nodes.len());
                    nodes.push((plan.position(branch, step), parent));
                    let depth = plan.window().depth(plan.branches()[branch].accepted) as u32;
                    let expected: Vec<u32> = (0..=plan.base_len() + depth + step).collect();
                    prop_assert_eq!(seen(&nodes, nodes.len() - 1, plan.base_len() - 1), expected);
                }
            }
            prop_assert_eq!(plan.tail_len(steps) as usize, nodes.len());
        }

        #[test]
        fn forks_hold_every_branch_once_with_the_trunk_that_it_sees(plan in any_plan()) {
            let mut planned = 0;
            for fork in plan.forks() {
                prop_assert_eq!(fork.branches.start, planned);
                prop_assert!(!fork.branches.is_empty());
                planned = fork.branches.end;
                for branch in fork.branches.clone() {
                    prop_assert_eq!(plan.branches()[branch].accepted, fork.node);
                    prop_assert_eq!(plan.position(branch, 0), fork.trunk_len);
                }
            }
            prop_assert_eq!(planned, plan.branches().len());
        }
    }

    #[test]
    fn branches_of_a_depth_keep_the_order_they_were_given_in() {
        let key = |accepted, token| OutcomeKey {
            accepted,
            token: TokenId(token),
        };
        let mut plan = BranchPlan::new();
        plan.begin(9, chain(2)).unwrap();
        plan.set([key(2, 5), key(0, 7), key(2, 3), key(0, 1)])
            .unwrap();
        let expected = vec![key(0, 7), key(0, 1), key(2, 5), key(2, 3)];
        assert_eq!(plan.branches(), expected);
        assert_eq!(plan.parent(2, 0), Parent::Glue(2));
        assert_eq!(plan.parent(2, 3), Parent::Step(2));
    }

    #[test]
    fn impossible_plans_are_refused_and_leave_nothing_behind() {
        let key = |accepted| OutcomeKey {
            accepted,
            token: TokenId(1),
        };
        let mut plan = BranchPlan::new();
        assert_eq!(plan.begin(0, chain(3)), Err(BranchError::NoTokens));
        let depth = BranchError::Depth {
            accepted: 4,
            window: 3,
        };
        plan.begin(5, chain(3)).unwrap();
        assert_eq!(plan.set([key(0), key(4)]), Err(depth));
        assert!(plan.branches().is_empty());
        let long = plan.begin(u32::MAX, chain(3));
        assert_eq!(long, Err(BranchError::TooLong { base_len: u32::MAX }));
    }
}
