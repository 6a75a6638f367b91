use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::{
    Seed,
    sampling::{
        SamplingParams,
        tests::{any_params, any_row, ids, naive_support, row, sampler},
    },
};

/// The list by scoring and sorting everything, for a request without adjustments.
fn naive(
    logits: &[f32],
    params: &SamplingParams,
    noise: Option<Noise>,
    without: u32,
) -> Vec<Ranked> {
    let inverse = if params.is_greedy() {
        1.0
    } else {
        1.0 / f64::from(params.temperature)
    };
    let support = if params.is_greedy() {
        (0..logits.len()).collect()
    } else {
        naive_support(logits, params)
    };
    let possible = |i: &usize| logits[*i] > f32::NEG_INFINITY && *i != without as usize;
    let mut list: Vec<Ranked> = (0..logits.len())
        .filter(possible)
        .map(|i| {
            let token = TokenId(i as u32);
            let score =
                f64::from(logits[i]) * inverse + noise.map_or(0.0, |noise| noise.gumbel(token));
            let score = if support.contains(&i) {
                score
            } else {
                f64::NEG_INFINITY
            };
            Ranked { token, score }
        })
        .collect();
    list.sort_by(|a, b| {
        // Zeros of both signs are equal.
        let logit = |ranked: &Ranked| logits[ranked.token.index()] + 0.0;
        let by_logit = logit(b).total_cmp(&logit(a));
        let zero = a.score == f64::NEG_INFINITY && b.score == f64::NEG_INFINITY;
        b.score
            .total_cmp(&a.score)
            .then(if zero {
                by_logit
            } else {
                a.token.cmp(&b.token)
            })
            .then(a.token.cmp(&b.token))
    });
    list
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn the_list_is_that_of_scoring_and_sorting_every_token(
        params in any_params(), logits in any_row(), seed in any::<u64>(),
        n in 0..40_usize, without in 0..900_u32, position in 0..50_u32, greedy in any::<bool>(),
    ) {
        let params = SamplingParams {
            temperature: if greedy { 0.0 } else { params.temperature },
            ..params
        };
        let sampler = sampler(&params, seed, &ids(0..position), 2);
        let noise = Noise::new(Seed(seed), Domain::Coupled, position);
        let (mut scratch, mut best) = (Scratch::new(), Vec::new());
        for by in [RankBy::Noise(Domain::Coupled), RankBy::Likelihood] {
            let counts = by != RankBy::Likelihood && !greedy;
            let mut expected = naive(&logits, &params, counts.then_some(noise), without);
            expected.truncate(n);
            let ranking = Ranking { by, n, without: Some(TokenId(without)) };
            let score = sampler.rank(ranking, &logits, &mut scratch, &mut best);
            prop_assert_eq!(&best, &expected);
            let all = naive(&logits, &params, counts.then_some(noise), u32::MAX);
            let own = all.iter().find(|ranked| ranked.token.0 == without);
            if let Some(own) = own {
                prop_assert_eq!(score, Some(own.score));
            }
        }
    }

    #[test]
    fn the_first_of_the_list_is_the_choice(
        params in any_params(), logits in any_row(), seed in any::<u64>(), greedy in any::<bool>(),
        output in prop::collection::vec(0..30_u32, 0..12),
    ) {
        let params = SamplingParams {
            temperature: if greedy { 0.0 } else { params.temperature },
            repetition_penalty: 1.4,
            presence_penalty: 0.6,
            frequency_penalty: -0.2,
            logit_bias: vec![(TokenId(1), 2.0), (TokenId(7), -3.0)],
            banned_until_min: ids([0, 2]),
            min_tokens: 6,
            ..params
        };
        let sampler = sampler(&params, seed, &ids(output), 4);
        let (mut scratch, mut best) = (Scratch::new(), Vec::new());
        for domain in [Domain::Coupled, Domain::Propose] {
            let ranking = Ranking { by: RankBy::Noise(domain), n: 5, without: None };
            let score = sampler.rank(ranking, &logits, &mut scratch, &mut best);
            prop_assert_eq!(score, None);
            if let Some(first) = best.first() {
                prop_assert_eq!(first.token, sampler.choose_with(domain, &logits, &mut scratch));
            }
        }
    }

    #[test]
    fn any_logits_at_all_can_be_ranked(
        logits in prop::collection::vec(any::<f32>(), 0..200), params in any_params(), n in 0..9_usize,
    ) {
        let (mut scratch, mut best) = (Scratch::new(), Vec::new());
        for by in [RankBy::Noise(Domain::Coupled), RankBy::Likelihood] {
            let ranking = Ranking { by, n, without: Some(TokenId(3)) };
            sampler(&params, 9, &[], 0).rank(ranking, &logits, &mut scratch, &mut best);
            prop_assert!(best.len() <= n);
            prop_assert!(best.iter().all(|ranked| ranked.token.index() < logits.len()));
            prop_assert!(best.windows(2).all(|pair| pair[0].score >= pair[1].score));
        }
    }
}

