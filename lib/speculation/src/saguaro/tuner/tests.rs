use std::{vec, vec::Vec};

use super::*;
use crate::{
    TokenId,
    saguaro::tests::{any_law, sparse, unit},
};

/// Effect of C at a position with these laws.
fn effect_of(p: &[f64], q: &[f64], fan_out: usize, c: f64) -> Effect {
    let mut position: Vec<_> = p.iter().copied().zip(q.iter().copied()).collect();
    position.sort_by(|a, b| b.1.total_cmp(&a.1));
    effect(&position, fan_out, c)
}

fn laws(q: Vec<SparseDistribution>) -> Laws {
    Laws {
        q,
        saguaro: Saguaro::default(),
    }
}

#[test]
fn the_strict_example_hits_always_at_the_same_acceptance() {
    let (p, q) = ([0.25; 4], [0.26, 0.26, 0.24, 0.24]);
    let at = |c| {
        let effect = effect_of(&p, &q, 2, c);
        (effect.accepted, effect.guessed / (1.0 - effect.accepted))
    };
    let (accepted, hit) = at(1.0);
    assert!((accepted - 0.98).abs() < 1e-9 && (hit - 0.5).abs() < 1e-9);
    let (accepted, hit) = at(144.0 / 169.0);
    assert!((accepted - 0.98).abs() < 1e-9 && (hit - 1.0).abs() < 1e-9);
    assert!((at(12.0 / 13.0).0 - 1.0).abs() < 1e-9);
}

#[test]
fn effects_are_those_of_verification_token_by_token() {
    // By enumeration: a token is drawn from q', accepted by ratio, or another one decided from what
    // is left of p, with the likeliest tokens of q but the rejected one as guesses.
    for i in 0..200 {
        let (p, q) = (any_law(i, 0, 6), any_law(i, 20, 6));
        let (fan_out, lost) = (1 + i as usize % 7, i % 21);
        let mut lowered = sparse(&q);
        Saguaro::new(fan_out as u32, lost).apply(&mut lowered);
        let drawn: Vec<f64> = (0..6)
            .map(|t| f64::from(lowered.weight(TokenId(t))) / lowered.total())
            .collect();
        let mut order: Vec<usize> = (0..6).collect();
        order.sort_by(|&a, &b| q[b].total_cmp(&q[a]));
        let left: Vec<f64> = p
            .iter()
            .zip(&drawn)
            .map(|(p, q)| (p - q).max(0.0))
            .collect();
        let all: f64 = left.iter().sum();
        let (mut accepted, mut guessed) = (0.0, 0.0);
        for token in 0..6 {
            accepted += drawn[token].min(p[token]);
            let mut guesses = order.clone();
            guesses.retain(|&guess| guess != token);
            let caught: f64 = guesses.iter().take(fan_out).map(|&t| left[t]).sum();
            guessed += (drawn[token] - p[token]).max(0.0) * caught / all;
        }
        let found = effect_of(&p, &q, fan_out, f64::from(STEPS - lost) / f64::from(STEPS));
        assert!((found.accepted - accepted).abs() < 1e-5, "case {i}");
        assert!((found.guessed - guessed).abs() < 1e-5, "case {i}");
    }
}

#[test]
fn positions_after_the_first_rejection_and_tokens_outside_the_vocabulary_do_not_count() {
    let likely = sparse(&[0.9, 0.1]);
    let odd = SparseDistribution {
        entries: vec![(TokenId(0), 1), (TokenId(99), 1)],
    };
    let mut seen = Seen::default();
    seen.push(&likely, &[0.9, 0.1]);
    seen.push(&odd, &[1.0, 0.0]);
    seen.push(&likely, &[0.0, 1.0]);
    let laws = laws(vec![likely.clone(), odd, likely]);
    let mut tuner = Tuner::new(1);
    tuner.observe(&laws, &seen, 1);
    assert!((tuner.seen - (1.0 + MEMORY)).abs() < 1e-12);
    let accepted = tuner.effects[0].accepted;
    assert!((accepted - (1.0 * MEMORY + 0.5)).abs() < 1e-6, "{accepted}");
}

/// Laws of a draft that is near the target, up to `noise`.
fn near(i: u32, noise: f64) -> (Vec<f64>, SparseDistribution) {
    let p = any_law(i, 0, 30);
    let weights: Vec<f64> = (0..30)
        .map(|t| p[t as usize] * libm::exp(noise * (unit(i, 100 + t) - 0.5)))
        .collect();
    let total: f64 = weights.iter().sum();
    let q: Vec<f64> = weights.iter().map(|weight| weight / total).collect();
    (p, sparse(&q))
}

/// Shows a tuner a window of one position.
fn show(tuner: &mut Tuner, (p, q): (Vec<f64>, SparseDistribution)) {
    let mut seen = Seen::default();
    seen.push(&q, &p);
    tuner.observe(&laws(vec![q]), &seen, 0);
}

fn taught(noise: f64) -> Tuner {
    let mut tuner = Tuner::new(3);
    (0..400).for_each(|i| show(&mut tuner, near(i, noise)));
    tuner
}

