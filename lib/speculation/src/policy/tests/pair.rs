//! Both sides together, in virtual time.

use super::*;

#[test]
fn a_perfect_draft_on_a_good_link_is_accepted_always_and_saves_time() {
    for seed in [0, 1] {
        let (stats, took) = run(fixed(4), seed, Faults::default(), 0.0);
        assert_eq!(stats.accepted, stats.drafted);
        assert!(stats.rounds <= 41, "{stats:?}");
        assert_eq!((stats.missed, stats.reopened), (0, 0));
        let (plain, alone) = run(Policy::Autoregressive, seed, Faults::default(), 0.0);
        assert_eq!((plain.rounds, plain.drafted), (191, 0));
        assert!(took * 2 < alone);
    }
}

#[test]
fn a_poor_draft_changes_no_token() {
    for seed in 0..20 {
        let (stats, _) = run(fixed(4), seed, Faults::default(), 3.0);
        assert!(
            stats.accepted < stats.drafted && stats.accepted > 0,
            "{stats:?}"
        );
    }
}

#[test]
fn whatever_the_link_does_the_output_is_that_of_plain_decoding() {
    for seed in 0..150 {
        let level = (seed % 5) as u32;
        let faults = Faults {
            drop: 40 * level,
            duplicate: 60 * level,
            delay: 80 * level,
            cut: if seed % 3 == 0 { 30 } else { 0 },
            ..Faults::default()
        };
        run(
            fixed(1 + (seed % 7) as u32),
            seed,
            faults,
            (seed % 4) as f32,
        );
    }
}

#[test]
fn an_adaptive_lookahead_follows_the_suggestion_up_to_its_maximum() {
    let adaptive = |max| Policy::Speculative(Lookahead::Adaptive { max });
    let (two, _) = run(adaptive(2), 1, Faults::default(), 0.0);
    let (four, _) = run(adaptive(8), 1, Faults::default(), 0.0);
    assert!(two.rounds > 60 && four.rounds <= 41, "{two:?} {four:?}");
}

#[test]
fn speculation_recovers_after_losses() {
    let faults = Faults {
        drop: 100,
        ..Faults::default()
    };
    let (stats, took) = run(fixed(4), 11, faults, 0.0);
    assert!(stats.reopened > 0, "{stats:?}");
    assert!(stats.accepted > 80, "{stats:?}");
    let (_, alone) = run(Policy::Autoregressive, 11, Faults::default(), 0.0);
    assert!(took < alone);
}

#[test]
fn a_dead_endpoint_costs_little() {
    let faults = Faults {
        drop: 1000,
        ..Faults::default()
    };
    let (stats, took) = run(fixed(4), 2, faults, 0.0);
    let (_, alone) = run(Policy::Autoregressive, 2, Faults::default(), 0.0);
    assert!(stats.missed <= 8, "{stats:?}");
    assert!(took < alone + 9 * 5_000 * US);
}

#[test]
fn windows_shrink_before_the_maximum_length() {
    let params = sampling(0.0);
    for max_len in 10..24 {
        let expected = plain(&params, Seed(4), max_len);
        let mut world = World::new(fixed(8), params.clone(), 4, Faults::default(), 0.0, max_len);
        let (tokens, _) = world.run();
        assert_eq!(tokens, expected);
        assert_eq!(world.target.stats().accepted, world.target.stats().drafted);
    }
}
