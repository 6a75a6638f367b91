//! What a draft proposes from when verification is by ratio: a distribution short enough to send.
//!
//! The draft cuts its distribution to the likeliest tokens, may lower some of them
//! ([`Saguaro`](crate::saguaro::Saguaro)), draws, and sends what it drew from. Nothing is lost by
//! cutting: verification by ratio is exact for whatever distribution the proposals really come
//! from (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.5).

use alloc::vec::Vec;

use crate::{TokenId, message::SparseDistribution};

/// Weight of the likeliest token. Others are rounded to whole numbers, which moves at most a
/// thousandth of the mass and keeps most of them to a byte on the wire.
const TOP_WEIGHT: f64 = 4095.0;

/// Replaces `q` by the `n` likeliest tokens of `probabilities` (one value per entry of the
/// vocabulary, in any unit; the lower id among equals). Tokens that are thousands of times less
/// likely than the likeliest are left out.
pub fn likeliest(probabilities: &[f64], n: usize, q: &mut SparseDistribution) {
    q.entries.clear();
    let top = probabilities.iter().copied().fold(0.0, f64::max);
    if n == 0 || !(top > 0.0 && top < f64::INFINITY) {
        return;
    }
    let least = 0.5 / TOP_WEIGHT * top;
    let mut best: Vec<(TokenId, f64)> = Vec::with_capacity(n.min(64) + 1);
    for (index, &probability) in probabilities.iter().enumerate() {
        let worst = best.last().map_or(0.0, |entry| entry.1);
        if probability >= least && (best.len() < n || probability > worst) {
            let place = best.partition_point(|entry| entry.1 >= probability);
            best.truncate(n - 1);
            best.insert(place, (TokenId(index as u32), probability));
        }
    }
    best.sort_unstable_by_key(|entry| entry.0);
    let weight = |probability: f64| libm::round(probability / top * TOP_WEIGHT) as u32;
    let entries = best.iter().map(|&(token, p)| (token, weight(p).max(1)));
    q.entries.extend(entries);
}

/// The token that a uniform number in (0, 1) stands for, by ascending token; `None` if `q` is empty.
pub fn draw(q: &SparseDistribution, uniform: f64) -> Option<TokenId> {
    let mut left = uniform * q.total();
    let mut drawn = None;
    for &(token, weight) in &q.entries {
        let weight = f64::from(weight);
        if weight > 0.0 {
            drawn = Some(token);
            if left < weight {
                break;
            }
            left -= weight;
        }
    }
    drawn
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
            let mut order: Vec<usize> = (0..40).filter(|&t| weights[t] > 0.0).collect();
            order.sort_by(|&a, &b| weights[b].total_cmp(&weights[a]).then(a.cmp(&b)));
            order.truncate(i as usize % 12);
            let kept: f64 = order.iter().map(|&t| weights[t]).sum();
            order.sort_unstable();
            likeliest(&weights, i as usize % 12, &mut q);
            let tokens: Vec<usize> = q.entries.iter().map(|entry| entry.0.index()).collect();
            assert_eq!(tokens, order);
            for &token in &order {
                let expected = weights[token] / kept;
                let found = q.probability(TokenId(token as u32));
                assert!((found - expected).abs() < 1e-3, "{found} {expected}");
            }
            assert!(q.entries.iter().all(|entry| entry.1 <= 4095));
        }
    }

    #[test]
    fn what_nearly_never_comes_is_left_out() {
        let mut q = SparseDistribution::default();
        likeliest(&[1e-9, 0.6, 0.4, 0.0, 0.6 / 8000.0], 9, &mut q);
        assert_eq!(
            q.entries,
            [(TokenId(1), 4095), (TokenId(2), 2730), (TokenId(4), 1)]
        );
        for nothing in [&[0.0, 0.0][..], &[], &[f64::INFINITY, 1.0]] {
            likeliest(nothing, 9, &mut q);
            assert!(q.entries.is_empty());
        }
    }

    #[test]
    fn draws_follow_the_distribution() {
        let entries = vec![(TokenId(3), 1), (TokenId(5), 2), (TokenId(9), 1)];
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
