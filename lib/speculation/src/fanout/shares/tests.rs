use std::{vec, vec::Vec};

use super::*;
use crate::{fanout::samples::guesses, noise::philox};

fn word(i: u32, j: u32) -> u32 {
    philox([i, j, 0, 0], [31, 7])[0]
}

fn claim(tenant: usize, guesses: &[Guess]) -> Claim<'_> {
    Claim {
        tenant,
        guesses,
        saves: 3.0,
        cost: 1,
    }
}

/// Random lists of falling probabilities.
fn any_lists(i: u32, sessions: u32) -> Vec<Vec<Guess>> {
    (0..sessions)
        .map(|session| {
            let count = word(i, 100 + session) % 12;
            let mut list: Vec<f64> = (0..count)
                .map(|g| f64::from(1 + word(i, 1000 + 50 * session + g) % 1000) / 1e4)
                .collect();
            list.sort_by(|a, b| b.total_cmp(a));
            guesses(list)
        })
        .collect()
}

#[test]
fn without_a_fair_part_the_most_valuable_branches_win() {
    let (mut shares, mut grants) = (Shares::new(0.0), Vec::new());
    for i in 0..300 {
        let lists = any_lists(i, 6);
        let tenants = [Tenant { weight: 1.0 }, Tenant { weight: 2.5 }];
        let claims: Vec<Claim<'_>> = (0..).zip(&lists).map(|(s, l)| claim(s % 2, l)).collect();
        let budget = word(i, 1) % 50;
        shares.allocate(budget, &tenants, &claims, &mut grants);
        let mut values: Vec<f64> = claims
            .iter()
            .flat_map(|claim| {
                let weight = tenants[claim.tenant].weight;
                claim
                    .guesses
                    .iter()
                    .map(move |guess| guess.probability * 3.0 * weight)
            })
            .collect();
        values.sort_by(|a, b| b.total_cmp(a));
        let best: f64 = values.iter().take(budget as usize).sum();
        let got: f64 = claims
            .iter()
            .zip(&grants)
            .flat_map(|(claim, &grant)| {
                let weight = tenants[claim.tenant].weight;
                let granted = &claim.guesses[..grant as usize];
                granted
                    .iter()
                    .map(move |guess| guess.probability * 3.0 * weight)
            })
            .sum();
        assert!((best - got).abs() < 1e-9);
        assert_eq!(grants.iter().sum::<u32>(), budget.min(values.len() as u32));
    }
}

#[test]
fn a_fair_division_gives_nobody_more_while_another_wants_more_and_has_less() {
    let (mut shares, mut grants) = (Shares::new(1.0), Vec::new());
    for i in 0..500 {
        let lists = any_lists(i, 9);
        let tenants: Vec<Tenant> = (0..3)
            .map(|t| Tenant {
                weight: f64::from(1 + word(i, 10 + t) % 4),
            })
            .collect();
        let claims: Vec<Claim<'_>> = (0..).zip(&lists).map(|(s, l)| claim(s % 3, l)).collect();
        let budget = word(i, 1) % 80;
        shares.allocate(budget, &tenants, &claims, &mut grants);
        let used = shares.used();
        let wants = |t: usize| {
            let listed = claims.iter().filter(|claim| claim.tenant == t);
            let most: usize = listed.map(|claim| claim.guesses.len()).sum();
            most as u32
        };
        assert_eq!(
            used.iter().sum::<u32>(),
            budget.min((0..3).map(wants).sum())
        );
        for rich in 0..3 {
            for poor in 0..3 {
                // Taking one branch away from the rich would not leave it above the poor.
                let left = (f64::from(used[rich]) - 1.0) / tenants[rich].weight;
                let has = f64::from(used[poor]) / tenants[poor].weight;
                assert!(left <= has + 1e-12 || used[poor] == wants(poor));
            }
        }
    }
}

#[test]
fn a_fair_part_keeps_a_tenant_with_poor_guesses_from_starving() {
    let (good, poor) = (guesses([0.2; 50]), guesses([0.001; 50]));
    let claims = [claim(0, &good), claim(1, &poor)];
    let tenants = [Tenant { weight: 1.0 }, Tenant { weight: 1.0 }];
    let mut grants = Vec::new();
    for (fair, expected) in [(0.0, [40, 0]), (0.5, [30, 10]), (1.0, [20, 20])] {
        Shares::new(fair).allocate(40, &tenants, &claims, &mut grants);
        assert_eq!(grants, expected);
    }
}

#[test]
fn dear_branches_have_to_save_more() {
    let list = guesses([0.3, 0.2, 0.1]);
    let dear = Claim {
        cost: 4,
        ..claim(0, &list)
    };
    let claims = [dear, claim(0, &list)];
    let tenants = [Tenant { weight: 1.0 }];
    let (mut shares, mut grants) = (Shares::new(0.0), Vec::new());
    shares.allocate(7, &tenants, &claims, &mut grants);
    assert_eq!(grants, [1, 3]);
    // What does not fit any more leaves room for what does.
    shares.allocate(4, &tenants, &claims, &mut grants);
    assert_eq!(grants, [0, 3]);
    assert_eq!(shares.used(), [3]);
}

#[test]
fn nonsense_gets_nothing_and_harms_nobody() {
    let list = guesses([0.5, 0.5, f64::NAN]);
    let fine = claim(0, &list);
    let claims = [
        claim(7, &list),
        Claim { cost: 0, ..fine },
        Claim {
            saves: -1.0,
            ..fine
        },
        Claim {
            saves: f64::NAN,
            ..fine
        },
        claim(1, &list),
        claim(2, &list),
        fine,
    ];
    let tenants = [
        Tenant { weight: 1.0 },
        Tenant { weight: 0.0 },
        Tenant { weight: f64::NAN },
    ];
    let mut grants = Vec::new();
    for fair in [0.0, 1.0, f64::NAN] {
        Shares::new(fair).allocate(10, &tenants, &claims, &mut grants);
        assert_eq!(grants, [0, 0, 0, 0, 0, 0, 2]);
    }
}

#[test]
fn ties_go_to_who_comes_first_every_time() {
    let list = guesses([0.1; 9]);
    let claims: Vec<Claim<'_>> = (0..4).map(|t| claim(t, &list)).collect();
    let tenants = vec![Tenant { weight: 1.0 }; 4];
    let (mut shares, mut grants) = (Shares::new(1.0), Vec::new());
    for _ in 0..3 {
        shares.allocate(10, &tenants, &claims, &mut grants);
        assert_eq!(grants, [3, 3, 2, 2]);
    }
}
