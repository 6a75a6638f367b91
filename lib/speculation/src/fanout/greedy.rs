//! Spending a budget one guess at a time on the row that gains most.

use alloc::vec::Vec;

/// Probability that exactly `accepted` tokens of a window of `window` are accepted, if each is with
/// probability `acceptance` given those before it (SSD, Theorem 12).
pub fn outcome_mass(acceptance: f64, window: u32, accepted: u32) -> f64 {
    let reached = libm::pow(acceptance, f64::from(accepted));
    if accepted < window {
        reached * (1.0 - acceptance)
    } else {
        reached
    }
}

/// Probability that the outcome is among the guesses, `counts[k]` of which are made after k
/// accepted tokens; `hit(k, F)` is the probability that the first F candidates of row k have the
/// decided token (SSD, Theorem 12).
pub fn hit_rate(acceptance: f64, counts: &[u32], hit: impl Fn(u32, u32) -> f64) -> f64 {
    let window = counts.len().saturating_sub(1) as u32;
    (0..)
        .zip(counts)
        .map(|(k, &count)| outcome_mass(acceptance, window, k) * hit(k, count))
        .sum()
}

/// Adds `budget` guesses to `counts`, one after the other where `gain(k, counts[k])` is largest:
/// what the next guess after k accepted tokens adds to the hit rate. Ties go to the fewest accepted
/// tokens; rows without gain get nothing, so that some of the budget may be left; the rest is
/// returned.
///
/// If gains fall with the count (hit rates are concave), no other spending of the budget has a
/// higher sum. Takes O(budget K).
pub fn greedy(counts: &mut [u32], budget: u32, gain: impl Fn(u32, u32) -> f64) -> u32 {
    for left in (1..=budget).rev() {
        let mut best = (0.0, None);
        for (k, count) in (0..).zip(counts.iter_mut()) {
            let gain = gain(k, *count);
            if gain > best.0 {
                best = (gain, Some(count));
            }
        }
        let Some(count) = best.1 else { return left };
        *count += 1;
    }
    0
}

/// Replaces `counts` by an even spread of `budget` over `rows` rows; what does not divide goes to
/// the fewest accepted tokens.
pub fn uniform(rows: usize, budget: u32, counts: &mut Vec<u32>) {
    counts.clear();
    let Some(each) = budget.checked_div(rows as u32) else {
        return;
    };
    let extra = (budget % rows as u32) as usize;
    counts.extend((0..rows).map(|k| each + u32::from(k < extra)));
}

#[cfg(test)]
mod tests {
    use std::{vec, vec::Vec};

    use super::*;
    use crate::noise::philox;

    /// The curve of the published vectors.
    fn half_over(count: u32) -> f64 {
        if count == 0 {
            0.0
        } else {
            1.0 - 0.5 / f64::from(count)
        }
    }

    fn spent(acceptance: f64, window: u32, budget: u32) -> (Vec<u32>, f64) {
        let mut counts = vec![0; window as usize + 1];
        let gain = |k, count| {
            outcome_mass(acceptance, window, k) * (half_over(count + 1) - half_over(count))
        };
        assert_eq!(greedy(&mut counts, budget, gain), 0);
        let hit = hit_rate(acceptance, &counts, |_, count| half_over(count));
        (counts, hit)
    }

    #[test]
    fn measured_curves_are_spent_as_in_the_worked_examples() {
        let (counts, hit) = spent(0.85, 7, 24);
        assert_eq!(counts, [3, 3, 3, 3, 3, 2, 2, 5]);
        assert!((hit - 0.8444).abs() < 5e-5, "{hit}");
        let (counts, hit) = spent(0.85, 4, 10);
        assert_eq!(counts, [2, 2, 2, 1, 3]);
        assert!((hit - 0.7705).abs() < 5e-5, "{hit}");
    }

    #[test]
    fn an_even_spread_hits_as_in_the_worked_examples() {
        let mut counts = Vec::new();
        for (window, budget, expected) in [(7, 24, 0.8333), (4, 10, 0.75)] {
            uniform(window + 1, budget, &mut counts);
            let hit = hit_rate(0.85, &counts, |_, count| half_over(count));
            assert!((hit - expected).abs() < 5e-5, "{hit}");
        }
        uniform(3, 8, &mut counts);
        assert_eq!(counts, [3, 3, 2]);
        uniform(0, 8, &mut counts);
        assert!(counts.is_empty());
    }

    #[test]
    fn no_other_spending_of_a_small_budget_hits_more_often() {
        let curve = |k: u32, count| 1.0 - libm::pow(f64::from(count) + 1.0, -1.0 - f64::from(k));
        for (acceptance, budget) in [(0.3, 5), (0.7, 6), (0.95, 7)] {
            let mut counts = [0; 4];
            let gain =
                |k, count| outcome_mass(acceptance, 3, k) * (curve(k, count + 1) - curve(k, count));
            greedy(&mut counts, budget, gain);
            let best = hit_rate(acceptance, &counts, curve);
            for code in 0..(budget + 1).pow(3) {
                let first = [0, 1, 2].map(|i| code / (budget + 1).pow(i) % (budget + 1));
                let Some(last) = budget.checked_sub(first.iter().sum()) else {
                    continue;
                };
                let other = [first[0], first[1], first[2], last];
                assert!(hit_rate(acceptance, &other, curve) <= best + 1e-12);
            }
        }
    }

    #[test]
    fn what_gains_nothing_is_not_bought() {
        let mut counts = [0, 0];
        let left = greedy(&mut counts, 9, |k, count| f64::from(count < k + 2));
        assert_eq!((counts, left), ([2, 3], 4));
        assert_eq!(greedy(&mut [], 3, |_, _| 1.0), 3);
        assert_eq!(greedy(&mut [0], 3, |_, _| f64::NAN), 3);
    }

    #[test]
    fn outcome_masses_add_up_to_one() {
        for i in 0..50 {
            let a = f64::from(philox([i, 0, 0, 0], [1, 1])[0]) / f64::from(u32::MAX);
            let sum: f64 = (0..=i).map(|k| outcome_mass(a, i, k)).sum();
            assert!((sum - 1.0).abs() < 1e-12);
        }
    }
}
