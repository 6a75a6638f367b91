use std::{vec, vec::Vec};

use super::*;
use crate::{
    noise::philox,
    verify::{Coins, rejection},
};

fn unit(i: u32, j: u32) -> f64 {
    (f64::from(philox([i, j, 0, 0], [13, 3])[0]) + 0.5) / 4_294_967_296.0
}

fn sparse(q: &[f64]) -> SparseDistribution {
    let entry = |(token, &q): (usize, &f64)| {
        let weight = (q * f64::from(1 << 24)).round() as u32;
        (weight > 0).then_some((TokenId(token as u32), weight))
    };
    SparseDistribution {
        entries: q.iter().enumerate().filter_map(entry).collect(),
    }
}

fn any_law(i: u32, salt: u32, len: u32) -> Vec<f64> {
    let weights: Vec<f64> = (0..len)
        .map(|t| libm::pow(unit(i, salt + t), 3.0))
        .collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / total).collect()
}

fn probability(q: &SparseDistribution, token: usize) -> f64 {
    f64::from(q.weight(TokenId(token as u32))) / q.total()
}

/// With C = `top / rest`.
fn lowered(q: &[f64], fan_out: usize, top: u32, rest: u32) -> SparseDistribution {
    let mut lowered = sparse(q);
    lower(&mut lowered, fan_out, top, rest);
    lowered
}

#[test]
fn the_likeliest_lose_a_factor_to_the_others() {
    // Definition 14: weights C e^z on the likeliest, e^z elsewhere.
    for i in 0..300 {
        let q = any_law(i, 0, 9);
        let (fan_out, lost) = (1 + i % 5, i % 20);
        let mut found = sparse(&q);
        found.entries.iter_mut().for_each(|entry| entry.1 >>= 4);
        Saguaro::new(fan_out, lost).apply(&mut found);
        let c = Saguaro::new(fan_out, lost).c();
        let mut order: Vec<usize> = (0..9).collect();
        order.sort_by(|&a, &b| q[b].total_cmp(&q[a]).then(a.cmp(&b)));
        let weight = |t: usize| {
            if order[..fan_out as usize].contains(&t) {
                c * q[t]
            } else {
                q[t]
            }
        };
        let total: f64 = (0..9).map(weight).sum();
        for t in 0..9 {
            let probability = probability(&found, t);
            assert!((probability - weight(t) / total).abs() < 1e-4);
        }
    }
}

#[test]
fn the_extremes_of_c_are_off_and_never() {
    let q = [0.1, 0.4, 0.3, 0.2];
    let after = |saguaro: Saguaro, q: &[f64]| {
        let mut q = sparse(q);
        saguaro.apply(&mut q);
        q
    };
    assert_eq!(after(Saguaro::new(2, 0), &q), sparse(&q));
    assert_eq!(after(Saguaro::default(), &q), sparse(&q));
    assert_eq!(after(Saguaro::new(0, 20), &q), sparse(&q));
    let never = after(Saguaro::new(2, 999), &q);
    let tokens: Vec<u32> = never.entries.iter().map(|entry| entry.0.0).collect();
    assert_eq!(tokens, [0, 3]);
    // Somebody has to be drafted.
    assert_eq!(after(Saguaro::new(4, 20), &q), sparse(&q));
    // The lower id counts as likelier.
    let tied = after(Saguaro::new(1, 20), &[0.25; 4]);
    assert!(tied.weight(TokenId(0)) == 0 && tied.weight(TokenId(1)) > 0);
}

