//! The closed form of Theorem 12 for power-law hit rates (SSD, arXiv 2603.03251).

use alloc::vec::Vec;

use super::{greedy, outcome_mass};

/// Bounds on what the closed form is used with: it divides by `1 - a` and takes roots by `1 + r`.
const ACCEPTANCE: (f64, f64) = (1e-3, 0.999);
const EXPONENT: (f64, f64) = (0.05, 20.0);

/// Misses that fall as a power of the number of guesses, `1 - h(F) = scale F^-exponent`
/// (Definition 11, with a scale: without one a single guess would never hit).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PowerLaw {
    /// Miss rate of one guess, from 0 to 1.
    pub scale: f64,
    /// How quickly it falls.
    pub exponent: f64,
}

impl PowerLaw {
    /// What is assumed of draft models until something is known.
    pub const TYPICAL: Self = Self {
        scale: 0.5,
        exponent: 1.0,
    };

    /// The least-squares line through the logarithms of measured miss rates, `misses[i]` being that
    /// of i + 1 guesses; [`Self::TYPICAL`] in what fewer than two positive rates leave open.
    pub fn fit(misses: impl IntoIterator<Item = f64>) -> Self {
        let (mut n, mut x, mut xx, mut y, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for (guesses, miss) in (1..).zip(misses) {
            if miss > 0.0 {
                let (log_guesses, log_miss) = (libm::log(f64::from(guesses)), libm::log(miss));
                n += 1.0;
                x += log_guesses;
                xx += log_guesses * log_guesses;
                y += log_miss;
                xy += log_guesses * log_miss;
            }
        }
        let determinant = n * xx - x * x;
        if determinant <= 1e-9 {
            return Self::TYPICAL;
        }
        let exponent = ((x * y - n * xy) / determinant).clamp(EXPONENT.0, EXPONENT.1);
        let scale = libm::exp((y + exponent * x) / n).clamp(1e-6, 1.0);
        Self { scale, exponent }
    }

    /// `h(F)`: probability that the decided token is among the first `guesses` candidates.
    pub fn hit(self, guesses: u32) -> f64 {
        if guesses == 0 {
            0.0
        } else {
            1.0 - self.scale * libm::pow(f64::from(guesses), -self.exponent)
        }
    }
}

/// The best spread of a budget when every token of a window of `window` is accepted with
/// probability `acceptance` and misses fall as `F^-exponent`:
///
/// ```text
/// F_k = F_0 b^k (k < K),  F_K = F_0 b^K ((1 - a) / s)^(-1/(1+r)),  b = a^(1/(1+r))
/// F_0 = B / N,  N = (1 - b^K) / (1 - b) + b^K ((1 - a) / s)^(-1/(1+r))
/// ```
///
/// where `s = last_scale` is the scale of the last row's miss rate over that of the others (the
/// paper's form has 1). The last row is worth more because all of `a^K` is on it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Geometric {
    /// Probability that a token is accepted given those before it.
    pub acceptance: f64,
    /// Exponent r of the miss rate.
    pub exponent: f64,
    /// Miss rate after the whole window over the miss rate at other rows, for the same number of
    /// guesses.
    pub last_scale: f64,
    /// Tokens of the window.
    pub window: u32,
}

impl Geometric {
    /// The paper's form, all rows alike.
    pub fn new(acceptance: f64, exponent: f64, window: u32) -> Self {
        Self {
            acceptance,
            exponent,
            last_scale: 1.0,
            window,
        }
    }

    /// Guesses after `accepted` tokens for a budget of `budget`, not rounded.
    pub fn share(&self, budget: f64, accepted: u32) -> f64 {
        budget / self.total() * self.relative(accepted)
    }

    /// The highest hit rate that `budget` guesses can have, `1 - (1 - a) N^(1+r) B^-r`, in the
    /// theorem's own setting: scale 1 and fractions of guesses.
    pub fn optimum(&self, budget: f64) -> f64 {
        let r = self.exponent();
        1.0 - (1.0 - self.acceptance()) * libm::pow(self.total(), 1.0 + r) * libm::pow(budget, -r)
    }

