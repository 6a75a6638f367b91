use std::{vec, vec::Vec};

use super::*;
use crate::{
    Seed,
    fanout::{FanOut, Guess, Planner, Prior},
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

/// What a branch draws from these rows and keeps of them, with `n` candidates beside each token.
fn branch(rows: &[Vec<f32>], mut sampler: Sampler, n: usize) -> (Vec<TokenId>, Candidates) {
    let by = RankBy::Noise(Domain::Coupled);
    let (mut tokens, mut kept) = (Vec::new(), Candidates::new(by, n));
    let mut drawn = Candidates::new(by, n);
    for row in rows {
        drawn.clear();
        tokens.push(drawn.draw(&sampler, &mut Scratch::new(), row));
        sampler.push(tokens[tokens.len() - 1]);
        kept.keep(&drawn.row(0).unwrap());
    }
    (tokens, kept)
}

#[test]
fn what_a_branch_saw_is_what_a_glue_pass_over_its_tokens_ranks() {
    let close = |a: f64, b: f64| {
        let alike = a.is_nan() && b.is_nan() || a.total_cmp(&b).is_eq();
        alike || (a - b).abs() < 1e-12
    };
    let mut scratch = Scratch::new();
    for (temperature, top_k) in [(0.0, 0), (1.0, 0), (1.0, 3)] {
        let params = SamplingParams {
            temperature,
            top_k,
            ..SamplingParams::default()
        };
        let new = || Sampler::new(params.clone(), Seed(5), &[TokenId(1), TokenId(2)], 1).unwrap();
        let rows: Vec<Vec<f32>> = (0..4).map(|seed| logits(70 + seed, 30)).collect();
        let (tokens, kept) = branch(&rows, new(), 8);
        // The window may be all that was drawn, whose last token was not read, or less.
        for len in 1..=4 {
            let window: Proposals = tokens[..len].into();
            let mut sampler = new();
            let mut recalled = Candidates::new(RankBy::Noise(Domain::Coupled), 8);
            assert!(recalled.recall(&window, kept.rows()));
            assert_eq!(recalled.is_open(), len == 4);
            let last = logits(99, 30);
            let row = |k: usize| rows.get(k).unwrap_or(&last);
            if recalled.is_open() {
                let unread = recalled.row(len).unwrap().candidates;
                assert!(unread.iter().all(|c| c.token == Candidates::UNREAD));
                assert_eq!(unread.len(), 8);
                for &token in &tokens {
                    sampler.push(token);
                }
                recalled.read_last(&sampler, &mut scratch, &last);
                sampler.truncate(2);
            }
            let mut glued = Candidates::new(RankBy::Noise(Domain::Coupled), 8);
            glued.rank(&mut sampler, &mut scratch, &window, |k| &row(k)[..]);
            assert_eq!(recalled.window(), glued.window());
            assert_eq!(recalled.rows().len(), len + 1);
            for (own, other) in recalled.rows().zip(glued.rows()) {
                assert_eq!(own.proposed, other.proposed);
                assert!(close(own.margin, other.margin));
                assert!(own.candidates.len() >= other.candidates.len());
                for (own, other) in own.candidates.iter().zip(other.candidates) {
                    assert_eq!(own.token, other.token);
                    assert!(close(own.gap, other.gap), "{own:?} {other:?}");
                }
            }
        }
    }
}

#[test]
fn nothing_is_recalled_for_what_a_branch_did_not_draw() {
    let rows: Vec<Vec<f32>> = (0..2).map(|seed| logits(70 + seed, 30)).collect();
    let (tokens, kept) = branch(&rows, sampler(1.0), 4);
    let other = TokenId((tokens[1].0 + 1) % 30);
    let mut tree: Proposals = tokens[..].into();
    tree.push(0, other).unwrap();
    let longer = [&tokens[..], &[other]].concat();
    for window in [[tokens[0], other][..].into(), tree, longer[..].into()] {
        let mut candidates = Candidates::new(RankBy::Noise(Domain::Coupled), 4);
        assert!(!candidates.recall(&window, kept.rows()));
        assert_eq!(candidates.rows().len(), 0);
        assert!(candidates.window().is_empty() && !candidates.is_open());
    }
}

#[test]
fn a_verdict_teaches_nothing_of_a_row_that_was_not_read() {
    let rows: Vec<Vec<f32>> = (0..2).map(|seed| logits(70 + seed, 30)).collect();
    let (tokens, kept) = branch(&rows, sampler(1.0), 4);
    let mut candidates = Candidates::new(RankBy::Noise(Domain::Coupled), 4);
    assert!(candidates.recall(&tokens[..].into(), kept.rows()));
    let mut planner = Planner::new(FanOut::Learned, Prior::default());
    let mut guesses = Vec::new();
    planner.plan(&candidates, 8, &mut guesses);
    let unread = |guess: &&Guess| guess.key.accepted == 2;
    let ranks: Vec<u32> = guesses.iter().filter(unread).map(|g| g.rank).collect();
    assert!(ranks.len() > 1, "outcomes after the window are planned for");
    assert!((0..).zip(&ranks).all(|(i, &rank)| i == rank));
    candidates.drop_open();
    assert_eq!(candidates.rows().len(), 2);
    let before = planner.estimates().misses(true, 1);
    for token in 0..30 {
        let key = OutcomeKey {
            accepted: 2,
            token: TokenId(token),
        };
        assert_eq!(planner.observe(&candidates, key), None);
    }
    let after = planner.estimates().misses(true, 1);
    assert!((before - after).abs() < 1e-12);
    assert!(planner.estimates().acceptance() > Prior::default().acceptance);
}
