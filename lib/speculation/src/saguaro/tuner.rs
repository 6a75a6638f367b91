//! Which C speeds up most, learned where verdicts are made.
//!
//! Theorem 7 (SSD, arXiv 2603.03251) gives the speedup for an acceptance and a hit rate. What both
//! would be at every C is computed at each verified position from the target's distribution and the
//! draft's; how far guesses come up to that (they may be late, or other ones) is measured at the C
//! in force.

use alloc::vec::Vec;

use super::{STEPS, Saguaro};
use crate::{
    message::SparseDistribution,
    proposal::Laws,
    tally::Tally,
    theory::{Ahead, Speculator, expected_tokens},
};

/// Weight that a position keeps with each later one: about the last 1000 count.
const MEMORY: f64 = 0.999;
/// The same of verdicts of one kind: about the last 200 count.
const VERDICT_MEMORY: f64 = 0.995;
/// Verdicts that the first guess of a hit rate is worth.
const PRIOR_WEIGHT: f64 = 8.0;
/// First guess of the probability that the token decided after a whole window is guessed.
const WHOLE_PRIOR: f64 = 0.75;
/// Positions between two looks at whether another C is better.
const REVIEW: u32 = 64;
/// Farthest that C moves at once, in twentieths: how guesses fare was measured where it is now.
const STRIDE: u32 = 4;
/// Expected gain, as a fraction, for which C moves.
const MARGIN: f64 = 0.02;

/// What a target makes of the tokens that the proposals of a window were drawn among, position by
/// position. Kept, it stops allocating.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    p: Vec<f64>,
    ends: Vec<usize>,
}

impl Seen {
    /// Forgets everything.
    pub fn clear(&mut self) {
        self.p.clear();
        self.ends.clear();
    }

    /// Whether no position was taken in.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Takes in the next position of the window: `q` is what its proposal was drawn from before
    /// that was lowered, `p` the target's distribution (one probability per entry of the
    /// vocabulary).
    pub fn push(&mut self, q: &SparseDistribution, p: &[f64]) {
        let entries = q.entries.iter();
        self.p
            .extend(entries.map(|entry| p.get(entry.0.index()).copied().unwrap_or(0.0)));
        self.ends.push(self.p.len());
    }

    /// The target's probabilities of the tokens at each position.
    fn positions(&self) -> impl Iterator<Item = &[f64]> {
        let starts = core::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends);
        ranges.map(|(start, &end)| &self.p[start..end])
    }
}

/// What C does to the verification of one position.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Effect {
    /// Probability that the drafted token is accepted.
    accepted: f64,
    /// Probability that it is rejected and the decided token is guessed.
    guessed: f64,
}

/// How often the token decided after a rejection was guessed, and how often it was to be.
#[derive(Clone, Copy, Debug, Default)]
struct Guesses {
    found: Tally,
    /// Sum over as many verdicts, weighted as they are.
    expected: f64,
    verdicts: f64,
}

impl Guesses {
    fn observe(&mut self, expected: f64, hit: bool) {
        self.found.observe(hit, VERDICT_MEMORY);
        self.expected = self.expected * VERDICT_MEMORY + expected;
        self.verdicts = self.verdicts * VERDICT_MEMORY + 1.0;
    }
}

/// Chooses C for the sessions that share a target and an endpoint.
#[derive(Clone, Debug)]
pub struct Tuner {
    fan_out: u32,
    /// `20 (1 - C)` of the C in force.
    lost: u32,
    /// Positions that count.
    seen: f64,
    /// Sums by `20 (1 - C)`.
    effects: [Effect; STEPS as usize + 1],
    /// Positions since the last look.
    news: u32,
    /// After windows that were not accepted whole, and those that were.
    cut: Guesses,
    whole: Tally,
    /// The position at hand.
    position: Vec<(f64, f64)>,
}

impl Tuner {
    /// For an endpoint that guesses the `fan_out` likeliest tokens of a row but the rejected one.
    pub fn new(fan_out: u32) -> Self {
        Self {
            fan_out,
            lost: 0,
            seen: 0.0,
            effects: [Effect::default(); STEPS as usize + 1],
            news: 0,
            cut: Guesses::default(),
            whole: Tally::default(),
            position: Vec::new(),
        }
    }

    /// Takes in a verified window whose first `accepted` tokens were accepted: what they were drawn
    /// from, and what the target makes of that. Positions after the first rejection do not count,
    /// since output never comes to stand there.
    pub fn observe(&mut self, laws: &Laws, seen: &Seen, accepted: usize) {
        for (q, p) in laws.q.iter().zip(seen.positions()).take(accepted + 1) {
            self.observe_position(p, q);
        }
    }

    /// Takes in whether the token that ended a window was guessed, and in time: after all of the
    /// window if `whole`.
    pub fn observe_verdict(&mut self, whole: bool, hit: bool) {
        if whole {
            self.whole.observe(hit, VERDICT_MEMORY);
        } else {
            let expected = self.modelled(self.lost);
            self.cut.observe(expected, hit);
        }
    }

