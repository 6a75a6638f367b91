mod drawn;

use std::{vec, vec::Vec};

use super::*;
use crate::{
    Seed, TokenId,
    fanout::PowerLaw,
    noise::{Domain, philox},
    sampling::{RankBy, Sampler, SamplingParams, Scratch},
    verify::coupled_chain,
};

fn sampler(temperature: f32, seed: u64) -> Sampler {
    let params = SamplingParams {
        temperature,
        ..SamplingParams::default()
    };
    Sampler::new(params, Seed(seed), &[TokenId(0)], 1).unwrap()
}

/// Candidates of greedy rows whose logits fall by one from token to token; the window proposes
/// token 0 everywhere.
fn flat(window: usize, n: usize) -> Candidates {
    let row: Vec<f32> = (0..50).map(|v| -(v as f32)).collect();
    let mut candidates = Candidates::new(RankBy::Likelihood, n);
    let window = vec![TokenId(0); window];
    candidates.rank(
        &mut sampler(0.0, 1),
        &mut Scratch::new(),
        &window[..].into(),
        |_| &row,
    );
    candidates
}

fn outcome(accepted: u32, token: u32) -> OutcomeKey {
    OutcomeKey {
        accepted,
        token: TokenId(token),
    }
}

fn counts(guesses: &[Guess], rows: usize) -> Vec<u32> {
    let mut counts = vec![0; rows];
    for guess in guesses {
        counts[guess.key.accepted as usize] += 1;
    }
    counts
}

#[test]
fn while_young_the_learned_fan_out_spends_as_the_worked_examples() {
    let prior = Prior {
        acceptance: 0.85,
        ranks: PowerLaw::TYPICAL,
    };
    let mut planner = Planner::new(FanOut::Learned, prior);
    let mut guesses = Vec::new();
    planner.plan(&flat(7, 32), 24, &mut guesses);
    assert_eq!(counts(&guesses, 8), [3, 3, 3, 3, 3, 2, 2, 5]);
    let hit: f64 = guesses.iter().map(|guess| guess.probability).sum();
    assert!((hit - 0.8444).abs() < 5e-5, "{hit}");
    planner.plan(&flat(4, 32), 10, &mut guesses);
    assert_eq!(counts(&guesses, 5), [2, 2, 2, 1, 3]);
}

#[test]
fn uniform_fan_out_spends_alike_on_all_rows_and_geometric_ever_less_until_the_last() {
    let spent = |fan_out| {
        let mut planner = Planner::new(fan_out, Prior::default());
        let mut guesses = Vec::new();
        planner.plan(&flat(7, 32), 24, &mut guesses);
        counts(&guesses, 8)
    };
    assert_eq!(spent(FanOut::Uniform), [3; 8]);
    let geometric = spent(FanOut::Geometric);
    assert!(geometric[..7].is_sorted_by(|a, b| a >= b), "{geometric:?}");
    assert!(geometric[0] > geometric[6], "{geometric:?}");
    assert!(geometric[7] > geometric[6], "{geometric:?}");
}

#[test]
fn guesses_come_likeliest_first_within_the_budget_and_once_each() {
    for fan_out in [FanOut::Uniform, FanOut::Geometric, FanOut::Learned] {
        let mut planner = Planner::new(fan_out, Prior::default());
        let mut guesses = Vec::new();
        for budget in [0, 1, 7, 24, 1000] {
            let candidates = flat(5, 8);
            planner.plan(&candidates, budget, &mut guesses);
            assert_eq!(guesses.len(), budget.min(48), "{fan_out:?}");
            assert!(
                guesses
                    .windows(2)
                    .all(|pair| pair[0].order(&pair[1]).is_lt())
            );
            assert!(guesses.iter().map(|guess| guess.probability).sum::<f64>() <= 1.0 + 1e-12);
            for guess in &guesses {
                let rank = candidates.rank_of(guess.key);
                assert_eq!(rank, Some(guess.rank as usize));
            }
            let mut keys: Vec<OutcomeKey> = guesses.iter().map(|guess| guess.key).collect();
            keys.sort_unstable();
            keys.dedup();
            assert_eq!(keys.len(), guesses.len());
        }
    }
}

