//! What becomes of proposals: how many are accepted, and the token that is decided after them.
//!
//! [`coupled_chain`] and [`coupled_tree`] compare proposals with the target's own choices under
//! shared noise (Daliri, Musco and Suresh 2024, arXiv 2408.07978): what is emitted depends on the
//! target alone, whatever was proposed. Greedy verification is the same at temperature 0.
//!
//! [`rejection`], [`block`] and [`traversal`] accept by the ratio of target and draft
//! probabilities. They emit samples of the target's law if the proposals were drawn from the `q`
//! that comes with them and the [`Coins`] are independent of the draft's noise.

mod block;
mod coins;
mod rejection;
mod traversal;
mod tree;

use alloc::vec::Vec;

pub use self::{
    block::block,
    coins::{Coins, RoundCoins},
    rejection::rejection,
    traversal::traversal,
    tree::{TreeVerdict, coupled_tree},
};
use crate::{
    Proposals, TokenId,
    message::SparseDistribution,
    sampling::{Sampler, SamplingParams, Scratch},
};

/// Outcome of verifying a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Leading tokens of the window that are emitted.
    pub accepted: usize,
    /// The token emitted after them: a correction, or the bonus after full acceptance.
    pub decided: TokenId,
}

/// Coupled verification of a chain: position by position, the target's own choice is compared with
/// the proposal. `row(i)` are the logits after `window[..i]`, for i from 0 to `window.len()`; rows
/// past the first mismatch are never asked for. The accepted tokens and the decided one are pushed
/// to `sampler`.
pub fn coupled_chain<'a>(
    sampler: &mut Sampler,
    scratch: &mut Scratch,
    window: &[TokenId],
    row: impl Fn(usize) -> &'a [f32],
) -> Verdict {
    let mut accepted = 0;
    loop {
        let decided = sampler.choose(row(accepted), scratch);
        sampler.push(decided);
        if window.get(accepted) != Some(&decided) {
            return Verdict { accepted, decided };
        }
        accepted += 1;
    }
}

/// The rule by which proposals are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    /// A proposal is accepted if it is what the target draws with the noise that both sides share:
    /// output does not depend on proposals at all.
    #[default]
    Coupled,
    /// By the ratio of probabilities, all positions of a window together: output has the target's
    /// law, if proposals were drawn from what comes with them.
    Rejection {
        /// Most tokens that a proposal is drawn among.
        support: u32,
    },
}

impl Verification {
    /// Tokens that proposals are drawn among unless somebody says otherwise.
    pub const SUPPORT: u32 = 16;

    /// The rule as it is for requests that sample like this: without noise both accept what the
    /// target would choose, and the one needs nothing but tokens.
    #[must_use]
    pub fn of_request(self, sampling: &SamplingParams) -> Self {
        if sampling.is_greedy() {
            Self::Coupled
        } else {
            self
        }
    }

    /// The name used in manifests, requests and usage.
    pub fn name(self) -> &'static str {
        match self {
            Self::Coupled => "Coupled",
            Self::Rejection { .. } => "Rejection",
        }
    }
}

/// How to verify a chain whose proposals come with their distributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RatioRule {
    /// Token by token: [`rejection`].
    Token,
    /// All positions together: [`block`].
    Block,
}

/// A chain of proposals and what they were drawn from; see [`rejection`].
#[derive(Clone, Copy, Debug)]
pub struct Drawn<'a> {
    /// The proposals.
    pub window: &'a [TokenId],
    /// What each was drawn from; none for certain ones.
    pub q: &'a [SparseDistribution],
}

/// A tree of proposals and what they were drawn from: its spine, and beside it tokens that nothing
/// follows (see [`explains_all`](crate::proposal::explains_all)).
#[derive(Clone, Copy, Debug)]
pub struct DrawnTree<'a> {
    /// The proposals.
    pub tree: &'a Proposals,
    /// What the children of the spine's nodes were drawn from, without replacement, by depth.
    pub q: &'a [SparseDistribution],
}

/// Decides on a chain by ratio, as the `verification`-th verification of its request: [`block`],
/// which is never worse than [`rejection`], with [`RoundCoins`]. Without proposals it is what plain
/// decoding decides.
///
/// `row(i)` are the logits after the first i proposals. The accepted tokens and the decided one are
/// pushed to `sampler`. `watch` is shown the target's distribution after the first i proposals, for
/// every i that has a proposal after it.
pub fn drawn_chain<'a>(
    sampler: &mut Sampler,
    scratch: &mut Scratch,
    drawn: Drawn<'_>,
    verification: u32,
    row: impl Fn(usize) -> &'a [f32],
    mut watch: impl FnMut(usize, &[f64]),
) -> Verdict {
    if drawn.window.is_empty() {
        return coupled_chain(sampler, scratch, &[], row);
    }
    let mut coins = RoundCoins::new(sampler.seed(), sampler.position(), verification);
    let Drawn { window, q } = drawn;
    let rule = |target: Target<'_>| block(window, q, target, &mut coins);
    chain(sampler, scratch, window, row, &mut watch, rule)
}

/// Decides on a tree by ratio, as the `verification`-th verification of its request: by
/// [`ratio_tree`] with [`RoundCoins`].
pub fn drawn_tree<'a>(
    sampler: &mut Sampler,
    scratch: &mut Scratch,
    drawn: DrawnTree<'_>,
    verification: u32,
    row: impl Fn(u32) -> &'a [f32],
    watch: impl FnMut(usize, &[f64]),
) -> TreeVerdict {
    let mut coins = RoundCoins::new(sampler.seed(), sampler.position(), verification);
    ratio_tree(sampler, scratch, drawn, row, watch, &mut coins)
}

