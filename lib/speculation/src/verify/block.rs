//! Block verification (Sun et al. 2024, arXiv 2403.10444, algorithm 2): accepts at least as many
//! tokens in expectation as token-by-token rejection, at the same output law.

use alloc::vec::Vec;
use core::mem;

use super::{Coins, Law, Verdict, probability};
use crate::{TokenId, message::SparseDistribution};

/// As [`super::rejection`], but decides on all positions together: `target` is called for every i
/// up to `window.len()`.
///
/// With `a_0 = 1` and `a_i = min(1, a_{i-1} p(x_i) / q(x_i))`, the first i tokens can be the
/// accepted ones with probability `h_i = R_i / (R_i + 1 - a_i)`, where `R_i` is the sum of
/// `max(a_i p - q, 0)` after them, and `h_n = a_n`; the largest i whose coin says so counts.
pub fn block(
    window: &[TokenId],
    q: &[SparseDistribution],
    mut target: impl FnMut(usize, &mut Vec<f64>),
    coins: &mut impl Coins,
) -> Verdict {
    let mut accepted = 0;
    let (mut p, mut decide) = (Vec::new(), Vec::new());
    let (mut a, mut scale) = (1.0_f64, 1.0);
    for (i, &token) in window.iter().enumerate() {
        target(i, &mut p);
        let mut point = Default::default();
        let law = Law::of(token, q.get(i), &mut point);
        let residual = law.residual(&p, a);
        // Without tokens before it there is nothing to accept: position 0 is always possible.
        let possible = i == 0 || coins.accept(ratio(residual, a));
        let next = (a * probability(&p, token) / law.drawn).min(1.0);
        if possible {
            (accepted, scale) = (i, a);
            mem::swap(&mut p, &mut decide);
        }
        a = next;
    }
    target(window.len(), &mut p);
    match window.get(accepted) {
        // Only where it is needed: a pass over the vocabulary.
        Some(&token) if !coins.accept(a) => {
            let mut point = Default::default();
            Law::of(token, q.get(accepted), &mut point).subtract_from(&mut decide, scale);
        }
        _ => {
            accepted = window.len();
            decide = p;
        }
    }
    Verdict {
        accepted,
        decided: TokenId(coins.pick(&decide) as u32),
    }
}

/// `R / (R + 1 - a)`; both terms vanish only if the draft's law is the target's, and then the
/// tokens after are accepted anyway.
pub(super) fn ratio(residual: f64, a: f64) -> f64 {
    let total = residual + 1.0 - a;
    if total > 0.0 { residual / total } else { 1.0 }
}
