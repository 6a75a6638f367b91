//! The law of what is emitted, by many samples of whole worlds with lossy links.

use super::*;
use crate::{
    message::TreeBudget,
    noise::{Domain, Noise},
    proposal::Laws,
    verify::{RoundCoins, Verdict},
};

/// How often each sequence of three tokens is emitted, against the target's law: chi-square, and
/// its degrees of freedom.
fn chi_square(runs: u32, run: impl Fn(u64) -> Vec<TokenId>) -> (f64, f64) {
    let mut counts: BTreeMap<Vec<TokenId>, u32> = BTreeMap::new();
    for seed in 0..runs {
        let tokens = run(u64::from(seed))[prompt().len()..][..3].to_vec();
        *counts.entry(tokens).or_insert(0) += 1;
    }
    let mut statistic = 0.0;
    for (tokens, &count) in &counts {
        let expected = f64::from(runs) * joint(&prompt(), tokens);
        assert!(expected > 0.0, "{tokens:?} cannot be");
        statistic += (f64::from(count) - expected).powi(2) / expected;
    }
    (statistic, counts.len() as f64 - 1.0)
}

/// Deviations beyond what chance allows, in standard deviations of the statistic.
fn excess((statistic, freedom): (f64, f64)) -> f64 {
    (statistic - freedom) / (2.0 * freedom).sqrt()
}

fn emitted(
    policy: Policy,
    seed: u64,
    faults: Faults,
    decide: Option<world::Decide>,
) -> Vec<TokenId> {
    let mut world = small_world(policy, seed, faults);
    world.decide = decide.unwrap_or(world.decide);
    world.run().0
}

fn small_world(policy: Policy, seed: u64, faults: Faults) -> World {
    let max_len = prompt().len() + 5;
    World::verifying(REJECTION, policy, params(), seed, faults, 1.5, max_len)
}

const LOSSY: Faults = Faults {
    drop: 60,
    duplicate: 100,
    delay: 150,
    cut: 30,
    restart: 60,
    moved: 60,
    clip: 200,
    pages: 100,
    local: 150,
};

fn pull() -> Policy {
    Policy::Ssd(SsdOptions {
        lookahead: Lookahead::Fixed(3),
        delivery: Delivery::Pull,
        ..SsdOptions::default()
    })
}

/// Policies over links that lose nothing and everything; the target's host makes so many proposals, in
/// thousandths, where they follow misses.
fn over_links(local: u32) -> [(Policy, Faults); 6] {
    let offered = Faults { local, ..LOSSY };
    [
        (fixed(3), Faults::default()),
        (ahead(OnMiss::Remote), Faults::default()),
        (fixed(3), LOSSY),
        (ahead(OnMiss::Remote), LOSSY),
        (ahead(OnMiss::Local), offered),
        (pull(), LOSSY),
    ]
}

#[test]
fn samples_follow_the_targets_law_over_links_that_lose_everything() {
    let alone = (ahead(OnMiss::Nothing), LOSSY);
    for (policy, faults) in over_links(1000).into_iter().chain([alone]) {
        let found = chi_square(6000, |seed| emitted(policy, seed, faults, None));
        assert!(excess(found) < 4.0, "{policy:?} {faults:?}: {found:?}");
    }
}

/// A small world in which windows and continuations may be trees, as rows cost next to nothing.
fn wooded_world(policy: Policy, seed: u64, faults: Faults) -> World {
    let mut world = small_world(policy, seed, faults);
    world.tree = Some(TreeBudget::new(9, 0.0005));
    world
}

#[test]
fn samples_of_trees_follow_the_targets_law_over_links_that_lose_everything() {
    for (policy, faults) in over_links(500) {
        for lowering in [|_| Saguaro::default(), unsteady] {
            let trees = core::cell::Cell::new(0);
            let found = chi_square(6000, |seed| {
                let mut world = wooded_world(policy, seed, faults);
                world.lowering = lowering;
                let tokens = world.run().0;
                trees.set(trees.get() + world.trees.len());
                tokens
            });
            assert!(excess(found) < 4.0, "{policy:?} {faults:?}: {found:?}");
            assert!(trees.get() > 1000, "{policy:?} {faults:?}: {trees:?} trees");
        }
    }
}

