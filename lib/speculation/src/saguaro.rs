//! Saguaro sampling: drafting less of what the cache guesses (SSD, Kumar et al. 2026,
//! arXiv 2603.03251, Definition 14).
//!
//! With verification by ratio a rejected token is replaced by a draw from `max(p - q, 0)`. The
//! endpoint guesses the F likeliest tokens of its own `q`. If the draft samples those less often
//! than `q` says, more of what is left of `p` lies on them, and more guesses hit after rejections
//! (Theorem 15); acceptance may fall. [`Tuner`] weighs one against the other by Theorem 7.
//!
//! Both sides have to use the same lowered `q'`. [`Saguaro::apply`] is arithmetic of whole numbers, so
//! `q` travels with the [`Saguaro`] that it was lowered by.

mod tuner;

pub use self::tuner::{Seen, Tuner};
use crate::{TokenId, message::SparseDistribution};

/// Values of C that there are: 0, 1/20, .., 1.
const STEPS: u32 = 20;

/// The F likeliest tokens are drafted with C times their weight, C being a multiple of 1/20. By
/// default it is off: C is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saguaro {
    fan_out: u32,
    /// `20 (1 - C)`.
    lost: u32,
}

impl Saguaro {
    /// Takes `lost` twentieths of their weight from the `fan_out` likeliest tokens: 0 is off, at 20
    /// or more they are never drafted.
    pub fn new(fan_out: u32, lost: u32) -> Self {
        Self {
            fan_out,
            lost: lost.min(STEPS),
        }
    }

    /// Whether nothing is lowered.
    pub fn is_off(&self) -> bool {
        self.lost == 0 || self.fan_out == 0
    }

    /// The factor C.
    pub fn c(&self) -> f64 {
        f64::from(STEPS - self.lost) / f64::from(STEPS)
    }

    /// How many tokens are lowered.
    pub fn fan_out(&self) -> u32 {
        self.fan_out
    }

    /// Twentieths of their weight that they lose.
    pub fn lost(&self) -> u32 {
        self.lost
    }

    /// Turns the draft's distribution `q` into `q'`: weights `C q` for the likeliest tokens (the
    /// lower id among equals) and `q` for the others, times 20. Tokens that lose all weight are left
    /// out. If nothing would be left, `q` stays as it is.
    pub fn apply(&self, q: &mut SparseDistribution) {
        if !self.is_off() {
            lower(q, self.fan_out as usize, STEPS - self.lost, STEPS);
        }
    }
}

/// Multiplies the weights of the `fan_out` likeliest tokens by `top` and those of the others by
/// `rest`, unless nothing would be left.
fn lower(q: &mut SparseDistribution, fan_out: usize, top: u32, rest: u32) {
    let entries = &mut q.entries;
    if fan_out == 0 || (top == 0 && entries.len() <= fan_out) {
        return;
    }
    let Some(place) = fan_out.min(entries.len()).checked_sub(1) else {
        return;
    };
    // The last of the likeliest; a peer may name many of many.
    let mut order = entries.clone();
    let likelier = |a: &(TokenId, u32), b: &(TokenId, u32)| b.1.cmp(&a.1).then(a.0.cmp(&b.0));
    let last = *order.select_nth_unstable_by(place, likelier).1;
    for entry in entries.iter_mut() {
        let is_top = likelier(entry, &last).is_le();
        entry.1 = entry.1.saturating_mul(if is_top { top } else { rest });
    }
    entries.retain(|entry| entry.1 > 0);
}

#[cfg(test)]
mod tests;