    /// Replaces `counts` by whole numbers of guesses, one a row: the closed form rounded down, and
    /// what that leaves spent greedily on the same curves, with `scale` the miss rate of one guess.
    /// A row gets `most(k)` guesses at most, the number of its candidates.
    pub fn counts(
        &self,
        budget: u32,
        scale: f64,
        most: impl Fn(u32) -> u32,
        counts: &mut Vec<u32>,
    ) {
        counts.clear();
        let whole = |k| libm::floor(self.share(f64::from(budget), k)) as u32;
        counts.extend((0..=self.window).map(|k| whole(k).min(most(k))));
        // Rounding errors must not spend more than there is.
        let left = budget.saturating_sub(counts.iter().sum());
        let curve = |k| PowerLaw {
            scale: if k < self.window {
                scale
            } else {
                (scale * self.last_scale).min(1.0)
            },
            exponent: self.exponent(),
        };
        greedy(counts, left, |k, count| {
            let gain = curve(k).hit(count + 1) - curve(k).hit(count);
            if count < most(k) {
                outcome_mass(self.acceptance(), self.window, k) * gain
            } else {
                0.0
            }
        });
    }

    fn acceptance(&self) -> f64 {
        self.acceptance.clamp(ACCEPTANCE.0, ACCEPTANCE.1)
    }

    fn exponent(&self) -> f64 {
        self.exponent.clamp(EXPONENT.0, EXPONENT.1)
    }

    /// Guesses after `accepted` tokens, over those after none.
    fn relative(&self, accepted: u32) -> f64 {
        let root = 1.0 / (1.0 + self.exponent());
        let power = libm::pow(self.acceptance(), root * f64::from(accepted));
        if accepted < self.window {
            return power;
        }
        let last = (1.0 - self.acceptance()) / self.last_scale.clamp(1e-6, 1e6);
        power * libm::pow(last, -root)
    }

