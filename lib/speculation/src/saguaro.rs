//! Saguaro sampling: drafting less of what the cache guesses (SSD, Kumar et al. 2026,
//! arXiv 2603.03251, Definition 14).
//!
//! With verification by ratio a rejected token is replaced by a draw from `max(p - q, 0)`. The
//! endpoint guesses the F likeliest tokens of its own `q`. If the draft samples those less often
//! than `q` says, more of what is left of `p` lies on them, and more guesses hit after rejections
//! (Theorem 15); acceptance may fall. [`Tuner`] weighs one against the other by Theorem 7.
//!
//! Both sides have to use the same lowered `q'`. [`Saguaro::apply`] has the same bits on every host,
//! so either `q` or `q'` may travel.

use alloc::vec::Vec;

use crate::{
    TokenId,
    message::SparseDistribution,
    proposal,
    theory::{Ahead, Speculator, expected_tokens},
};

/// Weight that an observation keeps with each later one: about the last 500 count.
const MEMORY: f64 = 0.998;
/// Values of C that are compared: 0, 1/20, .., 1.
const STEPS: usize = 20;

/// The F likeliest tokens are drafted with C times their weight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saguaro {
    fan_out: usize,
    c: f64,
}

impl Saguaro {
    /// Lowers the `fan_out` likeliest tokens by a factor `c` from 0 (never draft them) to 1 (off).
    pub fn new(fan_out: usize, c: f64) -> Self {
        Self {
            fan_out,
            c: if c.is_nan() { 1.0 } else { c.clamp(0.0, 1.0) },
        }
    }

    /// The factor.
    pub fn c(&self) -> f64 {
        self.c
    }

    /// Turns the draft's distribution `q` into `q'`: `C q / (C A + D)` for the likeliest tokens (the
    /// lower id among equals), whose mass is A, and `q / (C A + D)` for the others, whose mass is D.
    /// Tokens that lose all mass are left out. If nothing would be left, `q` stays as it is.
    pub fn apply(&self, q: &mut SparseDistribution) {
        let entries = &mut q.entries;
        if self.fan_out == 0 || self.c >= 1.0 || (self.c <= 0.0 && entries.len() <= self.fan_out) {
            return;
        }
        // The last of the likeliest: few are wanted of few.
        let mut last = None;
        for _ in 0..self.fan_out.min(entries.len()) {
            let below = |entry: &&(TokenId, f32)| last.is_none_or(|last| is_before(last, **entry));
            let next = entries.iter().filter(below);
            last = next
                .copied()
                .reduce(|a, b| if is_before(a, b) { a } else { b });
        }
        let Some(last) = last else { return };
        for entry in entries.iter_mut() {
            if *entry == last || is_before(*entry, last) {
                entry.1 = (f64::from(entry.1) * self.c) as f32;
            }
        }
        entries.retain(|entry| entry.1 > 0.0);
        proposal::normalise(entries);
    }
}

/// Whether `a` is likelier than `b`; the lower id among equals.
fn is_before(a: (TokenId, f32), b: (TokenId, f32)) -> bool {
    a.1 > b.1 || (a.1 >= b.1 && a.0 < b.0)
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
    fan_out: usize,
    seen: f64,
    effects: [Effect; STEPS + 1],
    lowered: SparseDistribution,
    likeliest: Vec<(TokenId, f32)>,
}

impl Tuner {
    /// For a cache that guesses the `fan_out` likeliest tokens of a row but the rejected one.
    pub fn new(fan_out: usize) -> Self {
        Self {
            fan_out,
            seen: 0.0,
            effects: [Effect::default(); STEPS + 1],
            lowered: SparseDistribution::default(),
            likeliest: Vec::new(),
        }
    }

    /// Takes in one verified position: `q` is what the draft would sample from with C = 1, `p` the
    /// target's distribution (one probability per entry of the vocabulary).
    pub fn observe(&mut self, p: &[f64], q: &SparseDistribution) {
        self.seen = self.seen * MEMORY + 1.0;
        for step in 0..=STEPS {
            let effect = self.effect(step as f64 / STEPS as f64, p, q);
            let sum = &mut self.effects[step];
            sum.accepted = sum.accepted * MEMORY + effect.accepted;
            sum.guessed = sum.guessed * MEMORY + effect.guessed;
        }
    }

    /// The C whose speedup by Theorem 7 is highest, 1 (off) among equals and while nothing is known.
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
    ) -> f64 {
        let mut best = (0.0, 1.0);
        for step in (0..=STEPS).rev() {
            let mean = self.mean(step);
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
                best = (speedup, step as f64 / STEPS as f64);
            }
        }
        if self.seen > 0.0 { best.1 } else { 1.0 }
    }

    /// Mean effect of C = `step / STEPS`.
    fn mean(&self, step: usize) -> Effect {
        let weight = self.seen.max(1e-12);
        Effect {
            accepted: self.effects[step].accepted / weight,
            guessed: self.effects[step].guessed / weight,
        }
    }

    /// What `c` does at a position.
    fn effect(&mut self, c: f64, p: &[f64], q: &SparseDistribution) -> Effect {
        self.lowered.entries.clone_from(&q.entries);
        Saguaro::new(self.fan_out, c).apply(&mut self.lowered);
        self.likeliest.clone_from(&q.entries);
        self.likeliest
            .sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let lowered = &self.lowered.entries;
        let target = |token: TokenId| p.get(token.index()).copied().unwrap_or(0.0);
        let draft = |token: TokenId| {
            let found = lowered.binary_search_by_key(&token, |entry| entry.0);
            found.map_or(0.0, |place| f64::from(lowered[place].1))
        };
        let left = |token| (target(token) - draft(token)).max(0.0);
        let accepted: f64 = lowered
            .iter()
            .map(|&(token, q)| target(token).min(f64::from(q)))
            .sum();
        let residual = 1.0 - accepted;
        if residual <= 1e-12 {
            return Effect {
                accepted,
                guessed: 0.0,
            };
        }
        let mass =
            |entries: &[(TokenId, f32)]| entries.iter().map(|entry| left(entry.0)).sum::<f64>();
        let split = self.fan_out.min(self.likeliest.len());
        let (guesses, others) = self.likeliest.split_at(split);
        let (first, next) = (mass(guesses), mass(&others[..others.len().min(1)]));
        // Whichever token is rejected has nothing left, so a guess it takes up is free for the next.
        let guessed = lowered.iter().map(|&(token, q)| {
            let is_guess = guesses.iter().any(|guess| guess.0 == token);
            let caught = if is_guess { first + next } else { first };
            (f64::from(q) - target(token)).max(0.0) * caught / residual
        });
        Effect {
            accepted,
            guessed: guessed.sum(),
        }
    }
}

#[cfg(test)]
mod tests;
