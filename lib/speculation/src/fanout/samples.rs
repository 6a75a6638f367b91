//! Guesses and steps that tests of this module share.

use std::vec::Vec;

use super::Guess;
use crate::guess::OutcomeKey;

/// Guesses with these probabilities.
pub(super) fn guesses(probabilities: impl IntoIterator<Item = f64>) -> Vec<Guess> {
    let guess = |probability| Guess {
        key: OutcomeKey::default(),
        rank: 0,
        probability,
    };
    probabilities.into_iter().map(guess).collect()
}

/// Falling probabilities that add up to less than 1.
pub(super) fn falling(count: i32, ratio: f64) -> Vec<Guess> {
    guesses((0..count).map(|i| (1.0 - ratio) * ratio.powi(i)))
}

/// A step's time: 25 us, and 7 for each row.
pub(super) fn step(rows: u32) -> f64 {
    25e-6 + 7e-6 * f64::from(rows)
}
