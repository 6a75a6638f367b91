//! What the simulated model promises.

use foretoken_speculation::Seed;
use foretoken_speculation::sampling::{Sampler, SamplingParams, Scratch};

use super::*;
use crate::batch::{Engine, Feed, Reuse, Wants};

/// A plan of one sequence: tokens on consecutive slots of the given pages.
fn chain(tokens: &[u32], first_slot: u32, pages: &[u32]) -> StepPlan {
    StepPlan {
        tokens: tokens.iter().map(|token| TokenId(*token)).collect(),
        positions: (first_slot..first_slot + tokens.len() as u32).collect(),
        wants_logits: vec![true; tokens.len()],
        sequences: vec![SequenceRows {
            rows: tokens.len() as u32,
            first_slot,
            pages: 0..pages.len(),
            tail: Tail::Causal,
        }],
        pages: pages.iter().map(|page| PageIndex(*page)).collect(),
        ancestors: vec![],
    }
}

fn run(runner: &mut SimRunner, plan: &StepPlan) -> Vec<Vec<f32>> {
    let mut logits = Logits::default();
    runner.forward(plan, &mut logits).unwrap();
    (0..logits.rows()).map(|i| logits.row(i).to_vec()).collect()
}

fn runner() -> SimRunner {
    SimRunner::new(SimOptions {
        pages: 8,
        ..SimOptions::default()
    })
}

#[test]
fn logits_do_not_depend_on_pages_or_chunks() {
    let tokens: Vec<u32> = (0..40).collect();
    let whole = run(&mut runner(), &chain(&tokens, 0, &[0, 1, 2]));
    let mut other = runner();
    let mut parts = run(&mut other, &chain(&tokens[..17], 0, &[5, 3]));
    for (i, token) in tokens.iter().enumerate().skip(17) {
        parts.extend(run(&mut other, &chain(&[*token], i as u32, &[5, 3, 7])));
    }
    assert_eq!(whole, parts);
}

#[test]
fn every_visible_slot_matters() {
    let tokens: Vec<u32> = (0..40).collect();
    let reference = run(&mut runner(), &chain(&tokens, 0, &[0, 1, 2]));
    for changed in 0..39 {
        let mut other = tokens.clone();
        other[changed] += 100;
        let rows = run(&mut runner(), &chain(&other, 0, &[0, 1, 2]));
        assert_eq!(rows[..changed], reference[..changed]);
        assert!(std::iter::zip(&rows[changed..], &reference[changed..]).all(|(a, b)| a != b));
    }
    // A page of another sequence, or one never written, in place of the right one.
    let mut runner = runner();
    run(&mut runner, &chain(&tokens[..32], 0, &[0, 1]));
    run(&mut runner, &chain(&tokens[1..17], 0, &[3]));
    let next =
        |runner: &mut SimRunner, pages: &[u32]| run(runner, &chain(&[32], 32, pages)).remove(0);
    assert_eq!(next(&mut runner, &[0, 1, 4]), reference[32]);
    for pages in [[1, 0, 4], [3, 1, 4], [5, 1, 4], [0, 5, 4]] {
        // Marks are summed, so the order of pages is the one thing that does not show.
        assert_eq!(
            next(&mut runner, &pages) == reference[32],
            pages == [1, 0, 4]
        );
    }
}

#[test]
fn positions_matter() {
    let reference = run(&mut runner(), &chain(&[1, 2, 3], 0, &[0]));
    let mut plan = chain(&[1, 2, 3], 0, &[0]);
    plan.positions = vec![0, 2, 1];
    let rows = run(&mut runner(), &plan);
    assert_eq!(rows[0], reference[0]);
    assert!(rows[1] != reference[1] && rows[2] != reference[2]);
}

#[test]
fn a_tree_row_sees_its_ancestors_and_no_siblings() {
    let mut runner = runner();
    run(&mut runner, &chain(&[1, 2], 0, &[0]));
    let mut plan = chain(&[3, 4, 5], 2, &[0]);
    plan.positions = vec![2, 2, 3];
    plan.ancestors = vec![0b001, 0b010, 0b110];
    plan.sequences[0].tail = Tail::Tree {
        trunk_len: 2,
        masks: 0..3,
    };
    let rows = run(&mut runner, &plan);
    let alone = |tokens: &[u32]| {
        run(&mut self::runner(), &chain(tokens, 0, &[0]))
            .pop()
            .unwrap()
    };
    assert_eq!(
        rows,
        [alone(&[1, 2, 3]), alone(&[1, 2, 4]), alone(&[1, 2, 4, 5])]
    );
}