#[test]
fn a_whole_vocabulary_is_ranked_as_by_sorting() {
    let (mut scratch, mut best) = (Scratch::new(), Vec::new());
    for seed in 0..20 {
        let logits = row(5000, seed, [0.0, 0.7, 1.5][seed as usize % 3]);
        let params = SamplingParams::default();
        let noise = Noise::new(Seed(3), Domain::Coupled, 0);
        let mut expected = naive(&logits, &params, Some(noise), 17);
        expected.truncate(32);
        let ranking = Ranking {
            by: RankBy::Noise(Domain::Coupled),
            n: 32,
            without: Some(TokenId(17)),
        };
        sampler(&params, 3, &[], 0).rank(ranking, &logits, &mut scratch, &mut best);
        assert_eq!(best, expected);
    }
}

#[test]
fn equal_scores_go_to_the_lower_id() {
    let (mut scratch, mut best) = (Scratch::new(), Vec::new());
    let top = f32::INFINITY;
    for params in [
        SamplingParams::default(),
        SamplingParams {
            top_k: 3,
            ..SamplingParams::default()
        },
        SamplingParams {
            temperature: 0.0,
            ..SamplingParams::default()
        },
    ] {
        let sampler = sampler(&params, 3, &[], 0);
        let ranking = Ranking {
            by: RankBy::Noise(Domain::Coupled),
            n: 3,
            without: None,
        };
        let logits = [0.0, top, top, 0.5, top, -1.0];
        sampler.rank(ranking, &logits, &mut scratch, &mut best);
        let tokens: Vec<u32> = best.iter().map(|ranked| ranked.token.0).collect();
        assert_eq!(tokens, [1, 2, 4]);
        assert_eq!(sampler.choose(&logits, &mut scratch), TokenId(1));
    }
}

#[test]
fn ranking_again_takes_no_new_memory() {
    let (mut scratch, mut best) = (Scratch::new(), Vec::new());
    let params = SamplingParams {
        top_p: 0.9,
        presence_penalty: 0.5,
        ..SamplingParams::default()
    };
    let sampler = sampler(&params, 3, &ids([1, 2, 3]), 1);
    let mut places = Vec::new();
    for seed in 0..40 {
        let ranking = Ranking {
            by: RankBy::Noise(Domain::Coupled),
            n: 16,
            without: Some(TokenId(seed)),
        };
        // The first rows keep most tokens, so that all buffers have grown once.
        let spread = if seed < 8 { 0.1 } else { 1.0 };
        sampler.rank(
            ranking,
            &row(3000, seed % 8, spread),
            &mut scratch,
            &mut best,
        );
        let Scratch {
            logits,
            bounds,
            keys,
            ..
        } = &scratch;
        places.push((
            best.as_ptr() as usize,
            logits.as_ptr() as usize,
            bounds.tops.as_ptr() as usize,
            keys.as_ptr() as usize,
        ));
    }
    assert!(places[8..].iter().all(|place| *place == places[8]));
}
