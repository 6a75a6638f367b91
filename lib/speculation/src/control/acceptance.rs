//! Acceptance by position, learned online.

use alloc::vec::Vec;

use crate::tally::Tally;

/// Weight that an observation keeps with each later one of the same position: about the last 200
/// rounds count.
const MEMORY: f64 = 0.995;
/// Observations that the assumption for an unseen position is worth.
const PRIOR_WEIGHT: f64 = 4.0;
/// Assumed acceptance of the first position.
const PRIOR: f64 = 0.7;

/// The probability that the i-th token of a window is accepted given that those before it were.
///
/// Positions after the first rejection are censored: they were never tried, so they count neither
/// way. A position that was seldom reached is assumed to be like the one before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Acceptance {
    positions: Vec<Tally>,
    /// Assumed of the first position.
    prior: f64,
}

impl Default for Acceptance {
    fn default() -> Self {
        Self::assuming(PRIOR)
    }
}

impl Acceptance {
    /// Assumes this of the first position until something is seen.
    pub(super) fn assuming(prior: f64) -> Self {
        Self {
            positions: Vec::new(),
            prior,
        }
    }

    /// Takes in a window of `drafted` tokens of which the first `accepted` were accepted.
    pub fn observe(&mut self, drafted: u32, accepted: u32) {
        let accepted = accepted.min(drafted) as usize;
        let tried = (accepted + 1).min(drafted as usize);
        if self.positions.len() < tried {
            self.positions.resize(tried, Tally::default());
        }
        for (position, tally) in self.positions[..tried].iter_mut().enumerate() {
            tally.observe(position < accepted, MEMORY);
        }
    }

    /// Acceptance of the tokens at positions 0, 1, .. given those before; without end.
    pub fn by_position(&self) -> impl Iterator<Item = f64> {
        let unseen = core::iter::repeat(Tally::default());
        self.positions
            .iter()
            .copied()
            .chain(unseen)
            .scan(self.prior, |previous, tally| {
                *previous = tally.estimate(*previous, PRIOR_WEIGHT);
                Some(*previous)
            })
    }

    /// Probability that the tokens up to position 0, 1, .. are all accepted; without end.
    pub fn reached(&self) -> impl Iterator<Item = f64> {
        self.by_position().scan(1.0, |reached, accepted| {
            *reached *= accepted;
            Some(*reached)
        })
    }

    /// Probability that the token after so many others of a window is accepted, and all of them.
    pub fn chance(&self, before: u32) -> f64 {
        self.reached().nth(before as usize).unwrap_or_default()
    }

    /// Expected tokens a round with lookahead `k` emits: the accepted ones and the decided one.
    pub fn expected(&self, k: u32) -> f64 {
        1.0 + self.reached().take(k as usize).sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(acceptance: &Acceptance, position: usize) -> f64 {
        acceptance.by_position().nth(position).unwrap()
    }

    #[test]
    fn positions_after_the_first_rejection_do_not_count() {
        let mut acceptance = Acceptance::default();
        for _ in 0..2000 {
            acceptance.observe(4, 1);
        }
        assert!(at(&acceptance, 0) > 0.97);
        assert!(at(&acceptance, 1) < 0.03);
        assert_eq!(acceptance.positions.len(), 2);
    }

    #[test]
    fn full_acceptance_counts_no_position_beyond_the_window() {
        let mut acceptance = Acceptance::default();
        acceptance.observe(2, 2);
        assert_eq!(acceptance.positions.len(), 2);
        acceptance.observe(0, 0);
        assert_eq!(acceptance.positions.len(), 2);
    }

    #[test]
    fn unseen_positions_are_like_the_last_seen_one() {
        let mut acceptance = Acceptance::default();
        for _ in 0..2000 {
            acceptance.observe(1, 1);
        }
        assert!((at(&acceptance, 7) - at(&acceptance, 0)).abs() < 1e-12);
    }

    #[test]
    fn constant_acceptance_gives_the_geometric_sum() {
        // (1 - a^(K+1)) / (1 - a), Leviathan et al. 2023, eq. 1, at the assumed a.
        let acceptance = Acceptance::default();
        for k in 0..8 {
            let exact = (1.0 - libm::pow(PRIOR, f64::from(k + 1))) / (1.0 - PRIOR);
            assert!((acceptance.expected(k) - exact).abs() < 1e-12);
        }
    }

    #[test]
    fn new_behaviour_replaces_old() {
        let mut acceptance = Acceptance::default();
        (0..5000).for_each(|_| acceptance.observe(1, 1));
        (0..1000).for_each(|_| acceptance.observe(1, 0));
        assert!(at(&acceptance, 0) < 0.05);
    }
}
