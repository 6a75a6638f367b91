//! How much of what is drafted ahead is there when it is to be verified.

use alloc::vec::Vec;

/// Share of a new observation in what is known.
const WEIGHT: f64 = 1.0 / 16.0;
/// Share of what is known that is lost in a round without news of it: after some thousands of them it
/// counts for nothing, so a load that has passed is forgotten.
const FORGET: f64 = 0.001;

/// The probability that a verdict finds the i-th token of what was to be drafted for it.
///
/// A miss finds none, a continuation that is not done in time has its first tokens. So what is seen of
/// long continuations says what there would be of shorter ones: as many of the first tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Coverage {
    positions: Vec<f64>,
}

impl Coverage {
    /// Takes in, as this `part` of a round, that `found` tokens were there of up to `sought`. If there
    /// were to be no more of them (it has `ended`), nothing is known of what would have followed;
    /// otherwise as much as it is likely that there would have been more. That there is a token at a
    /// position has the probability `reached`.
    pub(super) fn observe(
        &mut self,
        sought: u32,
        found: u32,
        ended: bool,
        part: f64,
        reached: impl Iterator<Item = f64>,
    ) {
        let (sought, found) = (sought as usize, found as usize);
        if self.positions.len() < sought {
            self.positions.resize(sought, self.at(sought));
        }
        let positions = self.positions[..sought].iter_mut().zip(reached);
        let mut had = 1.0;
        for (position, (there, reached)) in positions.enumerate() {
            if position < found {
                had = reached;
                *there += WEIGHT * part * (1.0 - *there);
            } else if !ended && had > 0.0 {
                *there -= WEIGHT * part * (reached / had) * *there;
            }
        }
        let Some(&last) = self.positions[..sought].last() else {
            return;
        };
        for there in &mut self.positions[sought..] {
            *there += FORGET * part * (last - *there);
        }
    }

    /// Nothing was sought in this part of a round.
    pub(super) fn fade(&mut self, part: f64) {
        for there in &mut self.positions {
            *there += FORGET * part * (1.0 - *there);
        }
    }

    /// Expected tokens that are there and wanted, of the first `k`, each of which is wanted with the
    /// probability `wanted`.
    pub(super) fn there(&self, k: u32, wanted: impl Iterator<Item = f64>) -> f64 {
        let wanted = wanted.take(k as usize).enumerate();
        wanted
            .map(|(position, wanted)| self.at(position) * wanted)
            .sum()
    }

    /// Probability that the token at this position is there. One that was never sought is like the last
    /// that was.
    pub(super) fn at(&self, position: usize) -> f64 {
        let known = self.positions.get(position).or(self.positions.last());
        known.copied().unwrap_or(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of windows that never end.
    fn endless() -> impl Iterator<Item = f64> {
        core::iter::repeat(1.0)
    }

    #[test]
    fn what_is_late_of_long_continuations_is_not_missing_of_short_ones() {
        let mut coverage = Coverage::default();
        // Three of eight tokens are there, but for every eighth verdict, which finds nothing.
        for i in 0..2000 {
            let found = if i % 8 == 0 { 0 } else { 3 };
            coverage.observe(8, found, false, 1.0, endless());
        }
        for position in 0..3 {
            assert!((coverage.at(position) - 0.875).abs() < 0.05);
        }
        assert!((3..9).all(|position| coverage.at(position) < 0.01));
    }

    #[test]
    fn what_has_ended_says_nothing_of_what_would_have_followed() {
        let mut coverage = Coverage::default();
        (0..200).for_each(|_| coverage.observe(4, 1, false, 1.0, endless()));
        let before = coverage.clone();
        (0..200).for_each(|_| coverage.observe(4, 2, true, 1.0, endless()));
        assert!(coverage.at(1) > 0.99);
        assert!((coverage.at(2) - before.at(2)).abs() < 1e-12);
    }

    #[test]
    fn what_there_would_hardly_have_been_is_hardly_missing() {
        let there = |goes_on: f64| {
            let mut coverage = Coverage::default();
            for i in 0..4000 {
                let reached = [1.0, 1.0, goes_on, goes_on].into_iter();
                let found = if i % 2 == 0 { 2 } else { 4 };
                coverage.observe(4, found, false, 1.0, reached);
            }
            coverage.at(3)
        };
        assert!((there(1.0) - 0.5).abs() < 0.05);
        assert!(there(0.1) > 0.85);
    }

    #[test]
    fn positions_that_are_not_sought_any_more_become_like_the_last_one_that_is() {
        let mut coverage = Coverage::default();
        (0..200).for_each(|_| coverage.observe(4, 1, false, 1.0, endless()));
        (0..5000).for_each(|_| coverage.observe(2, 2, false, 1.0, endless()));
        assert!(coverage.at(3) > 0.95);
    }
}
