use std::{vec, vec::Vec};

use super::*;
use crate::fanout::{
    Guess,
    samples::{falling, guesses, step},
};

fn bid(guesses: &[Guess], steps: u32, left: f64) -> Bid<'_> {
    Bid {
        tenant: 0,
        guesses,
        worth: Worth {
            acceptance: 0.7,
            steps,
            goes_on: 1.0,
            miss: 0.0,
        },
        left,
    }
}

fn time(widths: &[u32]) -> f64 {
    widths.iter().map(|&rows| step(rows)).sum()
}

/// Tokens that are expected of so many outcomes in each step.
fn value(bid: &Bid<'_>, widths: &[u32]) -> f64 {
    let of = |(i, guess): (usize, &Guess)| {
        let depth = widths.iter().filter(|&&width| width as usize > i).count();
        guess.probability * bid.worth.saved(depth as u32)
    };
    bid.guesses.iter().enumerate().map(of).sum()
}

fn widths(bid: &Bid<'_>, most: u32) -> Vec<u32> {
    Taper::default().widths(bid, most, step).to_vec()
}

/// All ways to give `steps` steps up to `most` outcomes each, ever fewer.
fn all_ways(steps: usize, most: u32) -> Vec<Vec<u32>> {
    let mut ways = vec![Vec::new()];
    for _ in 0..steps {
        let longer = ways.iter().flat_map(|way: &Vec<u32>| {
            let upto = way.last().map_or(most, |&width| width);
            (0..=upto).map(move |width| [&way[..], &[width]].concat())
        });
        ways = longer.collect();
    }
    ways
}

#[test]
fn likelier_outcomes_get_more_tokens_in_the_time_there_is() {
    for (ratio, left) in [(0.3, 200e-6), (0.6, 300e-6), (0.8, 500e-6), (0.9, 700e-6)] {
        let list = falling(24, ratio);
        let bid = bid(&list, 6, left);
        let got = widths(&bid, 100);
        assert!(time(&got) <= left, "{got:?}");
        assert!(got.is_sorted_by(|a, b| a >= b), "{got:?}");
        let flat = |rows: u32| {
            let steps = (left / step(rows)) as usize;
            value(&bid, &vec![rows; steps.min(6)])
        };
        let best = (1..=24).map(flat).fold(0.0, f64::max);
        let tapered = value(&bid, &got);
        // Prices do not find what lies between two of them: a percent, if there are few tokens.
        assert!(
            tapered > 0.98 * best,
            "{ratio}: {tapered} of {best}, {got:?}"
        );
    }
    let list = falling(24, 0.8);
    let got = widths(&bid(&list, 6, 500e-6), 100);
    let (tapered, flat) = (
        value(&bid(&list, 6, 500e-6), &got),
        value(&bid(&list, 6, 500e-6), &[8; 6]),
    );
    assert!(
        time(&[8; 6]) <= 500e-6 && tapered > 1.02 * flat,
        "{tapered} of {flat}"
    );
    assert!(got[0] > 12 && got[0] > 2 * got[5], "{got:?}");
}

#[test]
fn no_other_way_is_worth_much_more() {
    for (ratio, left) in [(0.4, 180e-6), (0.6, 250e-6), (0.8, 250e-6), (0.8, 350e-6)] {
        let list = falling(8, ratio);
        let bid = bid(&list, 4, left);
        let fitting = all_ways(4, 8).into_iter().filter(|way| {
            let used: Vec<u32> = way.iter().copied().filter(|&width| width > 0).collect();
            time(&used) <= left
        });
        let best = fitting.map(|way| value(&bid, &way)).fold(0.0, f64::max);
        let got = value(&bid, &widths(&bid, 100));
        assert!(got > 0.97 * best, "{ratio}, {left}: {got} of {best}");
    }
}

#[test]
fn everything_is_drafted_for_if_there_is_time() {
    let list = falling(5, 0.5);
    for left in [f64::INFINITY, 3.0 * step(5)] {
        assert_eq!(widths(&bid(&list, 3, left), 100), [5, 5, 5]);
        assert_eq!(widths(&bid(&list, 3, left), 2), [2, 2, 2]);
    }
    // A step that costs the same whatever its rows is filled.
    let flat = Taper::default()
        .widths(&bid(&list, 5, 3.5e-3), 100, |_| 1e-3)
        .to_vec();
    assert_eq!(flat, [5, 5, 5]);
}

#[test]
fn nothing_is_drafted_for_without_time_outcomes_or_worth() {
    let list = falling(5, 0.5);
    for left in [0.0, -1.0, 1e-6, f64::NAN] {
        assert_eq!(widths(&bid(&list, 3, left), 100), []);
    }
    assert_eq!(widths(&bid(&list, 0, 1.0), 100), []);
    assert_eq!(widths(&bid(&[], 3, 1.0), 100), []);
    assert_eq!(widths(&bid(&guesses([0.0, 0.0]), 3, 1e-4), 100), []);
    let mut lost = bid(&list, 3, 1e-4);
    lost.worth.miss = 9.0;
    assert_eq!(widths(&lost, 100), []);
}

#[test]
fn where_misses_are_answered_beginnings_are_not_worth_having() {
    let list = falling(24, 0.8);
    let mut own = bid(&list, 4, 400e-6);
    let most = |bid: &Bid<'_>| widths(bid, 100)[0];
    let alone = most(&own);
    own.worth.miss = 1.0;
    let got = widths(&own, 100);
    assert!(got[0] < alone, "{got:?}");
    // Two tokens are worth less than the answer to a miss.
    assert!(own.worth.saved(1) <= 0.0 && own.worth.saved(2) > 0.0);
    assert!(got[0] <= got[1] + 1, "{got:?}");
}

#[test]
fn steps_of_continuations_that_end_early_leave_time_for_more_outcomes() {
    for (ratio, left) in [(0.6, 300e-6), (0.8, 500e-6), (0.9, 700e-6)] {
        let list = falling(24, ratio);
        let whole = bid(&list, 6, left);
        let ending = Bid {
            worth: Worth {
                goes_on: 0.6,
                ..whole.worth
            },
            ..whole
        };
        let (long, short) = (widths(&whole, 100), widths(&ending, 100));
        let rows = (0..).zip(&short);
        let taken: f64 = rows
            .map(|(i, &width)| step(ending.worth.rows(i, width)))
            .sum();
        assert!(taken <= left * (1.0 + 1e-9), "{short:?}");
        assert!(short[0] > long[0], "{long:?} {short:?}");
        assert!(short.is_sorted_by(|a, b| a >= b), "{short:?}");
    }
}
