//! What only the endpoint knows: `Delivery::Pull`.

use super::*;

fn kept_target() -> TargetSession {
    target_with(Delivery::Pull)
}

fn target_with(delivery: Delivery) -> TargetSession {
    target_of(SsdOptions {
        lookahead: Lookahead::Adaptive { max: 3 },
        budget: 4,
        delivery,
        ..SsdOptions::default()
    })
}

/// Verifies what there is, none of it accepted; `suggested` tokens are asked for.
fn decided(target: &mut TargetSession, suggested: u32) -> Effects {
    decided_at(US, target, suggested)
}

fn decided_at(now: Duration, target: &mut TargetSession, suggested: u32) -> Effects {
    target.next(now);
    let tokens = tokens(&[5]);
    let verified = Verified {
        tokens: &tokens,
        suggested,
        ..Verified::default()
    };
    target.handle(now, Input::Verified(verified))
}

/// What the target makes of a window that comes after its first verdict, at `now`.
fn looked_up(now: Duration, message: &ToTarget) -> (Option<Lookup>, AheadStats) {
    let mut target = kept_target();
    assert_eq!(decided(&mut target, 3).lookup, None);
    assert_eq!(target.stats().ahead, AheadStats::default());
    target.next(now);
    let effects = target.handle(now, Input::Received(message));
    (effects.lookup, target.stats().ahead)
}

#[test]
fn a_window_says_whether_it_had_been_drafted_for_the_verdict() {
    let (lookup, stats) = looked_up(US, &prepared(2, window(1, 1, 10, &[1, 2])));
    let expected = Lookup {
        source: Source::Ahead { place: Some(2) },
        tokens: 2,
        sought: 3,
        ended: false,
        expected: true,
        first: true,
    };
    assert_eq!(lookup, Some(expected));
    let counted = AheadStats {
        hits: 1,
        first_hits: 1,
        places: 2,
        ..AheadStats::default()
    };
    assert_eq!(stats, counted);
}

#[test]
fn what_hits_wait_for_says_nothing_of_what_misses_wait_for() {
    // What is pushed and comes too late is what endpoints usually have when a miss asks them.
    for (delivery, is_hit) in [(Delivery::Pull, true), (Delivery::Push, false)] {
        for place in [Some(2), None] {
            let mut target = target_with(delivery);
            decided(&mut target, 3);
            target.next(US);
            let asked = window(1, 1, 10, &[1, 2]);
            let message = place.map_or(asked.clone(), |place| prepared(place, asked));
            let effects = target.handle(US, Input::Received(&message));
            let told = effects.answer.map(|answer| answer.prepared);
            assert_eq!(told, Some(is_hit && place.is_some()), "{delivery:?}");
        }
    }
}

#[test]
fn what_was_not_drafted_for_it_or_comes_too_late_is_a_miss() {
    let late = 6_000 * US;
    for (now, message) in [
        (US, window(1, 1, 10, &[1, 2])),
        // Nobody drafts for a fifth outcome, and nothing is not worth a hit.
        (US, prepared(4, window(1, 1, 10, &[1, 2]))),
        (US, prepared(0, window(1, 1, 10, &[]))),
        (late, prepared(0, window(1, 1, 10, &[1, 2]))),
    ] {
        let (lookup, stats) = looked_up(now, &message);
        let source = lookup.map(|lookup| lookup.source);
        assert_eq!(source, Some(Source::Fallback(Fallback::Remote)));
        let counted = AheadStats {
            misses: 1,
            first_misses: 1,
            remote: 1,
            ..AheadStats::default()
        };
        assert_eq!(stats, counted, "{message:?}");
    }
}

#[test]
fn a_window_that_has_not_come_by_the_verdict_on_its_round_is_a_miss_once() {
    let mut target = kept_target();
    assert!(!decided(&mut target, 3).lost);
    assert!(decided_at(6_000 * US, &mut target, 3).lost);
    let stats = target.stats().ahead;
    assert_eq!((stats.misses, stats.first_misses, stats.remote), (1, 1, 1));
    // Its window comes after all, and the next one with it.
    let late = prepared(0, window(1, 1, PROMPT + 1, &[1]));
    assert_eq!(target.handle(US, Input::Received(&late)).lookup, None);
    let next = prepared(0, window(1, 2, PROMPT + 2, &[1]));
    assert!(target.handle(US, Input::Received(&next)).lookup.is_some());
    let stats = target.stats().ahead;
    assert_eq!((stats.hits, stats.misses), (1, 1));
}

#[test]
fn of_a_verdict_that_nothing_was_to_be_drafted_for_the_window_tells_nothing() {
    let mut target = kept_target();
    for (suggested, heard) in [(0, (false, false)), (3, (true, false)), (3, (true, true))] {
        decided(&mut target, suggested);
        let round = target.stats().rounds;
        let message = prepared(0, window(1, round, PROMPT + round, &[1]));
        let effects = target.handle(US, Input::Received(&message));
        assert_eq!((effects.answer.is_some(), effects.lookup.is_some()), heard);
    }
}
