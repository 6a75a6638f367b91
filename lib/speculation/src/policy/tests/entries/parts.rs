//! What comes of the parts of continuations, in whatever order and length.

use super::*;

/// Parts, what is proposed after them, and how many of their tokens are of no use.
type Case = (Vec<Entries>, &'static [u32], u64);

/// Columns of two continuations; of the second its tokens, whether it may grow, and whether it ended.
type Ending = (&'static [&'static [u32]], &'static [u32], bool, bool);

#[test]
fn parts_may_come_twice_in_the_wrong_order_or_not_at_all() {
    let first = || part(1, 0, 0, &[(0, 5), (0, 6)], &[1, 2]);
    let second = || part(1, 0, 1, &[], &[3, 4]);
    let third = || part(1, 0, 2, &[], &[5, 6]);
    let cases: [Case; 6] = [
        (vec![first(), second(), third()], &[2, 4, 6], 0),
        (vec![first(), first(), second(), first()], &[2, 4], 4),
        (vec![second(), first(), third()], &[2], 4),
        (vec![first(), third(), second()], &[2, 4], 2),
        (vec![second(), third()], &[], 4),
        // Torn, without outcomes, or naming them again.
        (
            vec![
                part(1, 0, 0, &[(0, 5), (0, 6)], &[1, 2, 3]),
                part(1, 0, 0, &[], &[1, 2]),
                first(),
                part(1, 0, 1, &[(0, 6)], &[7]),
            ],
            &[2],
            6,
        ),
    ];
    for (parts, expected, late) in cases {
        let mut target = ssd_target(OnMiss::Nothing);
        for part in parts {
            receive(&mut target, part);
        }
        assert_eq!(decide(&mut target, 6).verifying, Some(chain(expected)));
        assert_eq!(target.stats().ahead.late, late);
    }
}

#[test]
fn unlikely_outcomes_get_shorter_continuations() {
    let first = || part(1, 0, 0, &[(0, 5), (0, 6), (0, 7)], &[1, 2, 3]);
    let second = || part(1, 0, 1, &[], &[4, 5]);
    let third = || part(1, 0, 2, &[], &[6]);
    for (token, expected) in [(5, &[1, 4, 6][..]), (6, &[2, 5]), (7, &[3])] {
        let mut target = ssd_target(OnMiss::Nothing);
        target.next(US);
        let decided = [TokenId(token)];
        let verdict = Verified {
            tokens: &decided,
            ..Verified::default()
        };
        for (part, came) in [(first(), 1), (second(), 2), (third(), 3)] {
            receive(&mut target, part);
            let tokens = expected.len().min(came) as u32;
            // Of the next column nothing is known before it has come.
            let grows = expected.len() >= came && came < 3;
            assert_eq!(target.drafted(&verdict), Some(drafted(tokens, grows)));
        }
        // A column that is longer than the one before it is none of this build.
        receive(&mut target, part(1, 0, 3, &[], &[8, 9]));
        assert_eq!(target.cached(), 6);
        assert_eq!(decide(&mut target, token).verifying, Some(chain(expected)));
    }
}

#[test]
fn a_continuation_ends_where_its_endpoint_says_so() {
    const OVER: u32 = Entries::ENDED.0;
    let cases: [Ending; 5] = [
        (&[&[1, 2]], &[2], true, false),
        (&[&[1, 2], &[3, OVER]], &[2], false, true),
        (&[&[1, 2], &[OVER, 4]], &[2, 4], true, false),
        (&[&[1, 2], &[3, 4], &[5, OVER]], &[2, 4], false, true),
        // What comes after its end is no part of it.
        (&[&[1, 2], &[3, OVER], &[5, 6]], &[2], false, true),
    ];
    for (columns, expected, grows, ended) in cases {
        let mut target = ssd_target(OnMiss::Nothing);
        for (before, column) in (0..).zip(columns) {
            let keys = [(0, 5), (0, 6)];
            let keys = if before == 0 { &keys[..] } else { &[] };
            receive(&mut target, part(1, 0, before, keys, column));
        }
        target.next(US);
        let verdict = Verified {
            tokens: &[TokenId(6)],
            ..Verified::default()
        };
        let tokens = expected.len() as u32;
        assert_eq!(target.drafted(&verdict), Some(drafted(tokens, grows)));
        let lookup = target.handle(US, Input::Verified(verdict)).lookup.unwrap();
        assert_eq!((lookup.tokens, lookup.sought), (tokens, 3));
        assert_eq!(lookup.ended, ended, "{columns:?}");
        assert_eq!(target.next(US), Next::Verify(&chain(expected)));
        let received = columns
            .concat()
            .iter()
            .filter(|&&token| token != OVER)
            .count();
        assert_eq!(target.stats().ahead.received, received as u64);
    }
}

#[test]
fn no_more_is_missing_of_a_continuation_than_was_asked_for_when_it_was_drafted() {
    let mut target = target_of(SsdOptions {
        lookahead: Lookahead::Adaptive { max: 3 },
        budget: 4,
        fallback: OnMiss::Remote,
        ..SsdOptions::default()
    });
    let mut sought = |token, suggested| {
        let round = target.stats().rounds;
        receive(&mut target, part(1, round, 0, &[(0, 5)], &[1]));
        target.next(US);
        let verdict = Verified {
            tokens: &[TokenId(token)],
            suggested,
            ..Verified::default()
        };
        let handled = target.handle(US, Input::Verified(verdict));
        handled.lookup.unwrap().sought
    };
    let hits = [(2, 2), (3, 2), (3, 3), (1, 1)];
    for (suggested, expected) in hits {
        assert_eq!(sought(5, suggested), expected);
    }
    // What was not drafted for is asked for: as many as are wanted now.
    assert_eq!(sought(6, 3), 3);
}