#[test]
fn no_candidates_are_no_guesses() {
    let mut planner = Planner::new(FanOut::Geometric, Prior::default());
    let mut guesses = vec![];
    planner.plan(&Candidates::new(RankBy::Likelihood, 4), 9, &mut guesses);
    assert!(guesses.is_empty());
    let none = Candidates::new(RankBy::Likelihood, 4);
    assert_eq!(planner.observe(&none, outcome(0, 1)), None);
}

#[test]
fn what_was_not_tried_teaches_nothing() {
    let mut planner = Planner::new(FanOut::Learned, Prior::default());
    let candidates = flat(3, 8);
    let holds = |planner: &Planner, row: usize, rank| {
        let row = candidates.row(row).unwrap();
        planner.estimates().holds(&row, rank)
    };
    let (first, second) = (holds(&planner, 0, 0), holds(&planner, 0, 1));
    let bonus = holds(&planner, 3, 0);
    // Rejected at once, and decided by the first candidate.
    for _ in 0..100 {
        assert_eq!(planner.observe(&candidates, outcome(0, 1)), Some(0));
    }
    assert!(holds(&planner, 0, 0) > first + 0.3);
    assert!((holds(&planner, 0, 1) - second).abs() < 1e-15);
    assert!((holds(&planner, 3, 0) - bonus).abs() < 1e-15);
    assert!(planner.estimates().acceptance() < 0.1);
    // One rejection each, however long the window: the later positions are censored.
    let mut short = Planner::new(FanOut::Learned, Prior::default());
    (0..100).for_each(|_| {
        short.observe(&flat(1, 8), outcome(0, 1));
    });
    let (long, short) = (planner.estimates(), short.estimates());
    assert!((long.acceptance() - short.acceptance()).abs() < 1e-15);
}

#[test]
fn ranks_are_learned_on_misses_too() {
    let mut planner = Planner::new(FanOut::Learned, Prior::default());
    let candidates = flat(2, 16);
    let before = planner.estimates().misses(false, 7);
    // Far beyond any budget of one branch, but listed: rank 6 after one accepted token.
    for _ in 0..300 {
        assert_eq!(planner.observe(&candidates, outcome(1, 7)), Some(6));
    }
    assert!(planner.estimates().misses(false, 6) > 0.8);
    assert!(planner.estimates().misses(false, 7) < before);
    // Not even listed: every listed rank has failed.
    for _ in 0..3000 {
        assert_eq!(planner.observe(&candidates, outcome(1, 49)), None);
    }
    assert!(planner.estimates().misses(false, 16) > 0.8);
}

#[test]
fn impossible_outcomes_teach_nothing() {
    let mut planner = Planner::new(FanOut::Learned, Prior::default());
    let candidates = flat(2, 8);
    for impossible in [outcome(3, 1), outcome(u32::MAX, 1)] {
        assert_eq!(planner.observe(&candidates, impossible), None);
    }
    let untouched = Estimates::new(Prior::default());
    assert!((planner.estimates().acceptance() - untouched.acceptance()).abs() < 1e-15);
    assert!((planner.estimates().misses(false, 3) - untouched.misses(false, 3)).abs() < 1e-15);
}

#[test]
fn what_was_decided_within_a_window_was_accepted() {
    let mut planner = Planner::new(FanOut::Learned, Prior::default());
    let candidates = flat(2, 8);
    // Of two tokens one was verified, or none, and what came then was the other.
    for _ in 0..100 {
        assert_eq!(planner.observe(&candidates, outcome(0, 0)), None);
        assert_eq!(planner.observe(&candidates, outcome(1, 0)), None);
    }
    for _ in 0..60 {
        planner.observe(&candidates, outcome(0, 3));
    }
    let acceptance = planner.estimates().acceptance();
    assert!((acceptance - 300.0 / 360.0).abs() < 0.03, "{acceptance}");
}

