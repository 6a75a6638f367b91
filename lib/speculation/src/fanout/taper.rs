//! Longer continuations for likelier outcomes.
//!
//! A token of a continuation is verified if its outcome comes about and every token before it is
//! accepted, so it is worth the less the unlikelier the outcome and the deeper the token:
//!
//! ```text
//! value(i, d) = P(outcome i) v(d)          v(d) = a^d g^(d-1)             d = 1, 2, ..
//! ```
//!
//! with g the probability that a continuation goes on, and does not end before an unlikely token.
//!
//! A build that gives all its outcomes the same depth spends most of its last step on tokens worth
//! less than the first one of an outcome it left out. So step d draws for the first `n_d` outcomes,
//! `n_1 >= n_2 >= ..`, and of all such ways the one is sought with the most value whose steps take no
//! longer than there is time:
//!
//! ```text
//! maximize sum over d of v(d) P(n_d)       subject to sum over d of step(r_d(n_d)) <= left
//! ```
//!
//! with `P(n)` the probability of the first n outcomes, and `r_d(n)` the rows of step d for them: fewer
//! than n where continuations end that are not likely enough. At a price `l` of a second each step is its own
//! problem, `max over n of v(d) P(n) - l step(r_d(n))`; the lowest price at which the steps fit is found by
//! bisection (Lagrangian relaxation: Everett 1963), and the time that this leaves goes to whichever
//! tokens are worth most.
//!
//! Where a miss is answered too (see [`Worth::miss`]), the first tokens of a continuation save nothing
//! until it is better than that answer; they count with the mean of those that make it so, which keeps
//! `v` from rising.

use alloc::vec::Vec;

use super::{Bid, Worth};

/// Halvings of the range of prices.
const HALVINGS: usize = 20;

/// Plans how many outcomes each step draws for. Keeps its memory.
#[derive(Clone, Debug, Default)]
pub struct Taper {
    /// Outcomes of each step.
    widths: Vec<u32>,
    /// What a token of each step is worth.
    values: Vec<f64>,
    /// Probability of the first n outcomes.
    first: Vec<f64>,
    /// Seconds of a step that draws for the first n outcomes: of one step after the other.
    seconds: Vec<f64>,
    /// Whether one more outcome of a step fits in the time there is.
    fits: Vec<bool>,
}

impl Taper {
    /// What was planned last.
    pub fn planned(&self) -> &[u32] {
        &self.widths
    }

    /// How many of the guesses each step draws for, none for more than `most`: as many steps as are
    /// of use. `step(rows)` is what a step takes, in seconds, and rises.
    pub fn widths(&mut self, bid: &Bid<'_>, most: u32, step: impl Fn(u32) -> f64) -> &[u32] {
        let guesses = bid.guesses.len().min(most as usize);
        self.widths.clear();
        if guesses == 0 || bid.worth.steps == 0 {
            return &self.widths;
        }
        self.widths.resize(bid.worth.steps as usize, guesses as u32);
        let rows = |index: usize, width: usize| bid.worth.rows(index, width as u32);
        let steps = 0..self.widths.len();
        let all: f64 = steps.clone().map(|i| step(rows(i, guesses))).sum();
        if all <= bid.left {
            return &self.widths;
        }
        // Not a number if nothing is known: no time.
        let left = bid.left.max(0.0);
        self.value_steps(&bid.worth);
        self.first.clear();
        self.first.push(0.0);
        let mut mass = 0.0;
        for guess in &bid.guesses[..guesses] {
            mass += guess.probability;
            self.first.push(mass);
        }
        self.seconds.clear();
        for index in steps {
            self.seconds.push(0.0);
            let some = (1..=guesses).map(|width| step(rows(index, width)));
            self.seconds.extend(some);
        }
        let best = self.values.first().map_or(0.0, |value| value * mass);
        // None takes less than one with a row.
        let (mut low, mut high) = (0.0, best / self.seconds[1].max(1e-9));
        for _ in 0..HALVINGS {
            let price = 0.5 * (low + high);
            if self.buy(price) <= left {
                high = price;
            } else {
                low = price;
            }
        }
        let taken = self.buy(high);
        self.fill(left - taken);
        let used = self.widths.partition_point(|&width| width > 0);
        self.widths.truncate(used);
        &self.widths
    }

    /// Takes for each step the outcomes that are worth most at this price of a second; how long they
    /// take.
    fn buy(&mut self, price: f64) -> f64 {
        let mut most = self.first.len();
        let mut taken = 0.0;
        let seconds = self.seconds.chunks_exact(self.first.len());
        for ((width, value), seconds) in self.widths.iter_mut().zip(&self.values).zip(seconds) {
            let (mut best, mut gained) = (0, 0.0);
            for (number, (mass, seconds)) in self.first.iter().zip(seconds).take(most).enumerate() {
                let gain = value * mass - price * seconds;
                if gain > gained {
                    (best, gained) = (number, gain);
                }
            }
            // None draws for more than the one before.
            most = best + 1;
            *width = best as u32;
            taken += seconds[best];
        }
        taken
    }

    /// Adds what is worth most and fits, until nothing does.
    fn fill(&mut self, mut left: f64) {
        self.fits.clear();
        self.fits.resize(self.widths.len(), true);
        while let Some(step) = self.next() {
            let width = self.widths[step] as usize;
            let seconds = &self.seconds[step * self.first.len()..];
            let longer = seconds[width + 1] - seconds[width];
            if longer <= left {
                left -= longer;
                self.widths[step] += 1;
            } else {
                self.fits[step] = false;
            }
        }
    }

    /// The step whose next token is worth most, of those that may have room for one.
    fn next(&self) -> Option<usize> {
        let mut best = (None, 0.0);
        let mut before = self.first.len() - 1;
        for (step, (&width, &value)) in self.widths.iter().zip(&self.values).enumerate() {
            let width = width as usize;
            if width < before && self.fits[step] {
                let worth = value * (self.first[width + 1] - self.first[width]);
                if worth > best.1 {
                    best = (Some(step), worth);
                }
            }
            before = width;
        }
        best.0
    }

    fn value_steps(&mut self, worth: &Worth) {
        let mean = |depth: u32| worth.saved(depth) / f64::from(depth);
        // Up to where the mean is best, all tokens count with it; after that it only falls.
        let pays = (1..=worth.steps).max_by(|&a, &b| mean(a).total_cmp(&mean(b)).then(b.cmp(&a)));
        let pays = pays.unwrap_or(0);
        let value = |depth: u32| {
            if depth <= pays {
                mean(pays)
            } else {
                worth.saved(depth) - worth.saved(depth - 1)
            }
        };
        self.values.clear();
        self.values.extend((1..=worth.steps).map(value));
    }
}

#[cfg(test)]
mod tests;