#[test]
fn samples_of_trees_show_it_if_what_they_were_drawn_from_is_not_told() {
    let even: fn(&Laws) -> Vec<SparseDistribution> = |laws| {
        let mut q = laws.q.clone();
        let entries = q.iter_mut().flat_map(|q| &mut q.entries);
        entries.for_each(|entry| entry.1 = 1);
        q
    };
    for (name, told) in [
        ("C", (|laws| laws.q.clone()) as fn(&Laws) -> _),
        ("q", even),
    ] {
        let found = chi_square(3000, |seed| {
            let mut world = wooded_world(fixed(3), seed, Faults::default());
            world.lowering = unsteady;
            world.told = told;
            world.run().0
        });
        assert!(excess(found) > 8.0, "{name} passes: {found:?}");
    }
}

/// C goes up and down from round to round, between 1 and 0.
fn unsteady(round: u32) -> Saguaro {
    Saguaro::new(1 + round / 3 % 2, [13, 0, 20, 7][round as usize % 4])
}

#[test]
fn samples_follow_the_targets_law_while_c_changes_from_round_to_round() {
    for (policy, faults) in [
        (fixed(3), Faults::default()),
        (ahead(OnMiss::Remote), Faults::default()),
        (ahead(OnMiss::Remote), LOSSY),
        (pull(), LOSSY),
    ] {
        let found = chi_square(6000, |seed| {
            let mut world = small_world(policy, seed, faults);
            world.lowering = unsteady;
            world.run().0
        });
        assert!(excess(found) < 4.0, "{policy:?} {faults:?}: {found:?}");
    }
}

#[test]
fn samples_show_it_if_a_changed_c_is_not_told() {
    let found = chi_square(3000, |seed| {
        let mut world = small_world(fixed(3), seed, Faults::default());
        world.lowering = unsteady;
        world.told = |laws| laws.q.clone();
        world.run().0
    });
    assert!(excess(found) > 8.0, "it passes: {found:?}");
}

/// Coins that reuse the noise which the proposals were drawn with.
struct Spent(Noise, u32);

impl Coins for Spent {
    fn accept(&mut self, probability: f64) -> bool {
        self.1 += 1;
        self.0.uniform(self.1 - 1) < probability
    }

    fn pick(&mut self, weights: &[f64]) -> usize {
        let mut left = self.0.uniform(0) * weights.iter().sum::<f64>();
        let found = weights.iter().position(|weight| {
            left -= weight;
            left < 0.0
        });
        found.unwrap_or(0)
    }
}

#[test]
fn samples_show_it_if_anything_is_wrong() {
    let noise_by_position: world::Decide = |sampler, scratch, drawn, _, rows| {
        let noise = Noise::new(sampler.seed(), Domain::Propose, sampler.position());
        let coins = &mut Spent(noise, 0);
        ratio_chain(RULE, sampler, scratch, drawn, |i| &rows[i], coins)
    };
    let greedy_acceptance: world::Decide = |sampler, scratch, drawn, _, rows| {
        let mut accepted = 0;
        for (row, &token) in rows.iter().zip(drawn.window) {
            let likeliest = crate::sampling::logprobs(row, token, 0, scratch).rank == 0;
            if !likeliest {
                break;
            }
            sampler.push(token);
            accepted += 1;
        }
        let decided = sampler.choose(&rows[accepted], scratch);
        sampler.push(decided);
        Verdict { accepted, decided }
    };
    let wrong_residual: world::Decide = |sampler, scratch, drawn, verification, rows| {
        let mut coins = RoundCoins::new(sampler.seed(), sampler.position(), verification);
        let base = sampler.history().len();
        let row = |i: usize| &rows[i][..];
        let verdict = ratio_chain(RULE, sampler, scratch, drawn, row, &mut coins);
        sampler.truncate(base + verdict.accepted);
        // The target's law instead of what the draft leaves of it.
        let decided = sampler.choose(&rows[verdict.accepted], scratch);
        sampler.push(decided);
        Verdict { decided, ..verdict }
    };
    let lie: world::Decide = |sampler, scratch, drawn, verification, rows| {
        let even = |q: &SparseDistribution| SparseDistribution {
            entries: q.entries.iter().map(|entry| (entry.0, 1)).collect(),
        };
        let q: Vec<_> = drawn.q.iter().map(even).collect();
        let mut coins = RoundCoins::new(sampler.seed(), sampler.position(), verification);
        let drawn = Drawn { q: &q, ..drawn };
        ratio_chain(RULE, sampler, scratch, drawn, |i| &rows[i], &mut coins)
    };
    for (name, wrong) in [
        ("noise by position", noise_by_position),
        ("greedy acceptance", greedy_acceptance),
        ("residual", wrong_residual),
        ("a lie about q", lie),
    ] {
        let faults = Faults::default();
        let found = chi_square(3000, |seed| emitted(fixed(3), seed, faults, Some(wrong)));
        assert!(excess(found) > 8.0, "{name} passes: {found:?}");
    }
}
