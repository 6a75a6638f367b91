//! Verdicts that nothing was drafted for, and what the target's own host proposes.

use super::*;

#[test]
fn a_verdict_that_was_not_drafted_for_falls_back() {
    for fallback in [OnMiss::Nothing, OnMiss::Local, OnMiss::Remote, OnMiss::Auto] {
        let mut target = ssd_target(fallback);
        receive(&mut target, part(1, 0, 0, &[(0, 5), (1, 7)], &[1, 2]));
        let outcome = decide(&mut target, 7);
        // A choice that the driver does not make.
        let remote = matches!(fallback, OnMiss::Remote | OnMiss::Auto);
        assert_eq!(outcome.verifying, (!remote).then(Proposals::new));
        assert_eq!((outcome.lookahead, outcome.branches), (3, 4));
        assert_eq!(outcome.asks(), remote.then_some(3));
        assert_eq!(matches!(target.next(US), Next::Wait { .. }), remote);
        assert_eq!(target.stats().ahead.misses, 1);
    }
}

#[test]
fn a_proposal_of_the_targets_host_is_used_on_a_miss_only() {
    let local = tokens(&[8, 9, 10, 11]);
    for (hit, window) in [(true, &[1][..]), (false, &[8, 9, 10])] {
        let mut target = ssd_target(OnMiss::Local);
        receive(&mut target, part(1, 0, 0, &[(0, 5)], &[1]));
        target.next(US);
        let decided = [TokenId(if hit { 5 } else { 6 })];
        let result = Verified {
            tokens: &decided,
            local: &local,
            suggested: 3,
            ..Verified::default()
        };
        target.handle(US, Input::Verified(result));
        assert_eq!(target.next(US), Next::Verify(&chain(window)));
        assert_eq!(target.stats().ahead.local, u32::from(!hit));
    }
    // Without an endpoint it is all there is.
    let mut target = ssd_target(OnMiss::Remote);
    target.handle(US, Input::LinkDown);
    target.next(US);
    let result = Verified {
        tokens: &[TokenId(5)],
        local: &local,
        ..Verified::default()
    };
    assert_eq!(target.handle(US, Input::Verified(result)).messages, []);
    assert_eq!(target.next(US), Next::Verify(&local.clone().into()));
}

#[test]
fn the_rest_of_a_proposal_of_the_targets_host_that_there_was_no_room_for_is_no_hit() {
    let mut target = ssd_target(OnMiss::Local);
    let verdict = |tokens, accepted, local| {
        Input::Verified(Verified {
            tokens,
            accepted,
            local,
            ..Verified::default()
        })
    };
    let local = tokens(&[8, 9, 10]);
    target.next(US);
    target.handle(US, verdict(&[TokenId(6)], 0, &local));
    assert_eq!(target.next(US), Next::Verify(&chain(&[8, 9, 10])));
    // One of the three was verified.
    let effects = target.handle(US, verdict(&local[..2], 1, &local[2..]));
    let source = effects.lookup.map(|lookup| lookup.source);
    assert_eq!(source, Some(Source::Fallback(Fallback::Local)));
    assert_eq!((effects.local, target.stats().ahead.hits), (1, 0));
    assert_eq!(target.next(US), Next::Verify(&chain(&[10])));
}

#[test]
fn the_driver_chooses_what_follows_a_miss_where_the_policy_leaves_that_open() {
    let local = tokens(&[8, 9]);
    for (fallback, local, expected) in [
        (Fallback::Nothing, &local[..], Fallback::Nothing),
        (Fallback::Local, &local, Fallback::Local),
        (Fallback::Local, &[], Fallback::Nothing),
        (Fallback::Remote, &local, Fallback::Remote),
    ] {
        let mut target = ssd_target(OnMiss::Auto);
        target.next(US);
        let result = Verified {
            tokens: &[TokenId(5)],
            local,
            fallback: Some(fallback),
            ..Verified::default()
        };
        let effects = target.handle(US, Input::Verified(result));
        let source = effects.lookup.map(|lookup| lookup.source);
        assert_eq!(source, Some(Source::Fallback(expected)));
        let proposed = if expected == Fallback::Local { 2 } else { 0 };
        assert_eq!(effects.local, proposed);
    }
}

#[test]
fn an_endpoint_that_keeps_silent_is_stood_in_for_by_the_targets_host() {
    for policy in [fixed(3), Policy::Ssd(SsdOptions::default())] {
        let mut world = World::new(policy, sampling(0.0), 1, Faults::default(), 0.0, 64);
        let mut target = {
            world.target.handle(US, Input::LinkUp);
            world.target
        };
        let mut now = US;
        let mut stood_in = 0;
        for _ in 0..8 {
            now += 30_000 * US;
            target.next(now);
            let answered = target.is_answered();
            let local = if answered { &[][..] } else { &[TokenId(8)] };
            let result = Verified {
                tokens: &[TokenId(5)],
                suggested: 3,
                local,
                ..Verified::default()
            };
            let effects = target.handle(now, Input::Verified(result));
            assert_eq!(effects.local > 0, !answered);
            stood_in += effects.local;
        }
        assert!(stood_in > 2, "{stood_in}");
    }
}