/// A backup as good as the primary that takes so long.
fn taking(time: f64) -> impl Fn(Speculator) -> Speculator {
    move |primary| Speculator { time, ..primary }
}

/// Where a tuner comes to that is asked often enough.
fn settled(tuner: &mut Tuner, backup: impl Fn(Speculator) -> Speculator) -> Saguaro {
    for _ in 0..20 {
        tuner.news = REVIEW;
        tuner.choose(5, &backup);
    }
    tuner.saguaro()
}

#[test]
fn c_is_lowered_for_hits_where_misses_are_dear_and_for_acceptance_alone_where_they_are_free() {
    let free = settled(&mut taught(2.0), taking(0.0));
    let dear = settled(&mut taught(2.0), taking(30.0));
    assert!(dear.lost() > free.lost() + 2, "{dear:?} against {free:?}");
    assert_eq!((dear.fan_out(), free.fan_out()), (3, 3));
    // Even acceptance may gain: the likeliest of a noisy draft are likely overrated.
    let tuner = taught(2.0);
    let best = (0..=STEPS).map(|lost| tuner.mean(lost).accepted);
    let best = best.fold(0.0, f64::max);
    assert!(tuner.mean(free.lost()).accepted > 0.98 * best);
}

#[test]
fn c_stays_1_where_the_draft_is_the_target_and_while_nothing_is_known() {
    let mut tuner = Tuner::new(3);
    assert_eq!(settled(&mut tuner, taking(30.0)).lost(), 0);
    let same = settled(&mut taught(0.0), taking(1.0));
    assert_eq!(same.lost(), 0);
}

#[test]
fn the_chosen_c_is_the_one_that_theorem_7_prefers_up_to_the_margin() {
    let mut inside = 0;
    for (noise, time) in [(0.5, 1.0), (1.5, 2.0), (2.0, 1.0), (3.0, 8.0)] {
        let mut tuner = taught(noise);
        let chosen = settled(&mut tuner, taking(time)).lost();
        let speedup = |lost: u32| {
            let mean = tuner.mean(lost);
            let whole = libm::pow(mean.accepted, 5.0);
            let hit = mean.guessed / (1.0 - mean.accepted);
            let h = (1.0 - whole) * hit + whole * WHOLE_PRIOR;
            expected_tokens(mean.accepted, 5) / (h + (1.0 - h) * (1.0 + time))
        };
        let least = speedup(chosen) * (1.0 + 2.0 * MARGIN);
        assert!((0..=STEPS).all(|lost| speedup(lost) <= least), "{noise}");
        inside += u32::from((1..STEPS).contains(&chosen));
    }
    assert!(inside > 0, "it is not trivial");
}

#[test]
fn guesses_that_never_come_in_time_do_not_lower_c() {
    let (mut late, mut timely) = (taught(2.0), taught(2.0));
    for _ in 0..600 {
        late.observe_verdict(false, false);
        timely.observe_verdict(false, true);
    }
    let free = settled(&mut taught(2.0), taking(0.0)).lost();
    let dear = settled(&mut taught(2.0), taking(4.0)).lost();
    let late = settled(&mut late, taking(4.0)).lost();
    assert!(late <= free + 2 && late + 2 < dear, "{free} {late} {dear}");
    // Nothing is to be gained where all guesses hit anyway, either.
    let timely = settled(&mut timely, taking(4.0)).lost();
    assert!(timely <= free + 2, "{free} {timely} {dear}");
}

#[test]
fn c_moves_by_small_strides_after_enough_was_seen() {
    let mut tuner = taught(2.0);
    let mut last = 0;
    let mut moves = 0;
    for i in 0..20 * REVIEW {
        show(&mut tuner, near(i, 2.0));
        let lost = tuner.choose(5, taking(30.0)).lost();
        assert!(lost.abs_diff(last) <= STRIDE);
        // The first look was due already.
        assert!(lost == last || i == 0 || tuner.news == 0);
        moves += u32::from(lost != last);
        last = lost;
    }
    assert!(last > STRIDE && moves > 1, "{last} after {moves}");
}

#[test]
fn c_does_not_swing_while_nothing_changes() {
    let mut tuner = taught(2.0);
    settled(&mut tuner, taking(3.0));
    let (mut last, mut moves) = (tuner.saguaro(), 0);
    for i in 0..40_000 {
        show(&mut tuner, near(1000 + i, 2.0));
        tuner.observe_verdict(i % 7 == 0, unit(i, 900) < tuner.guessed(tuner.lost));
        let chosen = tuner.choose(5, taking(3.0));
        moves += u32::from(chosen != last);
        last = chosen;
    }
    assert!(moves <= 20, "{moves} moves in 625 looks");
    assert!(last.lost() > 0);
}

#[test]
fn c_follows_a_draft_that_becomes_better() {
    let mut tuner = taught(3.0);
    assert!(settled(&mut tuner, taking(1.0)).lost() > 3);
    for i in 0..8000 {
        show(&mut tuner, near(i, 0.02));
        tuner.choose(5, taking(1.0));
    }
    assert!(tuner.saguaro().lost() <= 2, "{:?}", tuner.saguaro());
}
