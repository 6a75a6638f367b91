use std::{vec, vec::Vec};

use super::*;
use crate::{
    Seed,
    noise::{Domain, Noise, philox},
    sampling::SamplingParams,
};

fn logits(seed: u32, vocab: u32) -> Vec<f32> {
    let word = |v| philox([v, seed, 0, 0], [4, 4])[0];
    (0..vocab)
        .map(|v| 3.0 * (word(v) as f32 / u32::MAX as f32))
        .collect()
}

fn sampler(temperature: f32) -> Sampler {
    let params = SamplingParams {
        temperature,
        presence_penalty: 0.7,
        ..SamplingParams::default()
    };
    Sampler::new(params, Seed(11), &[TokenId(1), TokenId(2)], 1).unwrap()
}

#[test]
fn rows_see_the_tokens_and_the_noise_of_their_own_position() {
    let rows: Vec<Vec<f32>> = (0..4).map(|seed| logits(seed, 40)).collect();
    let window = [5, 6, 7].map(TokenId);
    let (mut sampler, mut scratch) = (sampler(0.9), Scratch::new());
    let mut candidates = Candidates::new(RankBy::Noise(Domain::Coupled), 39);
    candidates.rank(&mut sampler, &mut scratch, &window[..].into(), |k| &rows[k]);
    assert_eq!(sampler.history().len(), 2);
    assert_eq!(candidates.window().len(), 3);
    for (k, row) in candidates.rows().enumerate() {
        // By hand: the penalty is that of the tokens before, the noise that of position 2 + k.
        let noise = Noise::new(Seed(11), Domain::Coupled, 2 + k as u32);
        let mut output = vec![TokenId(2)];
        output.extend(&window[..k]);
        let score = |v: u32| {
            let penalty = if output.contains(&TokenId(v)) {
                0.7
            } else {
                0.0
            };
            f64::from(rows[k][v as usize] - penalty) * (1.0 / f64::from(0.9_f32))
                + noise.gumbel(TokenId(v))
        };
        let mut order: Vec<u32> = (0..40)
            .filter(|&v| window.get(k) != Some(&TokenId(v)))
            .collect();
        order.sort_by(|&a, &b| score(b).total_cmp(&score(a)));
        order.truncate(39);
        let listed: Vec<u32> = row.candidates.iter().map(|c| c.token.0).collect();
        assert_eq!(listed, order);
        for candidate in row.candidates {
            let gap = score(order[0]) - score(candidate.token.0);
            assert!((candidate.gap - gap).abs() < 1e-12);
        }
        assert_eq!(row.proposed, window.get(k).copied());
        match row.proposed {
            Some(token) => {
                let margin = score(token.0) - score(order[0]);
                assert!((row.margin - margin).abs() < 1e-12);
            }
            None => assert!(row.margin.is_nan()),
        }
    }
}

#[test]
fn what_the_window_proposes_is_no_candidate_where_it_could_only_be_accepted() {
    // Any target under coupled verification: the outcome's token is never the excluded one, and
    // with all other tokens listed the outcome is always found.
    let mut scratch = Scratch::new();
    for temperature in [0.0, 1.0] {
        for seed in 0..200 {
            let draft: Vec<Vec<f32>> = (0..4).map(|k| logits(100 + 10 * seed + k, 12)).collect();
            let target: Vec<Vec<f32>> = (0..4)
                .map(|k| {
                    let other = logits(9000 + 10 * seed + k, 12);
                    let pairs = draft[k as usize].iter().zip(&other);
                    pairs.map(|(a, b)| a + 0.5 * b).collect()
                })
                .collect();
            let mut drafter = sampler(temperature);
            let mut window = Vec::new();
            for row in &draft[..3] {
                window.push(drafter.choose(row, &mut scratch));
                drafter.push(window[window.len() - 1]);
            }
            drafter.truncate(2);
            let mut candidates = Candidates::new(RankBy::Noise(Domain::Coupled), 12);
            candidates.rank(&mut drafter, &mut scratch, &window[..].into(), |k| {
                &draft[k]
            });
            let verdict = crate::verify::coupled_chain(
                &mut sampler(temperature),
                &mut scratch,
                &window,
                |k| &target[k],
            );
            let outcome = OutcomeKey {
                accepted: verdict.accepted as u32,
                token: verdict.decided,
            };
            let row = candidates.row(verdict.accepted).unwrap();
            assert_ne!(row.proposed, Some(outcome.token));
            assert!(candidates.rank_of(outcome).is_some());
            // The draft drew what it proposes with the same noise, so nothing beats it.
            assert!(
                candidates
                    .rows()
                    .all(|row| row.proposed.is_none() || row.margin >= 0.0)
            );
        }
    }
}

#[test]
fn without_a_window_there_is_one_row_that_excludes_nothing() {
    let row = logits(3, 9);
    let mut candidates = Candidates::new(RankBy::Likelihood, 4);
    assert_eq!((candidates.window().len(), candidates.rows().len()), (0, 0));
    assert!(candidates.row(0).is_none());
    candidates.rank(
        &mut sampler(0.0),
        &mut Scratch::new(),
        &Proposals::new(),
        |_| &row,
    );
    assert_eq!((candidates.window().len(), candidates.rows().len()), (0, 1));
    let first = candidates.row(0).unwrap();
    assert_eq!((first.proposed, first.candidates.len()), (None, 4));
    candidates.clear();
    assert_eq!(candidates.rows().len(), 0);
}

#[test]
fn what_truncation_leaves_out_is_infinitely_far() {
    let params = SamplingParams {
        top_k: 2,
        ..SamplingParams::default()
    };
    let mut sampler = Sampler::new(params, Seed(1), &[TokenId(0)], 1).unwrap();
    let row = [1.0, 4.0, 3.0, 2.0];
    let mut candidates = Candidates::new(RankBy::Noise(Domain::Coupled), 4);
    // The proposal is one of the two that are kept, so a single kept candidate is left.
    let window = [TokenId(1)];
    candidates.rank(
        &mut sampler,
        &mut Scratch::new(),
        &window[..].into(),
        |_| &row,
    );
    let row = candidates.row(0).unwrap();
    let tokens: Vec<u32> = row.candidates.iter().map(|c| c.token.0).collect();
    assert_eq!(tokens, [2, 3, 0]);
    assert!(row.candidates[0].gap.abs() < 1e-12);
    assert!(row.candidates[1].gap.is_infinite() && row.candidates[2].gap.is_infinite());
}