/// Verification of a tree by [`traversal`], with the target's distributions made from its logits:
/// `row(node)` are those after `node`. The accepted tokens and the decided one are pushed to
/// `sampler`. `watch` is shown the target's distribution after each node of the spine that has a
/// child, by depth.
pub fn ratio_tree<'a>(
    sampler: &mut Sampler,
    scratch: &mut Scratch,
    drawn: DrawnTree<'_>,
    row: impl Fn(u32) -> &'a [f32],
    mut watch: impl FnMut(usize, &[f64]),
    coins: &mut impl Coins,
) -> TreeVerdict {
    let DrawnTree { tree, q } = drawn;
    let spine: Vec<u32> = core::iter::once(0).chain(tree.spine()).collect();
    let depth_of = |node| spine.binary_search(&node).ok();
    let draft = |node| q.get(depth_of(node)?);
    let base = sampler.history().len();
    let target = |node, p: &mut Vec<f64>| {
        go_to(sampler, base, tree, node);
        sampler.distribution(row(node), scratch, p);
        if let Some(depth) = depth_of(node).filter(|depth| depth + 1 < spine.len()) {
            watch(depth, p);
        }
    };
    let verdict = traversal(tree, draft, target, coins);
    go_to(sampler, base, tree, verdict.node);
    sampler.push(verdict.decided);
    verdict
}

/// Makes the way to `node` what follows the first `base` tokens of `sampler`.
fn go_to(sampler: &mut Sampler, base: usize, tree: &Proposals, node: u32) {
    sampler.truncate(base);
    for token in tree.spelled(node) {
        sampler.push(token);
    }
}

/// Verification of a chain by [`rejection`] or [`block`], with the target's distributions made from
/// its logits: `row(i)` are those after the first i proposals. The accepted tokens and the decided
/// one are pushed to `sampler`.
pub fn ratio_chain<'a>(
    rule: RatioRule,
    sampler: &mut Sampler,
    scratch: &mut Scratch,
    drawn: Drawn<'_>,
    row: impl Fn(usize) -> &'a [f32],
    coins: &mut impl Coins,
) -> Verdict {
    let Drawn { window, q } = drawn;
    let rule = |target: Target<'_>| match rule {
        RatioRule::Token => rejection(window, q, target, coins),
        RatioRule::Block => block(window, q, target, coins),
    };
    chain(sampler, scratch, window, row, &mut |_, _| {}, rule)
}

/// Fills a vector with the target's distribution after the first so many proposals.
type Target<'t> = &'t mut dyn FnMut(usize, &mut Vec<f64>);

/// Has `rule` decide on `window` by the target's distributions, which `watch` is shown too.
fn chain<'a>(
    sampler: &mut Sampler,
    scratch: &mut Scratch,
    window: &[TokenId],
    row: impl Fn(usize) -> &'a [f32],
    watch: &mut dyn FnMut(usize, &[f64]),
    rule: impl FnOnce(Target<'_>) -> Verdict,
) -> Verdict {
    let base = sampler.history().len();
    let mut target = |i: usize, p: &mut Vec<f64>| {
        if let Some(last) = i.checked_sub(1) {
            sampler.push(window[last]);
        }
        sampler.distribution(row(i), scratch, p);
        if i < window.len() {
            watch(i, p);
        }
    };
    let verdict = rule(&mut target);
    sampler.truncate(base + verdict.accepted);
    sampler.push(verdict.decided);
    verdict
}

/// What a proposal was drawn from.
#[derive(Clone, Copy)]
struct Law<'a> {
    entries: &'a [(TokenId, u32)],
    total: f64,
    /// Probability of the proposal.
    drawn: f64,
}

impl<'a> Law<'a> {
    /// The law of `token`: `q`, or all mass on it if `q` does not have it (a deterministic source).
    fn of(
        token: TokenId,
        q: Option<&'a SparseDistribution>,
        point: &'a mut [(TokenId, u32); 1],
    ) -> Self {
        *point = [(token, 1)];
        let weight = q.map_or(0, |q| q.weight(token));
        match q {
            Some(q) if weight > 0 => {
                let total = q.total();
                Self {
                    entries: &q.entries,
                    total,
                    drawn: f64::from(weight) / total,
                }
            }
            Some(_) | None => Self {
                entries: point,
                total: 1.0,
                drawn: 1.0,
            },
        }
    }

    /// Sum of `max(scale * p - q, 0)`, where `p` is a distribution: all of it counts where `q` has
    /// nothing.
    fn residual(self, p: &[f64], scale: f64) -> f64 {
        let (mut beside, mut left) = (scale, 0.0);
        for &(token, weight) in self.entries {
            let p = scale * probability(p, token);
            beside -= p;
            left += (p - f64::from(weight) / self.total).max(0.0);
        }
        // Less than rounding leaves of nothing is nothing.
        left + if beside > 1e-14 { beside } else { 0.0 }
    }

    /// Turns `p` into `max(scale * p - q, 0)`, not normalised; returns its sum.
    fn subtract_from(self, p: &mut [f64], scale: f64) -> f64 {
        for p in p.iter_mut() {
            *p *= scale;
        }
        for &(token, weight) in self.entries {
            if let Some(p) = p.get_mut(token.index()) {
                *p = (*p - f64::from(weight) / self.total).max(0.0);
            }
        }
        p.iter().sum()
    }
}

/// Probability of `token`; 0 outside the vocabulary.
fn probability(p: &[f64], token: TokenId) -> f64 {
    p.get(token.index()).copied().unwrap_or(0.0)
}

#[cfg(test)]
pub(crate) mod tests;
