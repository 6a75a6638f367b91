use super::*;
use crate::noise::philox;

/// The `j`-th uniform number of case `i`.
fn unit(i: u32, j: u32) -> f64 {
    (f64::from(philox([i, j, 0, 0], [21, 4])[0]) + 0.5) / 4_294_967_296.0
}

fn speculator(tokens: f64, time: f64, next_hit: f64) -> Speculator {
    Speculator {
        tokens,
        time,
        next_hit,
    }
}

fn any_ahead(i: u32) -> Ahead {
    Ahead {
        primary: speculator(1.0 + 6.0 * unit(i, 0), 2.0 * unit(i, 1), unit(i, 2)),
        backup: speculator(1.0 + 3.0 * unit(i, 3), 2.0 * unit(i, 4), unit(i, 5)),
    }
}

#[test]
fn expected_tokens_are_the_geometric_sum() {
    for i in 0..200 {
        let (a, k) = (unit(i, 0) * 0.99, i % 12);
        let closed = (1.0 - libm::pow(a, f64::from(k + 1))) / (1.0 - a);
        assert!((expected_tokens(a, k) - closed).abs() < 1e-11);
    }
    assert!((expected_tokens(1.0, 7) - 8.0).abs() < 1e-12);
    assert!((expected_tokens(0.0, 7) - 1.0).abs() < 1e-12);
}

#[test]
fn the_hit_rate_is_where_the_two_state_chain_settles() {
    for i in 0..500 {
        let ahead = any_ahead(i);
        let (p, b) = (ahead.primary.next_hit, ahead.backup.next_hit);
        let settled = (0..20_000).fold(0.0, |h, _| b + (p - b) * h);
        assert!((ahead.hit_rate() - settled).abs() < 1e-9);
    }
    let absorbing = Ahead {
        backup: speculator(1.0, 0.0, 0.0),
        ..any_ahead(1)
    };
    assert!(absorbing.hit_rate().abs() < 1e-15);
    let stuck = Ahead {
        primary: speculator(4.0, 0.5, 1.0),
        backup: speculator(1.0, 0.0, 0.0),
    };
    assert!(stuck.hit_rate().abs() < 1e-15);
}

#[test]
fn a_simulated_chain_of_rounds_has_the_speedup_of_theorem_7() {
    let ahead = Ahead {
        primary: speculator(4.5, 1.2, 0.8),
        backup: speculator(1.5, 0.4, 0.55),
    };
    let (mut tokens, mut time, mut hit) = (0.0, 0.0, false);
    for i in 0..400_000 {
        let drafted = if hit { ahead.primary } else { ahead.backup };
        tokens += drafted.tokens;
        time += if hit {
            drafted.time.max(1.0)
        } else {
            1.0 + drafted.time
        };
        hit = unit(i, 0) < drafted.next_hit;
    }
    let ratio = tokens / time / ahead.speedup();
    assert!((ratio - 1.0).abs() < 3e-3, "{ratio}");
}

#[test]
fn with_one_speculator_in_both_roles_ahead_is_never_slower_than_plain_speculation() {
    // Corollary 8.
    for i in 0..2000 {
        let both = speculator(1.0 + 6.0 * unit(i, 0), 3.0 * unit(i, 1), unit(i, 2));
        let ahead = Ahead {
            primary: both,
            backup: both,
        };
        let gain = ahead.over_speculative(both.tokens, both.time);
        assert!(gain > 1.0, "{gain}");
    }
    let never = speculator(3.0, 0.7, 0.0);
    let ahead = Ahead {
        primary: never,
        backup: never,
    };
    assert!((ahead.over_speculative(3.0, 0.7) - 1.0).abs() < 1e-12);
}

#[test]
fn gains_lie_within_their_bounds_when_drafting_is_hidden_and_the_backup_is_free() {
    // Corollary 9.
    for i in 0..2000 {
        let mut ahead = any_ahead(i);
        ahead.primary.time = unit(i, 7);
        ahead.backup.time = 0.0;
        ahead.backup.tokens = ahead.backup.tokens.min(ahead.primary.tokens);
        let plain = speculator(1.0 + 5.0 * unit(i, 8), 2.0 * unit(i, 9), 0.0);
        let gain = ahead.over_speculative(plain.tokens, plain.time);
        let (least, most) = gain_bounds(plain, ahead.primary, ahead.hit_rate());
        assert!(least <= gain + 1e-12 && gain <= most + 1e-12);
        let paper = (1.0 + plain.time) * ahead.primary.tokens / plain.tokens * ahead.hit_rate();
        assert!(paper <= least);
    }
}

#[test]
fn lock_step_falls_from_the_speedup_of_one_session_to_that_without_hits() {
    for i in 0..500 {
        let mut ahead = any_ahead(i);
        ahead.primary.time = unit(i, 7);
        assert!((ahead.lock_step(1) - ahead.speedup()).abs() < 1e-12);
        let speedups = (1..40).map(|b| ahead.lock_step(b));
        assert!(speedups.clone().zip(speedups.skip(1)).all(|(a, b)| b <= a));
        let limit = ahead.tokens() / (1.0 + ahead.backup.time);
        if ahead.hit_rate() < 0.9 {
            assert!((ahead.lock_step(100_000) - limit).abs() < 1e-9);
        }
    }
}

fn lock_step(e_p: f64, e_b: f64, t_p: f64, p_p: f64, p_b: f64) -> LockStep {
    LockStep {
        primary_tokens: e_p,
        fast_tokens: e_b,
        primary_time: t_p,
        primary_hit: p_p,
        fast_hit: p_b,
    }
}

#[test]
fn batch_limits_are_those_of_the_worked_examples() {
    let cases = [
        (lock_step(4.5, 1.0, 0.6, 0.8, 0.5), 2.90),
        (lock_step(4.5, 1.0, 0.9, 0.9, 0.6), 1.42),
        (lock_step(5.2, 1.1, 0.95, 0.92, 0.7), 1.17),
    ];
    for (backups, expected) in cases {
        let limit = backups.batch_limit();
        assert!((limit - expected).abs() < 5e-3, "{limit}");
    }
}

#[test]
fn the_batch_limit_says_which_backup_is_faster_at_every_batch_size() {
    for i in 0..3000 {
        let e_b = 1.0 + 2.0 * unit(i, 1);
        let e_p = e_b + 4.0 * unit(i, 0);
        let backups = lock_step(e_p, e_b, 2.0 * unit(i, 2), unit(i, 3), unit(i, 4));
        for batch in 1..40 {
            let slow = backups.just_in_time(f64::from(batch));
            let fast = backups.fast();
            if (slow / fast - 1.0).abs() > 1e-9 {
                assert_eq!(backups.waits(batch), slow > fast, "{backups:?} {batch}");
            }
        }
    }
}

#[test]
fn extremes_of_the_batch_limit_are_decided() {
    // Worse and slower, better and free, never hitting, always hitting.
    assert!(lock_step(1.0, 2.0, 0.5, 0.5, 0.5).batch_limit() <= 0.0);
    assert!(
        lock_step(4.0, 1.0, 0.0, 0.5, 0.1)
            .batch_limit()
            .is_infinite()
    );
    assert!(lock_step(4.0, 1.0, 9.0, 0.0, 0.0).batch_limit() <= 0.0);
    assert!(!lock_step(4.0, 1.0, 9.0, 0.0, 0.0).waits(1));
    assert!(lock_step(4.0, 1.0, 9.0, 1.0, 0.0).waits(1000));
}
