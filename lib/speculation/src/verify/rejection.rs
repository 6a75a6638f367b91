//! Speculative sampling token by token (Leviathan et al. 2023, arXiv 2211.17192, algorithm 1).

use alloc::vec::Vec;

use super::{Coins, Law, Verdict, probability};
use crate::{TokenId, message::SparseDistribution};

/// Accepts `window[i]` with probability `min(1, p(x) / q(x))`; the first that is not accepted is
/// replaced by a draw from `max(p - q, 0)`, normalised; after all of them comes a draw from `p`.
///
/// `target(i, p)` fills `p` with the target's distribution after `window[..i]`; it is called for
/// i = 0, 1, .. until the verdict. `q[i]` is what `window[i]` was sampled from; where it is missing
/// or lacks the token, the proposal counts as certain.
pub fn rejection(
    window: &[TokenId],
    q: &[SparseDistribution],
    mut target: impl FnMut(usize, &mut Vec<f64>),
    coins: &mut impl Coins,
) -> Verdict {
    let mut p = Vec::new();
    for (accepted, &token) in window.iter().enumerate() {
        target(accepted, &mut p);
        let mut point = Default::default();
        let law = Law::of(token, q.get(accepted), &mut point);
        if coins.accept(probability(&p, token) / law.drawn) {
            continue;
        }
        law.subtract_from(&mut p, 1.0);
        return Verdict {
            accepted,
            decided: TokenId(coins.pick(&p) as u32),
        };
    }
    target(window.len(), &mut p);
    Verdict {
        accepted: window.len(),
        decided: TokenId(coins.pick(&p) as u32),
    }
}