#[test]
fn malformed_plans_are_errors() {
    type Damage = fn(&mut StepPlan);
    let damages: [(Damage, &str); 13] = [
        (
            |plan| plan.tokens[0] = TokenId(512),
            "outside the vocabulary",
        ),
        (|plan| plan.positions[0] = 4096, "past the model's"),
        (|plan| plan.tokens.truncate(1), "differ in number"),
        (|plan| plan.sequences[0].rows = 1, "do not add up"),
        (|plan| plan.sequences[0].pages = 0..2, "out of range"),
        (|plan| plan.sequences[0].first_slot = 15, "too short"),
        (|plan| plan.pages[0] = PageIndex(8), "outside the pool"),
        (
            |plan| {
                plan.sequences[0].tail = Tail::Tree {
                    trunk_len: 0,
                    masks: 0..2,
                }
            },
            "one mask",
        ),
        (|plan| tree(plan, 1, [1, 3]), "1 to 64 slots"),
        (|plan| tree(plan, 0, [2, 3]), "sees a later one"),
        (|plan| tree(plan, 0, [1, 7]), "sees a later one"),
        (
            |plan| *plan = chain(&[1; 257], 0, &(0..17).collect::<Vec<_>>()),
            "limit of 256",
        ),
        (|plan| plan.sequences.clear(), "do not add up"),
    ];
    for (damage, message) in damages {
        let mut plan = chain(&[1, 2], 0, &[0]);
        damage(&mut plan);
        let error = runner()
            .forward(&plan, &mut Logits::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains(message), "{error}, not {message}");
    }
}

fn tree(plan: &mut StepPlan, trunk_len: u32, masks: [u64; 2]) {
    plan.ancestors = masks.to_vec();
    plan.sequences[0].tail = Tail::Tree {
        trunk_len,
        masks: 0..2,
    };
}

#[test]
fn a_page_that_one_sequence_writes_is_in_no_others_table() {
    let mut plan = chain(&[1, 2], 0, &[0]);
    let rows = |pages| SequenceRows {
        rows: 1,
        first_slot: 0,
        pages,
        tail: Tail::Causal,
    };
    plan.sequences = vec![rows(0..1), rows(1..2)];
    for (pages, sound) in [([0, 1], true), ([0, 0], false)] {
        plan.pages = pages.map(PageIndex).to_vec();
        assert_eq!(
            runner().forward(&plan, &mut Logits::default()).is_ok(),
            sound
        );
    }
    // Reading is as bad as writing.
    plan.sequences[1] = SequenceRows {
        rows: 1,
        first_slot: 16,
        pages: 1..3,
        tail: Tail::Causal,
    };
    for (pages, sound) in [([0, 1, 2], true), ([0, 0, 2], false)] {
        plan.pages = pages.map(PageIndex).to_vec();
        assert_eq!(
            runner().forward(&plan, &mut Logits::default()).is_ok(),
            sound
        );
    }
}

/// Logits of `role` after many contexts.
fn contexts(role: Role, end: Option<End>) -> Vec<Vec<f32>> {
    contexts_of(SimOptions {
        role,
        end,
        language: 5,
        ..SimOptions::default()
    })
}

fn contexts_of(options: SimOptions) -> Vec<Vec<f32>> {
    let mut engine = Engine::new(Box::new(SimRunner::new(options)));
    let mut rows = Vec::new();
    for text in 0..16 {
        let seq = engine.open(&[], Reuse::Off);
        let tokens: Vec<_> = (0..256)
            .map(|i| TokenId((text * 31 + i * 7) % 512))
            .collect();
        let feed = Feed {
            seq,
            tokens: &tokens,
            tree: None,
            logits: Wants::All,
        };
        let logits = engine.step(&[feed]).unwrap();
        rows.extend((0..256).map(|i| logits.row(0, i).to_vec()));
        engine.close(seq).unwrap();
    }
    rows
}

/// Fraction of contexts in which two models choose the same token.
fn agreement(a: &[Vec<f32>], b: &[Vec<f32>], params: &SamplingParams) -> f64 {
    let mut scratch = Scratch::new();
    let mut same = 0;
    for (i, (a, b)) in std::iter::zip(a, b).enumerate() {
        let sampler = Sampler::new(params.clone(), Seed(i as u64), &[], 0).unwrap();
        same += usize::from(sampler.choose(a, &mut scratch) == sampler.choose(b, &mut scratch));
    }
    same as f64 / a.len() as f64
}