#[test]
fn a_smaller_c_leaves_more_of_the_residual_on_the_likeliest() {
    // Theorem 15, with the likeliest tokens themselves as guesses.
    for i in 0..500 {
        let (p, q) = (any_law(i, 0, 8), any_law(i, 20, 8));
        let fan_out = 1 + i as usize % 6;
        let mut order: Vec<usize> = (0..8).collect();
        order.sort_by(|&a, &b| q[b].total_cmp(&q[a]).then(a.cmp(&b)));
        let mut last = 1.0 + 1e-9;
        for step in 0..=20 {
            let lowered = lowered(&q, fan_out, step, 20);
            let left = |&t: &usize| (p[t] - probability(&lowered, t)).max(0.0);
            let all: f64 = order.iter().map(left).sum();
            let caught: f64 = order[..fan_out].iter().map(left).sum();
            if all > 1e-6 {
                let hit = caught / all;
                assert!(hit <= last + 1e-5, "{hit} after {last}");
                last = hit;
            }
        }
    }
}

#[test]
fn the_strict_example_hits_always_at_the_same_acceptance() {
    let (p, q) = ([0.25; 4], sparse(&[0.26, 0.26, 0.24, 0.24]));
    let mut tuner = Tuner::new(2);
    let at = |tuner: &mut Tuner, top, rest| {
        let effect = tuner.effect(top, rest, &p, &q);
        (effect.accepted, effect.guessed / (1.0 - effect.accepted))
    };
    let (accepted, hit) = at(&mut tuner, 1, 1);
    assert!(
        (accepted - 0.98).abs() < 1e-6 && (hit - 0.5).abs() < 1e-5,
        "{hit}"
    );
    let (accepted, hit) = at(&mut tuner, 144, 169);
    assert!(
        (accepted - 0.98).abs() < 1e-6 && (hit - 1.0).abs() < 1e-5,
        "{hit}"
    );
    let (accepted, _) = at(&mut tuner, 12, 13);
    assert!((accepted - 1.0).abs() < 1e-6);
}

/// Coins that accept as told and write down what was asked.
struct Told {
    accept: bool,
    asked: f64,
    weights: Vec<f64>,
}

impl Coins for Told {
    fn accept(&mut self, probability: f64) -> bool {
        self.asked = probability.min(1.0);
        self.accept
    }

    fn pick(&mut self, weights: &[f64]) -> usize {
        self.weights = weights.to_vec();
        0
    }
}

/// The law of the first token that a window of one token, drawn from `drawn`, makes a target with
/// law `p` emit, by enumeration. `q` is what the verifier is told.
fn first_token(p: &[f64], drawn: &[f64], q: &[SparseDistribution]) -> Vec<f64> {
    let mut law = vec![0.0; p.len()];
    for (token, &probability) in drawn.iter().enumerate().filter(|(_, q)| **q > 0.0) {
        let play = |accept| {
            let mut coins = Told {
                accept,
                asked: 0.0,
                weights: Vec::new(),
            };
            let target = |_, out: &mut Vec<f64>| {
                out.clear();
                out.extend_from_slice(p);
            };
            rejection(&[TokenId(token as u32)], q, target, &mut coins);
            coins
        };
        let accepted = play(true).asked;
        law[token] += probability * accepted;
        let rejected = play(false);
        let total: f64 = rejected.weights.iter().sum();
        if accepted < 1.0 {
            for (law, weight) in law.iter_mut().zip(&rejected.weights) {
                *law += probability * (1.0 - accepted) * weight / total;
            }
        }
    }
    law
}

fn assert_same(found: &[f64], expected: &[f64]) {
    for (found, expected) in found.iter().zip(expected) {
        assert!((found - expected).abs() < 1e-12, "{found}, not {expected}");
    }
}

