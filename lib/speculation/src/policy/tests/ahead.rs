//! Both sides of `Ssd` together, in virtual time.

use super::*;
use crate::message::TreeBudget;

fn ssd(k: u32, budget: u32) -> SsdOptions {
    SsdOptions {
        lookahead: Lookahead::Fixed(k),
        budget,
        ..SsdOptions::default()
    }
}

fn play(
    options: SsdOptions,
    params: &SamplingParams,
    seed: u64,
    faults: Faults,
    blur: f32,
) -> (World, Duration) {
    let policy = Policy::Ssd(options);
    played(policy, params.clone(), seed, faults, blur, |_| ())
}

#[test]
fn a_perfect_draft_is_hit_by_every_verdict_after_the_first() {
    for seed in 0..4 {
        let params = demanding((seed % 2) as f32);
        let (world, took) = play(ssd(4, 12), &params, seed, Faults::default(), 0.0);
        let stats = world.target.stats();
        assert_eq!(stats.ahead.misses, stats.ahead.first_misses, "{stats:?}");
        assert!(stats.ahead.hits >= 9 * stats.ahead.misses, "{stats:?}");
        assert_eq!(stats.accepted, stats.drafted, "{stats:?}");
        assert!(stats.ahead.hits >= stats.rounds - 2, "{stats:?}");
        assert!(stats.ahead.used >= 4 * (stats.rounds - 3), "{stats:?}");
        assert_eq!((stats.missed, stats.reopened), (0, 0));
        // A hit waits for nothing: a round is a verification.
        assert!(took <= 1000 * US * (stats.rounds + 2), "{took:?} {stats:?}");
        assert!(world.checked > 500);
    }
}

#[test]
fn a_poor_draft_changes_no_token_and_is_hit_sometimes() {
    for seed in 0..12 {
        for fan_out in [FanOut::Uniform, FanOut::Geometric, FanOut::Learned] {
            let options = SsdOptions {
                fan_out,
                ..ssd(4, 24)
            };
            let params = demanding((seed % 2) as f32);
            let (world, _) = play(options, &params, seed, Faults::default(), 2.0);
            let stats = world.target.stats();
            assert!(stats.ahead.hits > stats.ahead.misses, "{stats:?}");
            let draft = world.draft.unwrap().stats();
            assert!(draft.judged + 3 >= stats.rounds && draft.pushed > 0);
            let ranked: u32 = draft.ranks.iter().sum();
            assert!(ranked >= stats.ahead.hits - 2, "{draft:?} {stats:?}");
        }
    }
}

#[test]
fn hits_save_the_round_trips_that_speculation_alone_waits_for() {
    for (seed, blur) in [(0, 0.0), (1, 0.0), (2, 2.0), (3, 2.0)] {
        let params = sampling((seed % 2) as f32);
        let (_, took) = play(ssd(4, 24), &params, seed, Faults::default(), blur);
        let mut alone = World::new(fixed(4), params, seed, Faults::default(), blur, 200);
        let (_, without) = alone.run();
        assert!(took * 6 < without * 5, "{took:?} {without:?}");
    }
}

