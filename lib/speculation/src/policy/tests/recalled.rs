//! Builds for the outcomes of a window that a branch has drawn, and has read but for its last token.

use super::{
    branches::{Bench, branching, open_with, verifying},
    *,
};
use crate::policy::draft::{Purpose, Wants};

/// An endpoint that has drafted three tokens for each outcome of a prompt that ends with 2, the likeliest
/// of which is 3.
fn drafted() -> Bench {
    let mut bench = Bench::new(64);
    bench.draft.handle(&open_with(1, &[1, 2], branching(3, 4)));
    assert_eq!(bench.parts().len(), 3);
    bench
}

fn ids(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|token| token.0).collect()
}

#[test]
fn branches_begin_beside_the_last_token_of_the_window() {
    let mut bench = drafted();
    bench.draft.handle(&verifying(0, 2, &[4], &[5, 6, 7], 3));
    bench.engine.join(&mut bench.draft);
    assert_eq!(bench.engine.joined, 1);
    bench.draft.plan(&mut bench.planners);
    let (work, branches) = bench.draft.works();
    let (work, branches) = (work.unwrap(), branches.unwrap());
    assert_eq!((work.keep, ids(work.tokens)), (5, vec![7]));
    assert_eq!((work.wants, work.purpose), (Wants::Last, Purpose::Ahead));
    assert_eq!((branches.step, branches.outcomes), (0, 5));
    let early = branches.rows();
    assert!(early > 0 && early < 5, "some wait for that token");
    // A row for each outcome and step; those after the window begin with the second.
    let parts = bench.parts();
    let widths: Vec<_> = parts
        .iter()
        .map(|p| (p.late, p.before, p.tokens.len()))
        .collect();
    let late = 5 - early;
    let expected = [
        (false, 0, early),
        (false, 1, early),
        (true, 0, late),
        (false, 2, early),
        (true, 1, late),
        (true, 2, late),
    ];
    assert_eq!(widths, expected);
    for part in parts.iter().filter(|part| part.before == 0) {
        assert_eq!((part.round, part.base_len), (Round(1), 3));
        assert!(part.keys.iter().all(|key| (key.accepted == 3) == part.late));
        // The draft counts on.
        let after: Vec<_> = part
            .keys
            .iter()
            .map(|key| (key.token.0 + 1) % VOCAB)
            .collect();
        assert_eq!(ids(&part.tokens), after);
    }
    // After 7 comes 8, then 9 and so on.
    let ends: Vec<_> = parts[2].keys.iter().map(|key| key.token.0).collect();
    assert!(ends.into_iter().eq((8..).take(late)));
}

#[test]
fn a_window_of_which_more_was_read_needs_no_row() {
    let mut bench = drafted();
    bench.draft.handle(&verifying(0, 2, &[4], &[5, 6], 3));
    bench.engine.join(&mut bench.draft);
    bench.draft.plan(&mut bench.planners);
    let (work, branches) = bench.draft.works();
    assert!(work.is_none());
    assert_eq!(branches.map(|work| work.rows()), Some(5));
    let parts = bench.parts();
    assert_eq!(parts.len(), 3);
    assert!(parts.iter().all(|part| !part.late));
    assert!(parts[0].keys.iter().any(|key| key.accepted == 2));
}

#[test]
fn where_nothing_was_kept_the_window_is_read_first() {
    // Its forks are gone, or the driver has no pages: then no branch begins before its trunk is there.
    for window in [&[5, 6, 7][..], &[5, 6]] {
        let mut bench = drafted();
        bench.draft.handle(&verifying(0, 2, &[4], window, 3));
        assert!(bench.draft.take_confirmed().is_some());
        bench.draft.plan(&mut bench.planners);
        let (work, branches) = bench.draft.works();
        let work = work.unwrap();
        assert_eq!((work.keep, ids(&work.tokens[..1])), (2, vec![4]));
        assert_eq!(work.tokens.len(), 1 + window.len());
        assert_eq!(work.purpose, Purpose::Ahead);
        assert!(branches.is_none());
        let parts = bench.parts();
        assert_eq!(parts.len(), 3);
        assert!(parts.iter().all(|part| !part.late));
        assert_eq!(bench.engine.joined, 0);
    }
}

#[test]
fn a_window_that_is_read_in_parts_is_read_whole_before_branches_begin() {
    let mut bench = drafted();
    bench.draft.handle(&verifying(0, 2, &[4], &[5, 6, 7], 3));
    bench.draft.take_confirmed();
    let work = bench.draft.work().unwrap();
    let (ticket, len) = (work.ticket, work.tokens.len());
    // All but the last token.
    let nothing = bench
        .draft
        .stepped(ticket, len - 1, &[], &mut Scratch::new());
    assert_eq!(nothing, None);
    bench.draft.plan(&mut bench.planners);
    let (work, branches) = bench.draft.works();
    assert_eq!(work.map(|work| ids(work.tokens)), Some(vec![7]));
    assert!(branches.is_none());
}