#[test]
fn a_draft_agrees_as_often_as_it_is_told_to() {
    let greedy = SamplingParams {
        temperature: 0.0,
        ..SamplingParams::default()
    };
    let target = contexts(Role::Target, None);
    for set in [0.0, 0.3, 0.8, 1.0] {
        let draft = contexts(Role::Draft { agreement: set }, None);
        // Four standard deviations of 4096 draws.
        let slack = 4.0 * (set * (1.0 - set) / 4096.0).sqrt();
        let seen = agreement(&target, &draft, &greedy);
        assert!((seen - set).abs() <= slack, "{seen} for {set}");
        let whole = std::iter::zip(&target, &draft)
            .filter(|(a, b)| a == b)
            .count();
        assert!(
            (whole as f64 / 4096.0 - seen).abs() < 1e-9,
            "whole rows agree, or not even the peak"
        );

        let seen = agreement(&target, &draft, &SamplingParams::default());
        let expected = set + (1.0 - set) / 20.0;
        assert!(
            (seen - expected).abs() <= slack + 0.02,
            "{seen} for {expected} with noise"
        );
    }
}

#[test]
fn a_draft_comes_as_near_as_it_is_told_to_where_it_disagrees() {
    let rows = |role, near| {
        contexts_of(SimOptions {
            role,
            near,
            ..SimOptions::default()
        })
    };
    let target = rows(Role::Target, 0.0);
    let draft = rows(Role::Draft { agreement: 0.5 }, 0.8);
    let best = |row: &[f32]| (0..512).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
    let mut ranks = [0.0; 5];
    for (truth, guess) in std::iter::zip(&target, &draft) {
        let wanted = best(truth);
        let above = guess.iter().filter(|logit| **logit > guess[wanted]).count();
        ranks[above.min(4)] += 1.0 / target.len() as f64;
    }
    // Four standard deviations of 4096 draws are 0.031 at most.
    for (seen, set) in std::iter::zip(ranks, [0.5, 0.28, 0.06, 0.06, 0.1]) {
        assert!((seen - set).abs() < 0.031, "{seen} for {set}");
    }
}

#[test]
fn texts_end_at_the_set_rate_and_otherwise_never() {
    for rate in [0.0, 0.1, 1.0] {
        let token = TokenId(3);
        let rows = contexts(Role::Target, Some(End { token, rate }));
        let mut ends = 0;
        for row in &rows {
            let best = (0..512).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
            ends += usize::from(best == 3);
            assert!(best == 3 || row[3] < -1000.0);
        }
        let slack = 4.0 * (rate * (1.0 - rate) / 4096.0).sqrt();
        assert!(
            (ends as f64 / 4096.0 - rate).abs() <= slack,
            "{ends} ends at rate {rate}"
        );
    }
}

#[test]
fn the_likely_tokens_have_the_documented_probabilities() {
    for row in contexts(Role::Target, None).iter().step_by(97) {
        let total: f64 = row.iter().map(|logit| f64::from(*logit).exp()).sum();
        let mut p: Vec<f64> = row
            .iter()
            .map(|logit| f64::from(*logit).exp() / total)
            .collect();
        p.sort_by(|a, b| b.total_cmp(a));
        for (p, expected) in std::iter::zip(&p, [0.70, 0.15, 0.07, 0.03]) {
            assert!((p - expected).abs() < 0.005, "{p} for {expected}");
        }
        assert!(p[4] < 0.001);
    }
}

#[test]
fn a_step_costs_what_the_law_says() {
    let us = Duration::from_micros;
    let law = Latency {
        base: us(1000),
        per_row: us(10),
        per_context_token: us(1),
    };
    assert_eq!(law.of(&chain(&[1, 2, 3], 20, &[0, 1])), us(1000 + 30 + 23));
}

#[test]
fn digests_tell_models_apart() {
    let digest = |options| SimRunner::new(options).info().model_digest.clone();
    let target = SimOptions::default();
    let draft = SimOptions {
        role: Role::Draft { agreement: 0.8 },
        ..target
    };
    let elsewhere = SimOptions {
        language: 1,
        ..target
    };
    let larger = SimOptions {
        pages: 9,
        max_rows: 1,
        ..target
    };
    assert_ne!(digest(target), digest(draft));
    assert_ne!(digest(draft), digest(SimOptions { near: 0.5, ..draft }));
    assert_ne!(digest(target), digest(elsewhere));
    assert_eq!(digest(target), digest(larger));
}