#[test]
fn whatever_happens_the_output_is_that_of_plain_decoding() {
    let mut seen = TargetStats::default();
    for seed in 0..240_u64 {
        let level = (seed % 5) as u32;
        let some = |period, rate| if seed.is_multiple_of(period) { rate } else { 0 };
        let faults = Faults {
            drop: 40 * level,
            duplicate: 60 * level,
            delay: 80 * level,
            cut: some(3, 30),
            restart: some(4, 40),
            moved: some(7, 40),
            clip: some(6, 200),
            local: some(8, 300),
            pages: some(9, 200),
        };
        let fallbacks = [OnMiss::Nothing, OnMiss::Local, OnMiss::Remote];
        let fan_outs = [FanOut::Uniform, FanOut::Geometric, FanOut::Learned];
        let options = SsdOptions {
            fallback: fallbacks[seed as usize % 3],
            fan_out: fan_outs[seed as usize / 3 % 3],
            delivery: if seed % 11 == 10 {
                Delivery::Pull
            } else {
                Delivery::Push
            },
            ..ssd(1 + (seed % 7) as u32, 1 + (seed % 30) as u32)
        };
        let params = demanding((seed % 2) as f32);
        let (world, _) = play(options, &params, seed, faults, (seed % 4) as f32);
        let stats = world.target.stats();
        seen.missed += stats.missed;
        seen.reopened += stats.reopened;
        seen.ahead.hits += stats.ahead.hits;
        seen.ahead.misses += stats.ahead.misses;
        seen.ahead.late += stats.ahead.late;
        seen.ahead.local += stats.ahead.local;
        seen.ahead.remote += stats.ahead.remote;
        seen.ahead.alone += stats.ahead.alone;
    }
    // All of it did happen.
    let ahead = seen.ahead;
    let rare = [seen.missed, seen.reopened, ahead.local, ahead.alone];
    assert!(rare.iter().all(|&count| count > 100), "{seen:?}");
    let common = [ahead.hits, ahead.misses, ahead.remote, ahead.late as u32];
    assert!(common.iter().all(|&count| count > 1000), "{seen:?}");
}

#[test]
fn lost_parts_leave_continuations_shorter_and_speculation_useful() {
    let faults = Faults {
        drop: 50,
        duplicate: 200,
        delay: 50,
        ..Faults::default()
    };
    let (world, took) = play(ssd(4, 12), &sampling(0.0), 4, faults, 0.0);
    let stats = world.target.stats();
    assert!(stats.ahead.hits > stats.rounds / 2, "{stats:?}");
    assert!(stats.ahead.late > 0 && stats.accepted > 80, "{stats:?}");
    let (_, alone) = run(Policy::Autoregressive, 4, Faults::default(), 0.0);
    assert!(took < alone);
}

#[test]
fn without_fallback_a_miss_verifies_at_once_and_the_next_verdict_may_hit() {
    let options = SsdOptions {
        fallback: OnMiss::Nothing,
        ..ssd(4, 4)
    };
    let (world, took) = play(options, &sampling(1.0), 5, Faults::default(), 3.0);
    let stats = world.target.stats();
    assert_eq!((stats.missed, stats.ahead.remote), (0, 0));
    assert!(stats.ahead.alone > 3 && stats.ahead.hits > 3, "{stats:?}");
    // Nobody ever waits.
    assert_eq!(took, 1000 * US * stats.rounds);
}

#[test]
fn an_endpoint_that_has_no_pages_for_branches_still_serves_windows() {
    let faults = Faults {
        pages: 1000,
        ..Faults::default()
    };
    let (world, took) = play(ssd(4, 12), &sampling(0.0), 6, faults, 0.0);
    let stats = world.target.stats();
    assert_eq!((stats.ahead.hits, stats.missed), (0, 0));
    assert!(stats.ahead.misses > 0, "{stats:?}");
    assert_eq!(stats.accepted, stats.drafted);
    assert!(world.draft.unwrap().stats().dropped + 2 >= stats.rounds);
    let (without, alone) = run(fixed(4), 6, Faults::default(), 0.0);
    assert!(stats.rounds <= without.rounds && took <= alone + 5000 * US);
}

#[test]
fn a_pulled_window_is_there_when_it_is_asked_for() {
    let pull = SsdOptions {
        delivery: Delivery::Pull,
        ..ssd(4, 12)
    };
    let (world, took) = play(pull, &sampling(1.0), 7, Faults::default(), 0.0);
    let draft = world.draft.as_ref().unwrap().stats();
    assert!(draft.prepared + 2 >= draft.windows, "{draft:?}");
    let TargetStats { rounds, ahead, .. } = world.target.stats();
    assert_eq!((ahead.hits, draft.pushed), (draft.prepared, 0));
    assert_eq!(ahead.hits + ahead.misses, draft.windows);
    assert_eq!(
        (ahead.remote, ahead.received, ahead.used),
        (ahead.misses, 0, 0)
    );
    // A round trip a round, and no time to draft.
    assert!(took <= 1100 * US * (rounds + 1), "{took:?} {rounds}");
}

