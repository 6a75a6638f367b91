//! Windows and continuations that end where the next token is not worth its time.

use super::*;
use crate::{
    message::{Cutoff, Cutoffs},
    verify::Verification,
};

fn cutoffs(window: f64, entries: f64) -> Cutoffs {
    Cutoffs {
        window: Cutoff::new(window),
        entries: Cutoff::new(entries),
    }
}

fn ssd(delivery: Delivery) -> Policy {
    Policy::Ssd(SsdOptions {
        lookahead: Lookahead::Fixed(6),
        budget: 12,
        delivery,
        ..SsdOptions::default()
    })
}

fn play(policy: Policy, seed: u64, faults: Faults, blur: f32, cutoffs: Cutoffs) -> World {
    let params = demanding([0.0, 0.7, 1.0][seed as usize % 3]);
    let expected = plain(&params, Seed(seed), 200);
    let mut world = World::new(policy, params, seed, faults, blur, 200);
    world.cutoffs = cutoffs;
    let (tokens, _) = world.run();
    assert_eq!(tokens, expected, "seed {seed}, {policy:?}, {faults:?}");
    world
}

#[test]
fn what_ends_early_changes_no_token_whatever_becomes_of_messages_and_endpoints() {
    let faults = Faults {
        drop: 60,
        duplicate: 100,
        delay: 150,
        cut: 15,
        restart: 15,
        moved: 15,
        clip: 200,
        pages: 100,
        local: 100,
    };
    for policy in [fixed(6), ssd(Delivery::Push), ssd(Delivery::Pull)] {
        for faults in [Faults::default(), faults] {
            for seed in 0..12 {
                let cutoff = 0.1 * (1 + seed % 9) as f64;
                play(policy, seed, faults, 1.5, cutoffs(cutoff, cutoff));
            }
        }
    }
}

#[test]
fn less_is_verified_and_nearly_as_much_accepted() {
    for policy in [fixed(6), ssd(Delivery::Push)] {
        let sum = |cutoffs| {
            let stats = (0..12).map(|seed| {
                let world = play(policy, seed, Faults::default(), 1.5, cutoffs);
                let stats = world.target.stats();
                (stats.drafted, stats.accepted)
            });
            stats.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        let (all, accepted) = sum(Cutoffs::default());
        let (some, kept) = sum(cutoffs(0.3, 0.3));
        assert!(some * 10 < all * 8, "{policy:?}: {some} of {all} drafted");
        // What is left out is accepted less often than what is not.
        let (left_out, missed) = (all - some, accepted.saturating_sub(kept));
        assert!(
            missed * some < left_out * kept / 2,
            "{policy:?}: {kept} of {some}, {accepted} of {all}"
        );
    }
}

#[test]
fn a_draft_that_is_always_right_comes_to_make_whole_windows() {
    for policy in [fixed(6), ssd(Delivery::Push)] {
        let world = play(policy, 0, Faults::default(), 0.0, cutoffs(0.5, 0.5));
        let stats = world.target.stats();
        assert!(stats.drafted > 5 * stats.rounds, "{policy:?}: {stats:?}");
    }
}

#[test]
fn however_unlikely_tokens_are_one_is_proposed() {
    for policy in [fixed(6), ssd(Delivery::Push)] {
        let stats = play(policy, 0, Faults::default(), 2.0, cutoffs(1.0, 1.0))
            .target
            .stats();
        assert!(stats.drafted > stats.rounds / 2, "{policy:?}: {stats:?}");
        assert!(stats.drafted <= stats.rounds + 6, "{policy:?}: {stats:?}");
    }
}

#[test]
fn proposals_that_are_drawn_by_ratio_never_end_by_what_they_are() {
    let support = Verification::Rejection { support: 8 };
    for policy in [fixed(6), ssd(Delivery::Push)] {
        let faults = Faults::default();
        let mut world = World::verifying(support, policy, sampling(1.0), 1, faults, 1.5, 120);
        world.cutoffs = cutoffs(1.0, 1.0);
        world.run();
        let stats = world.target.stats();
        assert!(stats.drafted > 3 * stats.rounds, "{policy:?}: {stats:?}");
    }
}
