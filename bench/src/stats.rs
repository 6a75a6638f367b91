//! Medians, spreads and the order of interleaved arms.

use serde::{Deserialize, Serialize};

/// What several measurements of one figure came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Smallest value.
    pub min: f64,
    /// Middle value (mean of the two middle ones for an even count).
    pub median: f64,
    /// Largest value.
    pub max: f64,
    /// How many values there were.
    pub n: usize,
}

impl Summary {
    /// Summarises `values`; `None` if there are none.
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let n = sorted.len();
        let median = f64::midpoint(sorted[(n - 1) / 2], sorted[n / 2]);
        Some(Self {
            min,
            median,
            max,
            n,
        })
    }

    /// Of two arms, round by round: what those of `of` are over those of `to`.
    pub fn ratio(of: &[f64], to: &[f64]) -> Option<Self> {
        Self::of(&of.iter().zip(to).map(|(a, b)| a / b).collect::<Vec<_>>())
    }

    /// For tables: the median, and the lowest to the highest.
    pub fn span(&self) -> String {
        format!("{:.2} ({:.2} to {:.2})", self.median, self.min, self.max)
    }

    /// Half the range over the median: 0.05 reads "plus or minus 5 %".
    pub fn half_spread(&self) -> f64 {
        (self.max - self.min) / 2.0 / self.median
    }
}

/// The value below which `share` of `sorted` lies (nearest rank).
///
/// # Panics
/// Never; an empty slice gives NaN.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    if sorted.is_empty() {
        return f64::NAN;
    }
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Jain's index of fairness (Jain, Chiu and Hawe 1984): 1 if all are equal, 1/n if one has
/// everything.
pub fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (rates.len() as f64 * squares)
}

/// The order in which arm indices `0..arms` run in round `round`: rotated, so that no arm is
/// always first and a slow minute hits all alike.
pub fn arm_order(arms: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..arms).map(move |i| (i + round) % arms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_lies_between_the_middle_two() {
        let s = Summary::of(&[4.0, 1.0, 3.0, 2.0]).expect("values");
        assert_eq!((s.min, s.median, s.max, s.n), (1.0, 2.5, 4.0, 4));
        assert!((s.half_spread() - 0.6).abs() < 1e-12);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn ratios_are_of_the_rounds_and_not_of_the_medians() {
        let ratio = Summary::ratio(&[2.0, 6.0, 4.0], &[1.0, 6.0, 8.0]).expect("rounds");
        assert_eq!(ratio.span(), "1.00 (0.50 to 2.00)");
    }

    #[test]
    fn jains_index_is_one_for_equals_and_a_share_for_one_who_has_all() {
        assert!((jain(&[3.0, 3.0, 3.0, 3.0]) - 1.0).abs() < 1e-12);
        assert!((jain(&[5.0, 0.0, 0.0, 0.0]) - 0.25).abs() < 1e-12);
    }

    #[test]
    fn percentiles_use_the_nearest_rank() {
        let v: Vec<f64> = (1..=100).map(f64::from).collect();
        let at = |values: &[f64], share| percentile(values, share).to_bits();
        assert_eq!(at(&v, 0.99), 99.0_f64.to_bits());
        assert_eq!(at(&v, 1.0), 100.0_f64.to_bits());
        assert_eq!(at(&v[..1], 0.5), 1.0_f64.to_bits());
    }

    #[test]
    fn every_arm_runs_once_a_round_and_each_leads_in_turn() {
        let mut firsts = Vec::new();
        for round in 0..3 {
            let mut order: Vec<usize> = arm_order(3, round).collect();
            firsts.push(order[0]);
            order.sort_unstable();
            assert_eq!(order, [0, 1, 2]);
        }
        assert_eq!(firsts, [0, 1, 2]);
    }
}
