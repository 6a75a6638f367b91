//! Randomness of verification by ratio.

use crate::{
    Seed,
    noise::{Domain, Noise},
};

/// Random decisions, one after the other.
pub trait Coins {
    /// True with this probability (always if it is 1 or more).
    fn accept(&mut self, probability: f64) -> bool;

    /// An index drawn with probability proportional to its weight; 0 if there is no weight at all.
    fn pick(&mut self, weights: &[f64]) -> usize;
}

/// Decisions of one verification.
///
/// Keyed by the position the window starts at and by the number of the verification. The position
/// alone would not do: noise that the draft's proposals were sampled with, or that was consulted in
/// an earlier round, is not independent of what is being decided, and the output would no longer
/// follow the target's law.
#[derive(Clone, Debug)]
pub struct RoundCoins {
    noise: Noise,
    draws: u32,
}

impl RoundCoins {
    /// Decisions of the `verification`-th verification of a request, for a window that starts at
    /// `position`.
    pub fn new(seed: Seed, position: u32, verification: u32) -> Self {
        Self {
            noise: Noise::of_round(seed, Domain::Verify, position, verification),
            draws: 0,
        }
    }

    fn uniform(&mut self) -> f64 {
        let draw = self.draws;
        self.draws = draw.wrapping_add(1);
        self.noise.uniform(draw)
    }
}

impl Coins for RoundCoins {
    fn accept(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }

    fn pick(&mut self, weights: &[f64]) -> usize {
        let mut left = self.uniform() * weights.iter().sum::<f64>();
        let mut last = 0;
        for (index, &weight) in weights.iter().enumerate() {
            if weight > 0.0 {
                last = index;
                if left < weight {
                    break;
                }
                left -= weight;
            }
        }
        last
    }
}