/// A world of `options` that ends at `max_len` tokens, with a draft of as many positions as are named
/// there; what it comes to is that of plain decoding, and nobody waits for long.
fn near_the_end(
    options: SsdOptions,
    (temperature, blur): (f32, f32),
    (max_len, draft_len): (usize, usize),
    tree: Option<TreeBudget>,
) -> World {
    let params = sampling(temperature);
    let expected = plain(&params, Seed(4), max_len);
    let faults = Faults {
        local: u32::from(options.fallback == OnMiss::Local) * 1000,
        ..Faults::default()
    };
    let policy = Policy::Ssd(options);
    let mut world = World::new(policy, params, 4, faults, blur, max_len);
    (world.draft_len, world.tree) = (draft_len, tree);
    let (tokens, took) = world.run();
    assert_eq!(tokens, expected, "{options:?}");
    let stats = world.target.stats();
    assert!(
        took < 2000 * US * (stats.rounds + 1),
        "{options:?} {took:?}"
    );
    world
}

#[test]
fn near_the_maximum_length_windows_shrink_and_nothing_hangs() {
    let (mut trees, mut local) = (0, 0);
    for (fallback, delivery) in [
        (OnMiss::Nothing, Delivery::Push),
        (OnMiss::Local, Delivery::Push),
        (OnMiss::Remote, Delivery::Push),
        (OnMiss::Remote, Delivery::Pull),
    ] {
        let options = SsdOptions {
            fallback,
            delivery,
            ..ssd(8, 16)
        };
        for max_len in 10..30 {
            for draft_len in [11, 14, 18, 64] {
                let lengths = (max_len, draft_len);
                for temperature in [0.0, 1.0] {
                    let world = near_the_end(options, (temperature, 0.0), lengths, None);
                    let stats = world.target.stats();
                    let others = stats.drafted - stats.accepted;
                    assert!(others == 0 || fallback == OnMiss::Local, "{stats:?}");
                    let tree = Some(TreeBudget::new(14, 0.0005));
                    let world = near_the_end(options, (temperature, 2.0), lengths, tree);
                    trees += world.trees.len();
                    local += world.target.stats().ahead.local;
                }
            }
        }
    }
    assert!(trees > 100 && local > 100, "{trees} {local}");
}

#[test]
fn an_adaptive_lookahead_of_nothing_costs_the_endpoint_nothing() {
    let options = SsdOptions {
        lookahead: Lookahead::Adaptive { max: 0 },
        ..SsdOptions::default()
    };
    let (world, took) = play(options, &sampling(0.0), 2, Faults::default(), 0.0);
    let draft = world.draft.unwrap().stats();
    assert_eq!((draft.builds, draft.windows), (0, 0));
    assert_eq!(took, 1000 * US * 191);
}

#[test]
fn verdicts_after_which_nothing_is_drafted_ahead_are_asked_about_and_change_no_token() {
    for (faults, delivery) in [
        (Faults::default(), Delivery::Push),
        (Faults::default(), Delivery::Pull),
        (Faults::ALL, Delivery::Push),
        (Faults::ALL, Delivery::Pull),
    ] {
        for seed in 0..12 {
            let options = SsdOptions {
                delivery,
                ..ssd(4, 12)
            };
            let params = demanding((seed % 2) as f32);
            let policy = Policy::Ssd(options);
            let with = |refrains: fn(u32) -> bool| {
                let prepare = |world: &mut World| world.refrains = refrains;
                played(policy, params.clone(), seed, faults, 0.5, prepare).0
            };
            // Turns of eight rounds; then always, which leaves the first verdict of a binding.
            let turns = with(|round| round / 8 % 2 == 1);
            let hits = turns.target.stats().ahead.hits;
            assert!(hits > 3, "{faults:?} {delivery:?}");
            let never = with(|_| true);
            let stats = never.target.stats();
            let first = stats.ahead.first_hits + stats.ahead.first_misses;
            assert_eq!(stats.ahead.hits + stats.ahead.misses, first, "{stats:?}");
            assert!(stats.ahead.remote > stats.rounds / 2, "{stats:?}");
            assert!(2 * stats.accepted > stats.rounds, "{stats:?}");
        }
    }
}
