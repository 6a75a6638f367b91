//! Outcomes after the whole window, which are begun a step later than others.

use super::*;

fn late(part: Entries) -> Entries {
    Entries { late: true, ..part }
}

/// A target with the window 1 2 3 under verification, for whose outcomes four branches are drafted.
fn with_window() -> TargetSession {
    let mut target = ssd_target(OnMiss::Nothing);
    receive(&mut target, part(1, 0, 0, &[(0, 7)], &[1]));
    receive(&mut target, part(1, 0, 1, &[], &[2]));
    receive(&mut target, part(1, 0, 2, &[], &[3]));
    assert_eq!(decide(&mut target, 7).verifying, Some(chain(&[1, 2, 3])));
    target
}

/// What is told after a verdict that accepts so many tokens of that window.
fn after(mut target: TargetSession, accepted: usize, token: u32) -> (Outcome, Option<Lookup>) {
    assert!(matches!(target.next(US), Next::Verify(_)));
    let emitted = [&[1, 2, 3][..accepted], &[token]].concat();
    let emitted = tokens(&emitted);
    let effects = target.handle(US, verified(&emitted, accepted as u32));
    let [ToDraft::Outcome(outcome)] = &effects.messages[..] else {
        unreachable!("{effects:?}");
    };
    (outcome.clone(), effects.lookup)
}

#[test]
fn they_have_columns_of_their_own_whatever_others_have() {
    let early = [
        part(1, 1, 0, &[(0, 8), (1, 9)], &[1, 2]),
        part(1, 1, 1, &[], &[3, 4]),
    ];
    let of_end = [
        late(part(1, 1, 0, &[(3, 8), (3, 9)], &[5, 6])),
        late(part(1, 1, 1, &[], &[7])),
    ];
    // As they are sent, and in any other order that keeps those of each.
    for order in [[0, 2, 1, 3], [2, 3, 0, 1], [0, 1, 2, 3], [2, 0, 3, 1]] {
        let parts = [&early[..], &of_end[..]].concat();
        for (accepted, token, window, place) in [
            (0, 8, &[1, 3][..], 0),
            (1, 9, &[2, 4], 1),
            (3, 8, &[5, 7], 2),
            (3, 9, &[6], 3),
        ] {
            let mut target = with_window();
            for number in order {
                receive(&mut target, parts[number].clone());
            }
            assert_eq!(target.cached(), 7);
            let (outcome, lookup) = after(target, accepted, token);
            assert_eq!(outcome.verifying, Some(chain(window)), "{order:?}");
            let source = Source::Ahead { place: Some(place) };
            assert_eq!(lookup.map(|lookup| lookup.source), Some(source));
        }
    }
}

#[test]
fn a_part_that_is_lost_or_comes_twice_is_one_of_theirs_alone() {
    let mut target = with_window();
    receive(&mut target, late(part(1, 1, 1, &[], &[7])));
    receive(&mut target, part(1, 1, 0, &[(0, 8)], &[1]));
    receive(&mut target, late(part(1, 1, 1, &[], &[7])));
    assert_eq!(target.cached(), 1);
    for _ in 0..2 {
        receive(&mut target, late(part(1, 1, 0, &[(3, 8)], &[5])));
        receive(&mut target, part(1, 1, 1, &[], &[3]));
    }
    assert_eq!(target.cached(), 3);
    let (outcome, _) = after(target, 3, 8);
    assert_eq!(outcome.verifying, Some(chain(&[5])));
}

#[test]
fn together_there_are_no_more_outcomes_than_were_asked_for() {
    let keys = |accepted, n| -> Vec<_> { (0..n).map(|token| (accepted, token)).collect() };
    for (first, second, kept) in [(3, 3, 4), (4, 2, 4), (9, 9, 4), (1, 2, 3)] {
        for is_late in [false, true] {
            let mut target = with_window();
            let drawn = [1; 9];
            let one = part(1, 1, 0, &keys(0, first), &drawn[..first as usize]);
            let other = part(1, 1, 0, &keys(3, second), &drawn[..second as usize]);
            for (part, late) in [(one, is_late), (other, !is_late)] {
                receive(&mut target, Entries { late, ..part });
            }
            assert_eq!(target.cached(), kept, "{first} {second}");
        }
    }
}

#[test]
fn a_verdict_waits_for_what_is_still_drafted_of_theirs() {
    let mut target = with_window();
    receive(&mut target, part(1, 1, 0, &[(0, 8)], &[1]));
    receive(&mut target, part(1, 1, 1, &[], &[2]));
    receive(&mut target, part(1, 1, 2, &[], &[3]));
    receive(&mut target, late(part(1, 1, 0, &[(3, 8)], &[5])));
    assert!(matches!(target.next(US), Next::Verify(_)));
    let found = |target: &TargetSession, emitted: &[u32], accepted| {
        let emitted = tokens(emitted);
        let verdict = Verified {
            tokens: &emitted,
            accepted,
            ..Verified::default()
        };
        let drafted = target.drafted(&verdict).unwrap();
        (drafted.tokens, drafted.grows)
    };
    assert_eq!(found(&target, &[8], 0), (3, false));
    assert_eq!(found(&target, &[1, 2, 3, 8], 3), (1, true));
    receive(&mut target, late(part(1, 1, 1, &[], &[Entries::ENDED.0])));
    assert_eq!(found(&target, &[1, 2, 3, 8], 3), (1, false));
}
