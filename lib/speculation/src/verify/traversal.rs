//! Traversal verification of trees (Weng et al. 2025, arXiv 2505.12398): leaves first, so that a
//! whole path is accepted together, and siblings share what their elders did not use. On a chain
//! it is block verification.

use alloc::vec::Vec;

use super::{Coins, TreeVerdict, block::ratio, probability};
use crate::{Proposals, TokenId, message::SparseDistribution};

/// Verifies a tree whose children were drawn from `q` one after the other without replacement.
///
/// `target(node, p)` fills `p` with the target's distribution after `node`; `draft(node)` is what the
/// children of `node` were drawn from. Where it is missing or lacks a child, that child counts as
/// certain.
pub fn traversal<'q>(
    tree: &Proposals,
    draft: impl Fn(u32) -> Option<&'q SparseDistribution>,
    mut target: impl FnMut(u32, &mut Vec<f64>),
    coins: &mut impl Coins,
) -> TreeVerdict {
    let mut walk = Walk {
        tree,
        draft: &draft,
        target: &mut target,
        coins,
    };
    // The root is accepted with probability 1; the other arm is there for rounding errors.
    walk.verify(0, 1.0).unwrap_or_else(|| {
        let mut p = Vec::new();
        (walk.target)(0, &mut p);
        TreeVerdict {
            node: 0,
            decided: TokenId(walk.coins.pick(&p) as u32),
        }
    })
}

struct Walk<'a, D, T, C> {
    tree: &'a Proposals,
    draft: &'a D,
    target: &'a mut T,
    coins: &'a mut C,
}

impl<'q, D, T, C> Walk<'_, D, T, C>
where
    D: Fn(u32) -> Option<&'q SparseDistribution>,
    T: FnMut(u32, &mut Vec<f64>),
    C: Coins,
{
    /// Decides on the subtree of `node`, which may be accepted with probability `a`; none if it is
    /// rejected. A tree that is no chain is at most
    /// [`Proposals::MAX_TREE`] deep, a chain as long as the window.
    fn verify(&mut self, node: u32, mut a: f64) -> Option<TreeVerdict> {
        let mut p = Vec::new();
        (self.target)(node, &mut p);
        let mut q = alloc::vec![0.0; p.len()];
        if let Some(law) = (self.draft)(node) {
            let total = law.total();
            for &(token, weight) in &law.entries {
                if let Some(q) = q.get_mut(token.index()) {
                    *q = f64::from(weight) / total;
                }
            }
        }
        for child in self.tree.children(node) {
            let Some(token) = self.tree.token(child) else {
                continue;
            };
            let drawn = probability(&q, token);
            if drawn <= 0.0 {
                // A deterministic source, or the last one that was left: all mass is on it.
                q.fill(0.0);
                if let Some(q) = q.get_mut(token.index()) {
                    *q = 1.0;
                }
            }
            let drawn = if drawn > 0.0 { drawn } else { 1.0 };
            let accept = (a * probability(&p, token) / drawn).min(1.0);
            let verdict = self.verify(child, accept);
            if verdict.is_some() {
                return verdict;
            }
            for (p, q) in p.iter_mut().zip(&q) {
                *p = (a * *p - q).max(0.0);
            }
            let residual: f64 = p.iter().sum();
            scale(&mut p, residual);
            a = ratio(residual, a);
            if let Some(q) = q.get_mut(token.index()) {
                *q = 0.0;
            }
            let left: f64 = q.iter().sum();
            scale(&mut q, left);
        }
        if !self.coins.accept(a) {
            return None;
        }
        Some(TreeVerdict {
            node,
            decided: TokenId(self.coins.pick(&p) as u32),
        })
    }
}

/// Divides by `total`, unless it is nothing.
fn scale(values: &mut [f64], total: f64) {
    if total > 0.0 {
        for value in values {
            *value /= total;
        }
    }
}