    /// The C for what is drawn next: that of before, or a stride from it towards the one that speeds
    /// up most by Theorem 7, if that gains more than a margin. `lookahead` is that of rounds, `backup` what
    /// drafts after a miss given what hits are like, times being in verifications.
    ///
    /// A hit counts as its verification alone. Its verdict may have waited for more of what was drafted
    /// for it, but only as long as that brought more than it took (see [`linger`](crate::linger)); that
    /// time is left out.
    pub fn choose(&mut self, lookahead: u32, backup: impl Fn(Speculator) -> Speculator) -> Saguaro {
        if self.news >= REVIEW {
            self.news = 0;
            let speedup = |lost| self.speedup(lost, lookahead, &backup);
            let mut best = (speedup(self.lost) * (1.0 + MARGIN), self.lost);
            for lost in 0..=STEPS {
                let speedup = speedup(lost);
                if speedup > best.0 * (1.0 + 1e-9) {
                    best = (speedup, lost);
                }
            }
            let near = self.lost.saturating_sub(STRIDE)..=self.lost + STRIDE;
            self.lost = best.1.clamp(*near.start(), *near.end());
        }
        self.saguaro()
    }

    /// The C in force.
    pub fn saguaro(&self) -> Saguaro {
        Saguaro::new(self.fan_out, self.lost)
    }

    /// Speedup by Theorem 7 with a C, the hit rate by Theorem 12 with the same one at every
    /// rejection.
    fn speedup(&self, lost: u32, lookahead: u32, backup: impl Fn(Speculator) -> Speculator) -> f64 {
        let accepted = self.mean(lost).accepted;
        let whole = libm::pow(accepted, f64::from(lookahead));
        let after_whole = self.whole.estimate(WHOLE_PRIOR, PRIOR_WEIGHT);
        let primary = Speculator {
            tokens: expected_tokens(accepted, lookahead),
            time: 1.0,
            next_hit: (1.0 - whole) * self.guessed(lost) + whole * after_whole,
        };
        let backup = backup(primary);
        Ahead { primary, backup }.speedup()
    }

    /// Probability that the token decided after a rejection is guessed: what follows from both
    /// distributions, as far as guesses have come up to that lately.
    fn guessed(&self, lost: u32) -> f64 {
        let modelled = self.modelled(lost);
        let expected = self.cut.expected / self.cut.verdicts.max(1e-12);
        let found = self.cut.found.estimate(expected, PRIOR_WEIGHT);
        if found > expected {
            1.0 - (1.0 - modelled) * (1.0 - found) / (1.0 - expected)
        } else if expected > 0.0 {
            modelled * found / expected
        } else {
            modelled
        }
    }

    /// The same if every guess were drafted in time.
    fn modelled(&self, lost: u32) -> f64 {
        let mean = self.mean(lost);
        (mean.guessed / (1.0 - mean.accepted).max(1e-12)).clamp(0.0, 1.0)
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

    /// Takes in a position: what its token would be drawn from with C = 1, and the target's
    /// probabilities of the same tokens.
    fn observe_position(&mut self, p: &[f64], q: &SparseDistribution) {
        self.position.clear();
        let entries = p.iter().zip(&q.entries);
        self.position
            .extend(entries.map(|(&p, entry)| (p, f64::from(entry.1))));
        // Stable: the lower id comes first among equals.
        self.position.sort_by(|a, b| b.1.total_cmp(&a.1));
        self.seen = self.seen * MEMORY + 1.0;
        for (lost, sum) in (0..).zip(&mut self.effects) {
            let c = f64::from(STEPS - lost) / f64::from(STEPS);
            let effect = effect(&self.position, self.fan_out as usize, c);
            sum.accepted = sum.accepted * MEMORY + effect.accepted;
            sum.guessed = sum.guessed * MEMORY + effect.guessed;
        }
        self.news = self.news.saturating_add(1);
    }
}

/// What C does at a position whose tokens, likeliest first, have these probabilities for the target
/// and these weights for the draft.
fn effect(position: &[(f64, f64)], fan_out: usize, c: f64) -> Effect {
    let fan_out = fan_out.min(position.len());
    // Somebody has to be drafted.
    let c = if fan_out == position.len() { 1.0 } else { c };
    let (guesses, others) = position.split_at(fan_out);
    let weight = |entries: &[(f64, f64)]| entries.iter().map(|entry| entry.1).sum::<f64>();
    let total = (c * weight(guesses) + weight(others)).max(1e-300);
    let (top, rest) = (c / total, 1.0 / total);
    // Of each part: what is accepted, what the draft has too much of, and the target.
    let parts = |entries: &[(f64, f64)], scale: f64| {
        let (mut accepted, mut over, mut left) = (0.0, 0.0, 0.0);
        for &(p, weight) in entries {
            let q = weight * scale;
            accepted += p.min(q);
            over += (q - p).max(0.0);
            left += (p - q).max(0.0);
        }
        (accepted, over, left)
    };
    let (accepted_top, over_top, first) = parts(guesses, top);
    let (accepted_rest, over_rest, _) = parts(others, rest);
    let accepted = accepted_top + accepted_rest;
    let residual = 1.0 - accepted;
    if residual <= 1e-12 {
        return Effect {
            accepted,
            guessed: 0.0,
        };
    }
    // A rejected token has nothing left, so if it is a guess the next token is one in its place.
    let next = others
        .first()
        .map_or(0.0, |&(p, weight)| (p - weight * rest).max(0.0));
    Effect {
        accepted,
        guessed: (over_top * (first + next) + over_rest * first) / residual,
    }
}

#[cfg(test)]
mod tests;