/// Tokens of a window, and of the vocabulary, of rounds that are played.
const WINDOW: usize = 4;
const VOCAB: u32 = 48;

/// Logits of a draft after each prefix of a window, and those of a target that is like it up to a
/// disagreement that differs from row to row.
fn rows(round: u32) -> (Vec<Vec<f32>>, Vec<Vec<f32>>) {
    let normal = |v: u32, row: u32, salt: u32| {
        let words = philox([v, row, salt, 0], [6, 2]);
        let unit = |word: u32| (f64::from(word) + 0.5) / 4_294_967_296.0;
        libm::sqrt(-2.0 * libm::log(unit(words[0])))
            * libm::cos(core::f64::consts::TAU * unit(words[1]))
    };
    let rows = (0..=WINDOW as u32).map(|k| {
        let row = round * 8 + k;
        let draft: Vec<f32> = (0..VOCAB).map(|v| 3.0 * normal(v, row, 0) as f32).collect();
        let target = (0..).zip(&draft);
        let target = target
            .map(|(v, z)| z + 0.8 * normal(v, row, 1) as f32)
            .collect();
        (draft, target)
    });
    rows.unzip()
}

/// Rounds of a target that verifies with its draft's noise. Gives hit rate, and the hit rate the
/// planner expected, over the second half.
fn play(fan_out: FanOut, temperature: f32, budget: usize) -> (f64, f64) {
    let mut planner = Planner::new(fan_out, Prior::default());
    let mut candidates = Candidates::new(RankBy::Noise(Domain::Coupled), 32);
    let (mut scratch, mut guesses) = (Scratch::new(), Vec::new());
    let (mut hits, mut expected, mut counted) = (0.0, 0.0, 0.0);
    for round in 0..3000_u32 {
        let (draft, target) = rows(round);
        let mut drafter = sampler(temperature, u64::from(round));
        let mut window = Vec::new();
        for row in &draft[..WINDOW] {
            let token = drafter.choose(row, &mut scratch);
            drafter.push(token);
            window.push(token);
        }
        drafter.truncate(1);
        candidates.rank(&mut drafter, &mut scratch, &window[..].into(), |k| {
            &draft[k]
        });
        planner.plan(&candidates, budget, &mut guesses);
        let mut decider = sampler(temperature, u64::from(round));
        let verdict = coupled_chain(&mut decider, &mut scratch, &window, |k| &target[k]);
        let key = outcome(verdict.accepted as u32, verdict.decided.0);
        planner.observe(&candidates, key);
        if round >= 1500 {
            counted += 1.0;
            hits += f64::from(u32::from(guesses.iter().any(|guess| guess.key == key)));
            expected += guesses.iter().map(|guess| guess.probability).sum::<f64>();
        }
    }
    (hits / counted, expected / counted)
}

#[test]
fn what_was_learned_hits_more_often_than_fixed_shapes_and_as_often_as_it_says() {
    for (temperature, budget) in [(1.0, 8), (1.0, 16), (0.0, 8)] {
        let uniform = play(FanOut::Uniform, temperature, budget);
        let geometric = play(FanOut::Geometric, temperature, budget);
        let learned = play(FanOut::Learned, temperature, budget);
        let all = (uniform.0, geometric.0, learned.0);
        assert!(learned.0 > geometric.0 + 0.01, "{all:?}");
        assert!(learned.0 > uniform.0 + 0.01, "{all:?}");
        for (hits, expected) in [uniform, geometric, learned] {
            assert!(
                (hits - expected).abs() < 0.03,
                "hit {hits}, expected {expected}"
            );
        }
    }
}