    /// N of the closed form.
    fn total(&self) -> f64 {
        (0..=self.window).map(|k| self.relative(k)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::{fanout::hit_rate, noise::philox};

    fn shares(geometric: &Geometric, budget: f64) -> Vec<f64> {
        let share = |k| geometric.share(budget, k);
        (0..=geometric.window).map(share).collect()
    }

    /// Theorem 12 for fractions of guesses and misses `F^-r`.
    fn hit(geometric: &Geometric, shares: &[f64]) -> f64 {
        let miss = |share: f64| libm::pow(share, -geometric.exponent);
        (0..)
            .zip(shares)
            .map(|(k, &share)| {
                outcome_mass(geometric.acceptance, geometric.window, k) * (1.0 - miss(share))
            })
            .sum()
    }

    #[test]
    fn the_closed_form_gives_the_worked_examples() {
        let cases: [(Geometric, f64, &[f64], f64, f64); 3] = [
            (
                Geometric::new(0.85, 1.0, 7),
                24.0,
                &[3.42, 3.15, 2.91, 2.68, 2.47, 2.28, 2.10, 5.00],
                0.692,
                0.667,
            ),
            (
                Geometric::new(0.70, 0.5, 5),
                24.0,
                &[6.05, 4.77, 3.76, 2.97, 2.34, 4.11],
                0.516,
                0.500,
            ),
            (
                Geometric::new(0.60, 2.0, 4),
                40.0,
                &[10.41, 8.78, 7.41, 6.25, 7.15],
                0.986,
                0.984,
            ),
        ];
        for (geometric, budget, expected, best, even) in cases {
            let shares = shares(&geometric, budget);
            for (share, expected) in shares.iter().zip(expected) {
                assert!((share - expected).abs() < 5e-3, "{shares:?}");
            }
            assert!((shares.iter().sum::<f64>() - budget).abs() < 1e-9);
            let found = hit(&geometric, &shares);
            assert!((found - best).abs() < 5e-4, "{found}");
            assert!((geometric.optimum(budget) - found).abs() < 1e-12);
            let rows = shares.len() as f64;
            let uniform: Vec<f64> = shares.iter().map(|_| budget / rows).collect();
            assert!((hit(&geometric, &uniform) - even).abs() < 5e-4);
        }
    }

    #[test]
    fn no_perturbation_of_the_closed_form_hits_more_often() {
        let unit = |i, j| f64::from(philox([i, j, 0, 0], [5, 9])[0]) / f64::from(u32::MAX);
        for i in 0..20_000 {
            let a = 0.05 + 0.9 * unit(i, 0);
            let geometric = Geometric::new(a, 0.2 + 2.8 * unit(i, 1), 1 + i % 9);
            let budget = 10.0 + 50.0 * unit(i, 2);
            let best = shares(&geometric, budget);
            let moved: Vec<f64> = (3..)
                .zip(&best)
                .map(|(j, share)| share * (0.7 + 0.6 * unit(i, j)))
                .collect();
            let scale = budget / moved.iter().sum::<f64>();
            let moved: Vec<f64> = moved.iter().map(|share| share * scale).collect();
            assert!(hit(&geometric, &moved) <= hit(&geometric, &best) + 1e-12);
        }
    }

    #[test]
    fn whole_numbers_spend_the_budget_and_come_close_to_the_optimum() {
        let mut counts = Vec::new();
        for i in 0..300 {
            let unit = |j| f64::from(philox([i, j, 0, 0], [5, 8])[0]) / f64::from(u32::MAX);
            let geometric = Geometric {
                last_scale: 0.5 + unit(3),
                ..Geometric::new(unit(0), 3.0 * unit(1), i % 9)
            };
            let budget = i % 50;
            geometric.counts(budget, 0.5, |_| 64, &mut counts);
            assert_eq!(counts.iter().sum::<u32>(), budget);
            assert_eq!(counts.len(), geometric.window as usize + 1);
        }
        let geometric = Geometric::new(0.85, 1.0, 7);
        geometric.counts(24, 0.5, |_| 64, &mut counts);
        let best = hit_rate(0.85, &[3, 3, 3, 3, 3, 2, 2, 5], |_, f| {
            PowerLaw::TYPICAL.hit(f)
        });
        let found = hit_rate(0.85, &counts, |_, f| PowerLaw::TYPICAL.hit(f));
        assert!(found > best - 0.002, "{counts:?}: {found}, best {best}");
    }

    #[test]
    fn rows_get_no_more_than_they_have_candidates() {
        let mut counts = Vec::new();
        let geometric = Geometric::new(0.9, 1.0, 3);
        geometric.counts(40, 0.5, |k| if k == 3 { 4 } else { 100 }, &mut counts);
        assert_eq!(counts[3], 4);
        assert_eq!(counts.iter().sum::<u32>(), 40);
        geometric.counts(40, 0.5, |_| 2, &mut counts);
        assert_eq!(counts, [2, 2, 2, 2]);
    }

    #[test]
    fn a_last_row_that_misses_more_gets_more() {
        let with = |last_scale| Geometric {
            last_scale,
            ..Geometric::new(0.8, 1.0, 4)
        };
        let last = |scale| with(scale).share(20.0, 4);
        assert!(last(0.25) < last(1.0) && last(1.0) < last(4.0));
        // F_K is to be multiplied by the root of the scale, before the shares are made to fit.
        let ratio = (last(4.0) / with(4.0).share(20.0, 0)) / (last(1.0) / with(1.0).share(20.0, 0));
        assert!((ratio - 2.0).abs() < 1e-12);
    }

    #[test]
    fn power_laws_are_found_again_in_their_own_miss_rates() {
        for law in [
            PowerLaw {
                scale: 0.4,
                exponent: 1.7,
            },
            PowerLaw::TYPICAL,
        ] {
            let fit = PowerLaw::fit((1..20).map(|f| 1.0 - law.hit(f)));
            assert!((fit.scale - law.scale).abs() < 1e-9);
            assert!((fit.exponent - law.exponent).abs() < 1e-9);
        }
        assert_eq!(PowerLaw::fit([]), PowerLaw::TYPICAL);
        assert_eq!(PowerLaw::fit([0.3, 0.0]), PowerLaw::TYPICAL);
    }
}
