//! What a draft proposes from when verification is by ratio: a distribution short enough to send.
//!
//! The draft cuts its distribution to the likeliest tokens, may lower some of them
//! ([`Saguaro`](crate::saguaro::Saguaro)), draws, and sends what it drew from. Nothing is lost by
//! cutting: verification by ratio is exact for whatever distribution the proposals really come
//! from (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.5).

use alloc::vec::Vec;

use crate::{TokenId, message::SparseDistribution};

/// Replaces `q` by the `n` likeliest tokens of `probabilities` (one value per entry of the
/// vocabulary; the lower id among equals), made to sum to 1. Tokens without mass are left out.
pub fn likeliest(probabilities: &[f64], n: usize, q: &mut SparseDistribution) {
    let entries = &mut q.entries;
    entries.clear();
    if n == 0 {
        return;
    }
    for (index, &probability) in probabilities.iter().enumerate() {
        let probability = probability as f32;
        let worst = entries.last().map_or(0.0, |entry: &(TokenId, f32)| entry.1);
        if probability > 0.0 && (entries.len() < n || probability > worst) {
            let place = entries.partition_point(|entry| entry.1 >= probability);
            entries.truncate(n - 1);
            entries.insert(place, (TokenId(index as u32), probability));
        }
    }
    entries.sort_unstable_by_key(|entry| entry.0);
    normalise(entries);
}

/// The token that a uniform number in (0, 1) stands for, by ascending token; `None` if `q` is empty.
pub fn draw(q: &SparseDistribution, uniform: f64) -> Option<TokenId> {
    let mut left = uniform * total(&q.entries);
    let mut drawn = None;
    for &(token, probability) in &q.entries {
        if probability > 0.0 {
            drawn = Some(token);
            if left < f64::from(probability) {
                break;
            }
            left -= f64::from(probability);
        }
    }
    drawn
}

/// Makes probabilities sum to 1, up to rounding. All zero they stay as they are.
pub(crate) fn normalise(entries: &mut Vec<(TokenId, f32)>) {
    let total = total(entries);
    if total > 0.0 {
        for entry in entries {
            entry.1 = (f64::from(entry.1) / total) as f32;
        }
    }
}

fn total(entries: &[(TokenId, f32)]) -> f64 {
    entries.iter().map(|entry| f64::from(entry.1)).sum()
}

#[cfg(test)]
mod tests {
    use std::{vec, vec::Vec};

    use super::*;
    use crate::noise::philox;

    #[test]
    fn the_likeliest_are_those_of_sorting_everything() {
        let mut q = SparseDistribution::default();
        for i in 0..200 {
            let word = |j| f64::from(philox([i, j, 0, 0], [2, 6])[0] % 50);
            let weights: Vec<f64> = (0..40).map(word).collect();
            let total: f64 = weights.iter().sum();
            let p: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
            let mut order: Vec<usize> = (0..40).filter(|&t| p[t] > 0.0).collect();
            order.sort_by(|&a, &b| p[b].total_cmp(&p[a]).then(a.cmp(&b)));
            order.truncate(i as usize % 12);
            let kept: f64 = order.iter().map(|&t| p[t]).sum();
            order.sort_unstable();
            likeliest(&p, i as usize % 12, &mut q);
            let tokens: Vec<usize> = q.entries.iter().map(|entry| entry.0.index()).collect();
            assert_eq!(tokens, order);
            for (token, probability) in &q.entries {
                assert!((f64::from(*probability) - p[token.index()] / kept).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn draws_follow_the_distribution() {
        let entries = vec![(TokenId(3), 0.25), (TokenId(5), 0.5), (TokenId(9), 0.25)];
        let q = SparseDistribution { entries };
        let mut counts = [0; 10];
        for i in 0..4000 {
            let token = draw(&q, (f64::from(i) + 0.5) / 4000.0).unwrap();
            counts[token.index()] += 1;
        }
        assert_eq!((counts[3], counts[5], counts[9]), (1000, 2000, 1000));
        assert_eq!(draw(&q, 1.0), Some(TokenId(9)));
        assert_eq!(draw(&SparseDistribution::default(), 0.5), None);
    }
}
