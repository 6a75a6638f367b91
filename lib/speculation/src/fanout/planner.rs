//! From the candidates of a glue pass to the branches worth building.

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::{Estimates, FanOut, Geometric, Prior, uniform};
use crate::{
    TokenId,
    guess::{Candidates, OutcomeKey},
};

/// Guesses that power laws are fitted over.
const FITTED: usize = 16;

/// An outcome that a branch can be built for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guess {
    /// The outcome.
    pub key: OutcomeKey,
    /// Rank of its token in its row, 0 being the best.
    pub rank: u32,
    /// How likely it is thought to be. Over all outcomes of a round these add up to 1 at most.
    pub probability: f64,
}

impl Guess {
    /// Likelier guesses first; among equals the fewest accepted tokens, then the best rank.
    fn order(&self, other: &Self) -> Ordering {
        other
            .probability
            .total_cmp(&self.probability)
            .then(self.key.accepted.cmp(&other.key.accepted))
            .then(self.rank.cmp(&other.rank))
    }
}

/// Spends budgets by one kind of fan-out, and learns from verdicts. One planner serves all sessions
/// whose target and draft sample alike (see [`Estimates`]).
#[derive(Clone, Debug)]
pub struct Planner {
    fan_out: FanOut,
    estimates: Estimates,
    counts: Vec<u32>,
    /// How likely each node of the window is to be reached.
    reached: Vec<f64>,
}

impl Planner {
    /// A planner that knows nothing but `prior`. Until verdicts outweigh it, even
    /// [`FanOut::Learned`] spends as is best for the prior's fixed curves.
    pub fn new(fan_out: FanOut, prior: Prior) -> Self {
        Self {
            fan_out,
            estimates: Estimates::new(prior),
            counts: Vec::new(),
            reached: Vec::new(),
        }
    }

    /// Replaces `guesses` by those to build with a budget of `budget` branches, likeliest first;
    /// fewer if there are not as many candidates. Needs no memory but what `guesses` grows to: the
    /// number of all candidates.
    pub fn plan(&mut self, candidates: &Candidates, budget: usize, guesses: &mut Vec<Guess>) {
        guesses.clear();
        if candidates.rows().len() == 0 {
            return;
        }
        self.count(candidates, budget);
        let window = candidates.window();
        self.reached.clear();
        self.reached.resize(window.len() + 1, 0.0);
        self.reached[0] = 1.0;
        for (accepted, row) in candidates.rows().enumerate() {
            let accepts = self.estimates.accepts(&row);
            let reached = self.reached[accepted];
            if let Some(first) = window.children(accepted as u32).next() {
                self.reached[first as usize] = reached * accepts;
            }
            let mut left = reached * (1.0 - accepts);
            if candidates.are_drawn() {
                let sides = window.children(accepted as u32).skip(1);
                for (side, accepts) in sides.zip(self.estimates.drawn_beside()) {
                    self.reached[side as usize] = left * accepts;
                    left *= 1.0 - accepts;
                }
            }
            let listed = row.candidates.len();
            let mut most = self.counts.get(accepted).map_or(listed, |&n| n as usize);
            for (rank, candidate) in row.candidates.iter().enumerate() {
                let holds = self.estimates.holds(&row, rank);
                // What the window proposes is accepted, not decided.
                if let Some(side) = window.child(accepted as u32, candidate.token) {
                    if !candidates.are_drawn() {
                        self.reached[side as usize] = left * holds;
                        left *= 1.0 - holds;
                    }
                    continue;
                }
                if most == 0 {
                    break;
                }
                most -= 1;
                guesses.push(Guess {
                    key: OutcomeKey {
                        accepted: accepted as u32,
                        token: candidate.token,
                    },
                    rank: rank as u32,
                    probability: left * holds,
                });
                left *= 1.0 - holds;
            }
        }
        if budget == 0 {
            guesses.clear();
        } else if budget < guesses.len() {
            guesses.select_nth_unstable_by(budget - 1, Guess::order);
            guesses.truncate(budget);
        }
        guesses.sort_unstable_by(Guess::order);
    }

    /// Takes in how many continuations were about to go on, and how many of them ended instead.
    pub fn observe_ends(&mut self, looked_at: u32, ended: u32) {
        self.estimates.observe_ends(looked_at, ended);
    }

    /// Takes in the verdict on the window that `candidates` belong to; see [`Estimates::observe`].
    pub fn observe(&mut self, candidates: &Candidates, outcome: OutcomeKey) -> Option<usize> {
        self.estimates.observe(candidates, outcome)
    }

    /// See [`Estimates::observe_beside`].
    pub fn observe_beside(&mut self, proposed: Option<TokenId>, beside: &[TokenId], came: TokenId) {
        let beside = beside.iter().copied();
        self.estimates.observe_beside(proposed, beside, came);
    }

    /// What was learned.
    pub fn estimates(&self) -> &Estimates {
        &self.estimates
    }

    /// How the budget is spread.
    pub fn fan_out(&self) -> FanOut {
        self.fan_out
    }

    /// Sets how many candidates of each row may be guessed; without counts all may.
    fn count(&mut self, candidates: &Candidates, budget: usize) {
        self.counts.clear();
        let budget = budget as u32;
        let rows = candidates.rows().len();
        match self.fan_out {
            FanOut::Learned => {}
            FanOut::Uniform => uniform(rows, budget, &mut self.counts),
            FanOut::Geometric => {
                let law = self.estimates.power_law(false, FITTED);
                let last = self.estimates.misses(true, 1) / law.scale;
                let most = |k: u32| {
                    let row = candidates.row(k as usize);
                    row.map_or(0, |row| row.candidates.len() as u32)
                };
                Geometric {
                    acceptance: self.estimates.acceptance(),
                    exponent: law.exponent,
                    last_scale: last,
                    window: rows as u32 - 1,
                }
                .counts(budget, law.scale, most, &mut self.counts);
            }
        }
    }
}

#[cfg(test)]
mod tests;