#[test]
fn a_lowered_draft_changes_nothing_of_what_the_target_emits() {
    let cases = [
        ([0.375, 0.375, 0.125, 0.125], 2, 1, 3),
        ([0.5, 0.25, 0.125, 0.125], 1, 0, 1),
        ([0.0625, 0.4375, 0.375, 0.125], 2, 3, 13),
        ([0.1, 0.2, 0.3, 0.4], 3, 17, 20),
        ([0.125, 0.75, 0.125, 0.0], 1, 1, 1),
    ];
    for (q, fan_out, top, rest) in cases {
        let lowered = lowered(&q, fan_out, top, rest);
        let drawn: Vec<f64> = (0..4).map(|t| probability(&lowered, t)).collect();
        for i in 0..200 {
            let p = any_law(i, 0, 4);
            let law = first_token(&p, &drawn, core::slice::from_ref(&lowered));
            assert_same(&law, &p);
            // A verifier that is told of the draft before it was lowered is not exact.
            let wrong = first_token(&p, &drawn, &[sparse(&q)]);
            let off: f64 = wrong.iter().zip(&p).map(|(a, b)| (a - b).abs()).sum();
            assert!(top == rest || off > 1e-4, "{q:?} {off}");
        }
    }
}

#[test]
fn a_certain_proposal_changes_nothing_of_what_the_target_emits() {
    // Local sources after a miss: whatever token is proposed, and if the verifier is told so or not.
    for i in 0..300 {
        let p = any_law(i, 0, 5);
        let token = i as usize % 5;
        let mut point = vec![0.0; 5];
        point[token] = 1.0;
        let told = SparseDistribution {
            entries: vec![(TokenId(token as u32), 7)],
        };
        assert_same(&first_token(&p, &point, &[]), &p);
        assert_same(&first_token(&p, &point, &[told]), &p);
    }
}

/// A tuner that has seen positions where drafts are near the target, up to `noise`.
fn taught(noise: f64) -> Tuner {
    let mut tuner = Tuner::new(3);
    for i in 0..300 {
        let p = any_law(i, 0, 30);
        let weights: Vec<f64> = (0..30)
            .map(|t| p[t as usize] * libm::exp(noise * (unit(i, 100 + t) - 0.5)))
            .collect();
        let total: f64 = weights.iter().sum();
        let q: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
        tuner.observe(&p, &sparse(&q));
    }
    tuner
}

#[test]
fn c_is_lowered_for_hits_where_misses_are_dear_and_for_acceptance_alone_where_they_are_free() {
    let tuner = taught(2.0);
    let with_backup = |time| move |primary: Speculator| Speculator { time, ..primary };
    let free = tuner.best(5, 0.9, 0.5, with_backup(0.0));
    let dear = tuner.best(5, 0.9, 0.5, with_backup(30.0));
    // Even acceptance may gain: the likeliest of a noisy draft are likely overrated.
    let accepted = tuner.mean(free.lost()).accepted;
    assert!((0..=20).all(|lost| tuner.mean(lost).accepted <= accepted));
    assert!(dear.lost() > free.lost() + 2, "{dear:?} against {free:?}");
    assert_eq!((dear.fan_out(), free.fan_out()), (3, 3));
    let ignorant = Tuner::new(3).best(5, 0.9, 0.5, with_backup(30.0));
    assert_eq!(ignorant.lost(), 0);
}

#[test]
fn the_best_c_is_the_one_that_theorem_7_prefers() {
    let tuner = taught(1.5);
    let backup = |primary: Speculator| Speculator {
        time: 2.0,
        ..primary
    };
    let speedup = |lost: u32| {
        let mean = tuner.mean(lost);
        let whole = libm::pow(mean.accepted, 4.0);
        let hit = mean.guessed / (1.0 - mean.accepted);
        let primary = Speculator {
            tokens: expected_tokens(mean.accepted, 4),
            time: 0.8,
            next_hit: (1.0 - whole) * hit + whole * 0.8,
        };
        let h = primary.next_hit;
        primary.tokens / (h + (1.0 - h) * 3.0)
    };
    let best = tuner.best(4, 0.8, 0.8, backup);
    let chosen = speedup(best.lost());
    assert!((0..=20).all(|lost| speedup(lost) <= chosen * (1.0 + 1e-9)));
    assert!(speedup(20) < chosen, "the comparison is not trivial");
}
