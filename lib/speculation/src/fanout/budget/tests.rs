use std::{vec, vec::Vec};

use super::*;
use crate::{
    fanout::samples::{falling, guesses, step},
    message::Rise,
    noise::philox,
};

fn word(i: u32, j: u32) -> u32 {
    philox([i, j, 0, 0], [5, 11])[0]
}

fn bid(guesses: &[Guess], left: f64) -> Bid<'_> {
    Bid {
        tenant: 0,
        guesses,
        worth: Worth {
            acceptance: 0.8,
            steps: 5,
            goes_on: 1.0,
            miss: 0.0,
        },
        left,
    }
}

/// Two with continuations of so many tokens, each of which is accepted so often.
fn bids_of(lists: &[Vec<Guess>; 2], left: f64, (steps, acceptance): (u32, f64)) -> [Bid<'_>; 2] {
    lists.each_ref().map(|list| {
        let bid = bid(list, left);
        let worth = Worth {
            acceptance,
            steps,
            ..bid.worth
        };
        Bid { worth, ..bid }
    })
}

const ONE: [Tenant; 1] = [Tenant { weight: 1.0 }];

fn divide(bids: &[Bid<'_>]) -> Vec<Grant> {
    Budgets::default().divide(&ONE, bids, 1000, step).to_vec()
}

/// What a bid gets beside one that wants nothing.
fn beside_nothing(own: Bid<'_>) -> Grant {
    divide(&[own, bid(&[], own.left)])[0]
}

#[test]
fn what_a_hit_saves_grows_with_its_depth_and_is_less_if_a_miss_is_answered() {
    let alone = Worth {
        acceptance: 0.5,
        steps: 3,
        goes_on: 1.0,
        miss: 0.0,
    };
    let saved: Vec<f64> = (0..5).map(|depth| alone.saved(depth)).collect();
    assert_eq!(saved, [0.0, 0.5, 0.75, 0.875, 0.875]);
    // A whole window in a tenth of a second, of which a session makes 2.5 tokens a second.
    let asked = alone.with_remote_fallback(Cutoff::default(), 0.1, 2.5);
    assert!((asked.miss - 0.625).abs() < 1e-12);
    assert!(asked.saved(1) <= 0.0, "a beginning is worse than the wait");
    assert!(
        (asked.saved(3) - 0.25).abs() < 1e-12,
        "a hit saves the wait"
    );
    assert!(
        alone
            .with_remote_fallback(Cutoff::default(), 10.0, 2.5)
            .miss
            <= 0.0
    );
    // One that ends before tokens of a chance of less than a fifth has two, one of less than nine tenths
    // its first.
    let ends = |cutoff| {
        let early = alone.with_remote_fallback(Cutoff::new(cutoff, Rise::default()), 0.1, 2.5);
        early.miss
    };
    assert!((ends(0.2) - 0.5).abs() < 1e-12 && (ends(0.9) - 0.25).abs() < 1e-12);
}

#[test]
fn continuations_that_end_early_take_fewer_rows_and_save_less() {
    let worth = Worth {
        acceptance: 0.8,
        steps: 4,
        goes_on: 0.5,
        miss: 0.0,
    };
    // All have a first token, and a row after it.
    let rows = [0, 1, 2, 3, 9].map(|index| worth.rows(index, 12));
    assert_eq!(rows, [12, 12, 6, 3, 1]);
    let saved = [0.8, 0.8 + 0.64 * 0.5, 0.8 + 0.64 * 0.5 + 0.512 * 0.25];
    for (depth, exact) in (1..).zip(saved) {
        assert!((worth.saved(depth) - exact).abs() < 1e-12);
    }
}

#[test]
fn no_other_number_of_branches_saves_more_in_the_time_there_is() {
    for i in 0..200 {
        let list = falling(
            1 + (word(i, 0) % 40) as i32,
            0.5 + f64::from(word(i, 1) % 45) / 100.0,
        );
        let left = 50e-6 * f64::from(1 + word(i, 2) % 60);
        let miss = f64::from(word(i, 3) % 3) / 2.0;
        let mut own = bid(&list, left);
        own.worth.miss = miss;
        let value = |branches: u32| {
            let hit: f64 = list
                .iter()
                .take(branches as usize)
                .map(|g| g.probability)
                .sum();
            hit * own.worth.saved(own.depth(step(branches)))
        };
        let got = beside_nothing(own).branches;
        let best = (1..=list.len() as u32).map(value).fold(0.0, f64::max);
        assert!(
            value(got) >= best - 1e-12,
            "{i}: {got} saves {}, not {best}",
            value(got)
        );
    }
}

#[test]
fn more_time_gives_more_branches_and_the_limit_says_what_bound() {
    let list = falling(24, 0.8);
    let of = |left| divide(&[bid(&list, left)])[0];
    let saved = |left| {
        let bid = bid(&list, left);
        let branches = beside_nothing(bid).branches;
        let hit: f64 = list
            .iter()
            .take(branches as usize)
            .map(|g| g.probability)
            .sum();
        hit * bid.worth.saved(bid.depth(step(branches)))
    };
    assert!([100e-6, 300e-6, 600e-6, 2e-3].map(saved).is_sorted());
    let limit = |left| of(left).limit;
    assert_eq!(limit(300e-6), Limit::Time);
    assert_eq!(limit(f64::INFINITY), Limit::Budget);
    assert_eq!(of(0.0).branches, 0, "what is late is worth nothing");
    let bids = [bid(&list, f64::INFINITY)];
    let few = Budgets::default().divide(&ONE, &bids, 6, step).to_vec();
    assert_eq!((few[0].branches, few[0].limit), (6, Limit::Rows));
}

#[test]
fn each_session_tapers_what_is_its_own() {
    let (sure, unsure) = (falling(24, 0.6), falling(24, 0.9));
    let left = 500e-6;
    let bids = [bid(&sure, left), bid(&unsure, left)];
    let mut budgets = Budgets::default();
    let grants = budgets.divide(&ONE, &bids, 1000, step).to_vec();
    let rows: u32 = grants.iter().map(|grant| grant.branches).sum();
    let mut taken = 0.0;
    for (index, grant) in grants.iter().enumerate() {
        let widths = budgets.widths(&bids, index, 1000, step).to_vec();
        assert!(widths.is_sorted_by(|a, b| a >= b), "{widths:?}");
        assert!(
            widths[0] >= grant.branches && widths[0] > widths[4],
            "{widths:?}"
        );
        taken += f64::from(widths.iter().sum::<u32>()) * step(rows) / f64::from(rows);
        // Where steps have few rows, it takes its part of them.
        let few = budgets.widths(&bids, index, rows, step)[0];
        assert!(few <= grant.branches, "{few} of {rows}");
    }
    assert!(taken <= left, "{taken}");
    assert!(budgets.widths(&bids, 2, 1000, step).is_empty());
    // Alone it has all of the time.
    budgets.divide(&ONE, &bids[..1], 1000, step);
    let alone = budgets.widths(&bids[..1], 0, 1000, step);
    let taken: f64 = alone.iter().map(|&rows| step(rows)).sum();
    assert!(taken <= left && taken > 0.9 * left, "{alone:?}");
}

#[test]
fn a_lookahead_that_there_is_no_time_for_changes_nothing() {
    let lists = [falling(24, 0.6), falling(24, 0.9)];
    // What a step takes it takes for one row too: there is time for nine.
    let step = |rows: u32| 1.8e-3 + 8e-6 * f64::from(rows);
    let divided = |steps| {
        let bids = bids_of(&lists, 18e-3, (steps, 0.8));
        let mut budgets = Budgets::default();
        let grants = budgets.divide(&ONE, &bids, 1000, step).to_vec();
        let widths = [0, 1].map(|index| budgets.widths(&bids, index, 1000, step).to_vec());
        (grants, widths)
    };
    let (grants, widths) = divided(9);
    assert_eq!(divided(15), (grants, widths.clone()));
    assert!(widths.iter().all(|widths| widths.len() >= 8), "{widths:?}");
}

#[test]
fn with_time_for_many_depths_all_kinds_of_them_are_tried() {
    let lists = [falling(24, 0.9), falling(24, 0.9)];
    // Rows are dear, so that few of them go deep and many do not.
    let step = |rows: u32| 20e-6 + 40e-6 * f64::from(rows);
    let value = |steps| {
        let bids = bids_of(&lists, 1e-3, (steps, 0.5));
        let grants = Budgets::default().divide(&ONE, &bids, 1000, step).to_vec();
        let rows: u32 = grants.iter().map(|grant| grant.branches).sum();
        let hits = bids.iter().zip(&grants).map(|(bid, grant)| {
            let likely = bid.guesses.iter().take(grant.branches as usize);
            let hit: f64 = likely.map(|guess| guess.probability).sum();
            hit * bid.worth.saved(bid.depth(step(rows)))
        });
        hits.sum::<f64>()
    };
    let (short, long) = (value(5), value(16));
    assert!(long >= short, "{long} and {short}");
}

#[test]
fn sessions_share_the_time_by_what_their_outcomes_are_worth() {
    let (sure, unsure) = (falling(24, 0.3), falling(24, 0.9));
    let left = 500e-6;
    let granted = divide(&[bid(&sure, left), bid(&unsure, left), bid(&unsure, left)]);
    assert!(granted[0].branches < granted[1].branches, "{granted:?}");
    assert!(granted.iter().all(|grant| grant.limit == Limit::Time));
    let rows: u32 = granted.iter().map(|grant| grant.branches).sum();
    assert!(
        4.0 * step(rows) <= left,
        "together they are too slow: {granted:?}"
    );
}

#[test]
fn time_binds_whom_longer_steps_would_cost_and_worth_whom_they_would_not() {
    let list = falling(24, 0.9);
    let limits = |bids: &[Bid<'_>]| {
        let granted = divide(bids);
        granted.iter().map(|one| one.limit).collect::<Vec<_>>()
    };
    // Many share an endpoint, each at another place in its verification.
    for count in [2, 3, 8, 16] {
        let left = |i: u32| 300e-6 + 20e-6 * f64::from(i);
        let bids: Vec<_> = (0..count).map(|i| bid(&list, left(i))).collect();
        let granted = limits(&bids);
        assert!(granted.iter().all(|&l| l == Limit::Time), "{granted:?}");
    }
    // One has all the time, and would have more if the others had no need of short steps.
    let long = falling(100, 0.97);
    let bids = [bid(&list, 500e-6), bid(&list, 500e-6), bid(&long, 1.0)];
    assert_eq!(limits(&bids), [Limit::Time, Limit::Time, Limit::Worth]);
    // For one there is none, and one has nothing to save.
    let mut bids = [bid(&list, 0.0), bid(&list, 500e-6), bid(&list, 500e-6)];
    bids[2].worth.miss = 9.0;
    assert_eq!(limits(&bids), [Limit::Time, Limit::Time, Limit::Worth]);
}

#[test]
fn a_tenant_whose_outcomes_are_unlikely_has_its_share_by_weight() {
    let tenants = [1.0, 1.0].map(|weight| Tenant { weight });
    let (good, poor) = (guesses(vec![0.04; 24]), guesses(vec![0.01; 24]));
    let other = Bid {
        tenant: 1,
        ..bid(&poor, 500e-6)
    };
    let mut bids = [bid(&good, 500e-6), other];
    // Only what is nearly whole is worth anything.
    for bid in &mut bids {
        bid.worth.miss = 1.0;
    }
    let mut budgets = Budgets::default();
    let granted = budgets.divide(&tenants, &bids, 1000, step).to_vec();
    assert!(granted[1].branches >= 2, "{granted:?}");
    assert!(granted[0].branches > granted[1].branches);
    assert_eq!(
        granted[0].limit,
        Limit::Weight,
        "its next is worth more than the other's"
    );
    let heavy = [tenants[0], Tenant { weight: 9.0 }];
    let granted = budgets.divide(&heavy, &bids, 1000, step).to_vec();
    assert!(granted[1].branches > granted[0].branches, "{granted:?}");
}

/// What `bid` saves if a step takes `step` and it has so many branches.
fn saves(bid: &Bid<'_>, branches: u32, step: f64) -> f64 {
    let likely = bid.guesses.iter().take(branches as usize);
    let hit: f64 = likely.map(|guess| guess.probability).sum();
    hit * bid.worth.saved(bid.depth(step))
}

#[test]
fn who_has_much_time_and_asks_for_much_leaves_others_their_part() {
    let tenants = [1.0, 1.0].map(|weight| Tenant { weight });
    let (own, endless) = (falling(24, 0.8), guesses(vec![0.001; 900]));
    let left = 1e-3;
    let honest = bid(&own, left);
    let mut greedy = Bid {
        tenant: 1,
        ..bid(&endless, 10.0)
    };
    greedy.worth = Worth {
        acceptance: 1.0,
        steps: 32,
        ..greedy.worth
    };
    let mut bids = vec![greedy; 7];
    bids.push(honest);
    let granted = Budgets::default()
        .divide(&tenants, &bids, 1024, step)
        .to_vec();
    let rows: u32 = granted.iter().map(|grant| grant.branches).sum();
    let saved = saves(&honest, granted[7].branches, step(rows));
    let half = |branches| saves(&honest, branches, 2.0 * step(branches));
    let alone = (1..=24).map(half).fold(0.0, f64::max);
    assert!(saved >= alone, "{saved} of {alone}, {rows} rows");
    let theirs = rows - granted[7].branches;
    assert!(theirs >= rows / 4, "{theirs} of {rows}: half by weight");
}

#[test]
fn no_tenant_has_less_than_with_fewer_rows_and_than_alone() {
    let mut bound = 0;
    for i in 0..200 {
        let weights = [0, 1, 2].map(|tenant| f64::from(1 + word(i, tenant) % 4));
        let tenants = weights.map(|weight| Tenant { weight });
        let lists =
            [0, 1, 2, 3, 4, 5].map(|j| falling(24, 0.3 + f64::from(word(i, 10 + j) % 60) / 100.0));
        let bids: Vec<_> = (0..6)
            .map(|j| Bid {
                tenant: (word(i, 20 + j) % 3) as usize,
                ..bid(
                    &lists[j as usize],
                    50e-6 * f64::from(1 + word(i, 30 + j) % 60),
                )
            })
            .collect();
        let mut budgets = Budgets::default();
        budgets.divide(&tenants, &bids, 1000, step);
        let taken: u32 = budgets.trial.iter().sum();
        let of = |rows| {
            let mut budgets = budgets.clone();
            budgets.value(rows, &tenants, &bids, &step, &mut Vec::new());
            budgets.saved
        };
        let (with, alone) = (of(taken), budgets.alone.clone());
        let mut tried = budgets.clone();
        tried.list_rows(&bids, 144, &step);
        let fewer = tried.rows.iter().filter(|&&rows| rows < taken);
        let fewer: Vec<_> = fewer.map(|&rows| of(rows)).collect();
        for (tenant, alone) in alone.into_iter().enumerate() {
            let peak = fewer.iter().map(|saved| saved[tenant]).fold(0.0, f64::max);
            assert!(with[tenant] >= alone.min(peak), "{i}: {tenant}");
            bound += u32::from(peak > with[tenant]);
        }
    }
    assert!(bound > 50, "{bound}");
}

#[test]
fn nobody_and_nothing_is_divided_as_well() {
    let mut budgets = Budgets::default();
    assert!(budgets.divide(&ONE, &[], 100, step).is_empty());
    let nothing = [bid(&[], 1.0)];
    assert_eq!(budgets.divide(&ONE, &nothing, 100, step)[0].branches, 0);
    let list = falling(4, 0.5);
    let strange = [Bid {
        tenant: 7,
        ..bid(&list, f64::NAN)
    }];
    assert_eq!(budgets.divide(&ONE, &strange, 0, step)[0].branches, 0);
}