#[test]
fn branches_that_nobody_remembers_confirm_nothing() {
    let mut bench = Bench::new(64);
    bench.draft.handle(&open_with(1, &[1, 2], branching(3, 40)));
    let keys = bench.parts().swap_remove(0).keys;
    let token = keys.last().unwrap().token.0;
    let window = [1, 2].map(|i| (token + i) % VOCAB);
    bench.draft.handle(&verifying(0, 2, &[token], &window, 3));
    assert_eq!(bench.draft.stats().timely, 2, "it was drafted for");
    assert_eq!(bench.draft.take_confirmed(), None);
    let work = bench.draft.work().unwrap();
    assert_eq!((work.tokens.len(), work.wants), (3, Wants::All));
}

#[test]
fn a_verdict_before_the_last_token_is_read_ends_the_build_and_says_nothing_of_it() {
    for steps in 0..3 {
        let mut bench = drafted();
        bench.draft.handle(&verifying(0, 2, &[4], &[5, 6, 7], 3));
        bench.engine.join(&mut bench.draft);
        if steps > 0 {
            bench.draft.plan(&mut bench.planners);
        }
        if steps > 1 {
            bench.steps(1);
        }
        let before = bench.draft.stats();
        bench.draft.handle(&verifying(1, 3, &[5, 6, 7, 8], &[], 3));
        let parts = bench.parts();
        assert!(parts.iter().all(|part| part.round == Round(2)));
        let after = bench.draft.stats();
        assert_eq!(after.cut, before.cut + 1);
        assert_eq!(after.judged, before.judged + 1);
        // It was the best of its row, if that was read.
        let ranked = after.ranks[0] - before.ranks[0];
        assert_eq!(ranked, u32::from(steps > 1), "{steps}");
        // Of its three tokens two were planned, since the first step reads its own; none was there.
        let planned = if steps == 0 { 0 } else { 2 };
        let missing = after.missing - before.missing;
        assert_eq!(
            (after.planned - before.planned, missing),
            (planned, planned)
        );
    }
}

#[test]
fn a_grant_is_for_those_that_begin_later_too() {
    let mut bench = drafted();
    bench.draft.handle(&verifying(0, 2, &[4], &[5, 6, 7], 3));
    bench.engine.join(&mut bench.draft);
    let planned = bench.draft.plan(&mut bench.planners).to_vec();
    let is_late: Vec<_> = planned
        .iter()
        .map(|guess| guess.key.accepted == 3)
        .collect();
    let count = |width: u32, late: bool| {
        let first = is_late.iter().take(width as usize);
        first.filter(|&&is_late| is_late == late).count()
    };
    // The first step alone has one of them.
    let last = is_late.iter().rposition(|&late| late).unwrap() as u32;
    bench.draft.grant(&[last + 1, last, 2]);
    let parts = bench.parts();
    let widths: Vec<_> = parts.iter().map(|p| (p.late, p.tokens.len())).collect();
    let mut expected = Vec::new();
    // Each step has the rows that it was granted, whosever they are, the first tokens of what begins late
    // besides; the last one goes on.
    for (early, late) in [(last + 1, 0), (last, last + 1), (2, 2), (0, 2)] {
        expected.extend([(false, count(early, false)), (true, count(late, true))]);
    }
    expected.retain(|&(_, width)| width > 0);
    assert_eq!(widths, expected);
    assert!(is_late.contains(&true) && is_late.contains(&false));
}

#[test]
fn whatever_is_kept_or_not_continuations_are_those_of_plain_decoding() {
    // The world holds each token that is sent against sequential decoding.
    for seed in 0..8 {
        let options = SsdOptions {
            lookahead: Lookahead::Fixed(1 + seed as u32 % 5),
            ..SsdOptions::default()
        };
        let params = sampling((seed % 2) as f32);
        let policy = Policy::Ssd(options);
        let mut world = World::new(policy, params, seed, Faults::default(), 0.5, 128);
        let (tokens, _) = world.run();
        assert_eq!(tokens.len(), 128);
        let (offered, joined) = world.joined();
        assert!(joined > 5 && offered > joined, "{joined} of {offered}");
        assert!(world.late > 10, "{}", world.late);
        assert!(world.checked > 500);
    }
}
