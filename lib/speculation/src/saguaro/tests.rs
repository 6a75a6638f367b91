use std::{vec, vec::Vec};

use super::*;
use crate::{
    noise::philox,
    verify::{Coins, rejection},
};

pub(super) fn unit(i: u32, j: u32) -> f64 {
    (f64::from(philox([i, j, 0, 0], [13, 3])[0]) + 0.5) / 4_294_967_296.0
}

pub(super) fn sparse(q: &[f64]) -> SparseDistribution {
    let entry = |(token, &q): (usize, &f64)| {
        let weight = (q * f64::from(1 << 24)).round() as u32;
        (weight > 0).then_some((TokenId(token as u32), weight))
    };
    SparseDistribution {
        entries: q.iter().enumerate().filter_map(entry).collect(),
    }
}

pub(super) fn any_law(i: u32, salt: u32, len: u32) -> Vec<f64> {
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
fn of_many_tokens_as_many_are_lowered_as_are_named() {
    for (len, fan_out) in [
        (1, 1),
        (16, 3),
        (256, 100),
        (256, 255),
        (256, 256),
        (256, 4096),
    ] {
        // Many are equally likely.
        let entries: Vec<_> = (0..len).map(|id| (TokenId(id), 1 + id * 5 % 7)).collect();
        let mut expected = entries.clone();
        expected.sort_by_key(|&(token, weight)| (core::cmp::Reverse(weight), token));
        for (place, (_, weight)) in expected.iter_mut().enumerate() {
            *weight *= if place < fan_out { 13 } else { 20 };
        }
        expected.sort_by_key(|&(token, _)| token);
        let mut q = SparseDistribution { entries };
        Saguaro::new(fan_out as u32, 7).apply(&mut q);
        assert_eq!(q.entries, expected, "{fan_out} of {len}");
    }
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
