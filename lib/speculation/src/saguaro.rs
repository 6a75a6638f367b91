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

use alloc::vec::Vec;

use crate::{
    TokenId,
    message::SparseDistribution,
    theory::{Ahead, Speculator, expected_tokens},
};

/// Weight that an observation keeps with each later one: about the last 500 count.
const MEMORY: f64 = 0.998;
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
    // The last of the likeliest: few are wanted of few.
    let mut last = None;
    for _ in 0..fan_out.min(entries.len()) {
        let below = |entry: &&(TokenId, u32)| last.is_none_or(|last| is_before(last, **entry));
        let next = entries.iter().filter(below);
        last = next
            .copied()
            .reduce(|a, b| if is_before(a, b) { a } else { b });
    }
    let Some(last) = last else { return };
    for entry in entries.iter_mut() {
        let is_top = *entry == last || is_before(*entry, last);
        entry.1 = entry.1.saturating_mul(if is_top { top } else { rest });
    }
    entries.retain(|entry| entry.1 > 0);
}

/// Whether `a` is likelier than `b`; the lower id among equals.
fn is_before(a: (TokenId, u32), b: (TokenId, u32)) -> bool {
    a.1 > b.1 || (a.1 == b.1 && a.0 < b.0)
}

/// What C does to the verification of one position.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Effect {
    /// Probability that the drafted token is accepted.
    pub accepted: f64,
    /// Probability that it is rejected and the decided token is guessed.
    pub guessed: f64,
}

/// Learns which C is best, where both `p` and `q` are known: on the target.
#[derive(Clone, Debug)]
pub struct Tuner {
    fan_out: u32,
    seen: f64,
    /// By `20 (1 - C)`.
    effects: [Effect; STEPS as usize + 1],
    lowered: SparseDistribution,
    likeliest: Vec<(TokenId, u32)>,
}

impl Tuner {
    /// For a cache that guesses the `fan_out` likeliest tokens of a row but the rejected one.
    pub fn new(fan_out: u32) -> Self {
        Self {
            fan_out,
            seen: 0.0,
            effects: [Effect::default(); STEPS as usize + 1],
            lowered: SparseDistribution::default(),
            likeliest: Vec::new(),
        }
    }

    /// Takes in one verified position: `q` is what the draft would sample from with C = 1, `p` the
    /// target's distribution (one probability per entry of the vocabulary).
    pub fn observe(&mut self, p: &[f64], q: &SparseDistribution) {
        self.seen = self.seen * MEMORY + 1.0;
        for lost in 0..=STEPS {
            let effect = self.effect(STEPS - lost, STEPS, p, q);
            let sum = &mut self.effects[lost as usize];
            sum.accepted = sum.accepted * MEMORY + effect.accepted;
            sum.guessed = sum.guessed * MEMORY + effect.guessed;
        }
    }

    /// What speeds up most by Theorem 7, the highest C among equals; off while nothing is known.
    ///
    /// `lookahead` is that of rounds, `bonus` the probability that the token decided after a whole
    /// window is guessed, `time` what drafting ahead takes in verifications, and `backup` what
    /// drafts after a miss, given what the primary is like.
    pub fn best(
        &self,
        lookahead: u32,
        bonus: f64,
        time: f64,
        backup: impl Fn(Speculator) -> Speculator,
    ) -> Saguaro {
        if self.seen <= 0.0 {
            return Saguaro::default();
        }
        let mut best = (0.0, 0);
        for lost in 0..=STEPS {
            let mean = self.mean(lost);
            let whole = libm::pow(mean.accepted, f64::from(lookahead));
            let rejected = (1.0 - mean.accepted).max(1e-12);
            let guessed = (mean.guessed / rejected).min(1.0);
            let primary = Speculator {
                tokens: expected_tokens(mean.accepted, lookahead),
                time,
                // Theorem 12 with the same hit rate at every rejection.
                next_hit: (1.0 - whole) * guessed + whole * bonus,
            };
            let backup = backup(primary);
            let speedup = Ahead { primary, backup }.speedup();
            if speedup > best.0 * (1.0 + 1e-9) {
                best = (speedup, lost);
            }
        }
        Saguaro::new(self.fan_out, best.1)
    }

    /// Mean effect of losing so many twentieths.
    fn mean(&self, lost: u32) -> Effect {
        let weight = self.seen.max(1e-12);
        let sum = self.effects[lost as usize];
        Effect {
            accepted: sum.accepted / weight,
            guessed: sum.guessed / weight,
        }
    }

    /// What C = `top / rest` does at a position.
    fn effect(&mut self, top: u32, rest: u32, p: &[f64], q: &SparseDistribution) -> Effect {
        self.lowered.entries.clone_from(&q.entries);
        lower(&mut self.lowered, self.fan_out as usize, top, rest);
        self.likeliest.clone_from(&q.entries);
        self.likeliest
            .sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let lowered = &self.lowered;
        let total = lowered.total();
        let target = |token: TokenId| p.get(token.index()).copied().unwrap_or(0.0);
        let left = |token| (target(token) - f64::from(lowered.weight(token)) / total).max(0.0);
        let accepted: f64 = lowered
            .entries
            .iter()
            .map(|&(token, weight)| target(token).min(f64::from(weight) / total))
            .sum();
        let residual = 1.0 - accepted;
        if residual <= 1e-12 {
            return Effect {
                accepted,
                guessed: 0.0,
            };
        }
        let mass =
            |entries: &[(TokenId, u32)]| entries.iter().map(|entry| left(entry.0)).sum::<f64>();
        let split = (self.fan_out as usize).min(self.likeliest.len());
        let (guesses, others) = self.likeliest.split_at(split);
        let (first, next) = (mass(guesses), mass(&others[..others.len().min(1)]));
        // Whichever token is rejected has nothing left, so a guess it takes up is free for the next.
        let guessed = lowered.entries.iter().map(|&(token, weight)| {
            let is_guess = guesses.iter().any(|guess| guess.0 == token);
            let caught = if is_guess { first + next } else { first };
            (f64::from(weight) / total - target(token)).max(0.0) * caught / residual
        });
        Effect {
            accepted,
            guessed: guessed.sum(),
        }
    }
}

#[cfg(test)]
mod tests;
