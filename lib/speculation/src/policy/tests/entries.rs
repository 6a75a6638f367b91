//! The target's side of `Ssd`, message by message.

mod kept;
mod late;
mod misses;
mod parts;

use super::*;
use crate::policy::target::{AheadStats, Drafted, Effects, Lookup, Source};

const PROMPT: u32 = 9;

fn ssd_target(fallback: OnMiss) -> TargetSession {
    target_of(SsdOptions {
        lookahead: Lookahead::Fixed(3),
        budget: 4,
        fallback,
        ..SsdOptions::default()
    })
}

fn target_of(options: SsdOptions) -> TargetSession {
    let policy = Policy::Ssd(options);
    let mut world = World::new(policy, sampling(0.0), 1, Faults::default(), 0.0, 64);
    let effects = world.target.handle(Duration::ZERO, Input::LinkUp);
    let [ToDraft::Open(open)] = &effects.messages[..] else {
        unreachable!("{effects:?}");
    };
    let expected = Branching {
        lookahead: 3,
        branches: 4,
        fan_out: FanOut::Learned,
        delivery: options.delivery,
    };
    assert_eq!(open.branching, Some(expected));
    world.target
}

fn tokens(tokens: &[u32]) -> Vec<TokenId> {
    tokens.iter().map(|&t| TokenId(t)).collect()
}

/// A part for (accepted, token) pairs; later parts have none.
fn part(epoch: u32, round: u32, before: u32, keys: &[(u32, u32)], column: &[u32]) -> Entries {
    let keys = keys.iter().map(|&(accepted, token)| OutcomeKey {
        accepted,
        token: TokenId(token),
    });
    Entries {
        session: SessionId(3),
        epoch: Epoch(epoch),
        round: Round(round),
        base_len: PROMPT + round,
        before,
        keys: keys.collect(),
        tokens: tokens(column),
        ..Entries::default()
    }
}

fn receive(target: &mut TargetSession, part: Entries) -> Vec<ToDraft> {
    let message = ToTarget::Entries(part);
    target.handle(US, Input::Received(&message)).messages
}

/// Verifies what is to be verified, none of it accepted; what the endpoint is told.
fn decide(target: &mut TargetSession, token: u32) -> Outcome {
    assert!(matches!(target.next(US), Next::Verify(_)));
    let effects = target.handle(US, verified(&[TokenId(token)], 0));
    match &effects.messages[..] {
        [ToDraft::Outcome(outcome)] => outcome.clone(),
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn a_verdict_that_was_drafted_for_is_verified_on_at_once_and_told() {
    let mut target = ssd_target(OnMiss::Remote);
    receive(&mut target, part(1, 0, 0, &[(0, 5), (0, 7)], &[1, 2]));
    receive(&mut target, part(1, 0, 1, &[], &[3, 4]));
    target.next(US);
    let effects = target.handle(US, verified(&[TokenId(7)], 0));
    let lookup = Lookup {
        ended: false,
        source: Source::Ahead { place: Some(1) },
        tokens: 2,
        sought: 3,
        expected: true,
        first: true,
    };
    assert_eq!(effects.lookup, Some(lookup));
    let expected = Outcome {
        session: SessionId(3),
        epoch: Epoch(1),
        round: Round(0),
        base_len: PROMPT,
        tokens: tokens(&[7]),
        lookahead: 3,
        verifying: Some(chain(&[2, 4])),
        branches: 4,
        ..Outcome::default()
    };
    assert_eq!(effects.messages, [ToDraft::Outcome(expected)]);
    assert_eq!(target.next(US), Next::Verify(&chain(&[2, 4])));
    let stats = AheadStats {
        hits: 1,
        first_hits: 1,
        places: 1,
        used: 2,
        received: 4,
        ..AheadStats::default()
    };
    assert_eq!(target.stats().ahead, stats);
}

#[test]
fn a_token_of_a_continuation_is_used_once_however_often_there_is_no_room_for_it() {
    let mut target = ssd_target(OnMiss::Remote);
    for (before, column) in [[1, 2], [3, 4], [5, 6]].iter().enumerate() {
        let keys: &[_] = if before == 0 { &[(0, 5), (0, 7)] } else { &[] };
        receive(&mut target, part(1, 0, before as u32, keys, column));
    }
    let windows = [
        (7, chain(&[2, 4, 6])),
        (2, chain(&[4, 6])),
        (4, chain(&[6])),
    ];
    for (decided, window) in windows {
        decide(&mut target, decided);
        assert_eq!(target.next(US), Next::Verify(&window));
        assert_eq!(target.stats().ahead.used, 3);
    }
}

#[test]
fn a_driver_knows_what_more_is_to_come_of_a_continuation_and_says_how_long_it_waited() {
    let mut target = ssd_target(OnMiss::Remote);
    target.next(US);
    let (decided, other) = ([TokenId(7)], [TokenId(8)]);
    let lingered = 250 * US;
    let verdict = |tokens| Verified {
        tokens,
        lingered,
        ..Verified::default()
    };
    assert_eq!(target.drafted(&verdict(&decided)), None);
    receive(&mut target, part(1, 0, 0, &[(0, 5), (0, 7)], &[1, 2]));
    assert_eq!(target.drafted(&verdict(&decided)), Some(drafted(1, true)));
    assert_eq!(target.drafted(&verdict(&other)), None);
    receive(&mut target, part(1, 0, 1, &[], &[3, 4]));
    assert_eq!(target.drafted(&verdict(&decided)), Some(drafted(2, true)));
    receive(&mut target, part(1, 0, 2, &[], &[5, 6]));
    assert_eq!(target.drafted(&verdict(&decided)), Some(drafted(3, false)));
    let waited = Verified {
        had: Some(1),
        ..verdict(&decided)
    };
    let effects = target.handle(US, Input::Verified(waited));
    let [ToDraft::Outcome(outcome)] = &effects.messages[..] else {
        unreachable!("{effects:?}");
    };
    assert_eq!((outcome.lingered, outcome.awaited), (lingered, 2));
}

#[test]
fn verdicts_say_how_long_after_the_last_one_of_their_binding_they_are_sent() {
    let mut target = ssd_target(OnMiss::Nothing);
    let mut elapsed = |at: Duration, reopens: bool| {
        if reopens {
            target.handle(at, Input::LinkUp);
        }
        target.next(at);
        let decided = [TokenId(7)];
        let verdict = Verified {
            tokens: &decided,
            ..Verified::default()
        };
        let effects = target.handle(at, Input::Verified(verdict));
        let outcome = effects.messages.iter().find_map(|message| match message {
            ToDraft::Outcome(outcome) => Some(outcome.elapsed),
            ToDraft::Open(_) | ToDraft::Close { .. } => None,
        });
        outcome.expect("it is bound")
    };
    let nanos = Duration::from_nanos;
    // What is left out of one is in the next.
    let told = [10_000, 12_900, 15_800, 18_700].map(|at| elapsed(nanos(at), false));
    assert_eq!(told, [0, 2, 3, 3].map(|micros| micros * US));
    assert_eq!(elapsed(nanos(30_000), true), Duration::ZERO);
    assert_eq!(elapsed(nanos(35_000), false), 5 * US);
}

fn drafted(tokens: u32, grows: bool) -> Drafted {
    Drafted { tokens, grows }
}

#[test]
fn nothing_more_is_to_come_where_the_sequence_ends() {
    let policy = Policy::Ssd(SsdOptions {
        lookahead: Lookahead::Fixed(3),
        ..SsdOptions::default()
    });
    for (max_len, grows) in [(64, true), (14, true), (13, false)] {
        let mut world = World::new(policy, sampling(0.0), 1, Faults::default(), 0.0, max_len);
        world.target.handle(Duration::ZERO, Input::LinkUp);
        receive(&mut world.target, part(1, 0, 0, &[(0, 7)], &[1]));
        receive(&mut world.target, part(1, 0, 1, &[], &[2]));
        world.target.next(US);
        let verdict = Verified {
            tokens: &[TokenId(7)],
            ..Verified::default()
        };
        assert_eq!(
            world.target.drafted(&verdict),
            Some(drafted(2, grows)),
            "{max_len}"
        );
    }
}

#[test]
fn entries_of_other_rounds_epochs_and_lengths_are_never_proposed() {
    let keys = [(0, 5)];
    let mut long = part(1, 1, 0, &keys, &[1]);
    long.base_len += 1;
    let other_round = |round| Entries {
        base_len: PROMPT + 1,
        ..part(1, round, 0, &keys, &[1])
    };
    let wrong = [
        part(1, 0, 0, &keys, &[1]),
        other_round(0),
        other_round(2),
        part(0, 1, 0, &keys, &[1]),
        part(2, 1, 0, &keys, &[1]),
        long,
    ];
    for entries in wrong {
        let mut target = ssd_target(OnMiss::Nothing);
        // Held for round 0, and of no use after it.
        receive(&mut target, part(1, 0, 0, &keys, &[2]));
        decide(&mut target, 6);
        receive(&mut target, entries);
        assert_eq!(target.cached(), 0);
        let outcome = decide(&mut target, 5);
        assert_eq!(outcome.verifying, Some(Proposals::new()));
    }
    let mut target = ssd_target(OnMiss::Nothing);
    decide(&mut target, 6);
    receive(&mut target, part(1, 1, 0, &keys, &[1]));
    assert_eq!(decide(&mut target, 5).verifying, Some(chain(&[1])));
}

#[test]
fn a_token_outside_the_vocabulary_in_any_place_ends_the_speculation() {
    for wrong in [
        part(1, 0, 0, &[(0, VOCAB)], &[1]),
        part(1, 0, 0, &[(0, 1)], &[VOCAB]),
        part(1, 7, 3, &[], &[1, VOCAB]),
    ] {
        let mut target = ssd_target(OnMiss::Remote);
        let sent = receive(&mut target, wrong);
        assert!(matches!(sent[..], [ToDraft::Close { .. }]));
        assert!(!target.is_bound());
        assert_eq!(target.next(US), Next::Verify(&Proposals::new()));
    }
}

#[test]
fn whatever_an_endpoint_sends_no_more_is_held_than_was_asked_for() {
    let mut target = ssd_target(OnMiss::Nothing);
    let keys: Vec<_> = (0..1000).map(|i| (i, i % VOCAB)).collect();
    for before in 0..500 {
        let named: &[_] = if before == 0 { &keys } else { &[] };
        receive(
            &mut target,
            part(1, 0, before, named, &[before % VOCAB; 1000]),
        );
        assert!(target.cached() <= 4 * 3);
    }
    assert_eq!(target.cached(), 12);
    assert_eq!(decide(&mut target, 0).verifying, Some(chain(&[0, 1, 2])));
    // Nothing was asked for: nothing is held.
    let mut plain = open_target().0;
    receive(&mut plain, part(1, 0, 0, &keys, &[1; 1000]));
    assert_eq!(plain.cached(), 0);
}

#[test]
fn what_is_left_of_a_window_verified_in_part_is_verified_next() {
    let mut target = ssd_target(OnMiss::Remote);
    receive(&mut target, part(1, 0, 0, &[(0, 5)], &[1]));
    receive(&mut target, part(1, 0, 1, &[], &[2]));
    receive(&mut target, part(1, 0, 2, &[], &[3]));
    decide(&mut target, 5);
    assert_eq!(target.next(US), Next::Verify(&chain(&[1, 2, 3])));
    // Only the first was fed, and what is decided after it is what would have come next.
    let effects = target.handle(US, verified(&tokens(&[1, 2]), 1));
    let [ToDraft::Outcome(outcome)] = &effects.messages[..] else {
        unreachable!("{effects:?}");
    };
    assert_eq!(outcome.verifying, Some(chain(&[3])));
}

#[test]
fn a_window_that_comes_too_late_for_its_round_still_serves_the_next() {
    let mut target = ssd_target(OnMiss::Remote);
    let outcome = decide(&mut target, 5);
    assert_eq!(outcome.asks(), Some(3));
    let late = 6_000 * US;
    assert_eq!(target.next(late), Next::Verify(&Proposals::new()));
    target.handle(late, Input::Received(&window(1, 1, 10, &[1, 2, 3])));
    let effects = target.handle(late, verified(&[TokenId(1)], 0));
    let [ToDraft::Outcome(outcome)] = &effects.messages[..] else {
        unreachable!("{effects:?}");
    };
    assert_eq!(outcome.verifying, Some(chain(&[2, 3])));
}

#[test]
fn a_window_that_came_too_late_is_never_proposed_in_a_later_round() {
    let mut target = ssd_target(OnMiss::Remote);
    decide(&mut target, 5);
    let late = 6_000 * US;
    assert_eq!(target.next(late), Next::Verify(&Proposals::new()));
    target.handle(late, Input::Received(&window(1, 1, 10, &[1, 2, 3])));
    target.handle(late, verified(&[TokenId(6)], 0));
    let later = 10 * late;
    assert_eq!(target.next(later), Next::Verify(&Proposals::new()));
    let effects = target.handle(later, verified(&[TokenId(1)], 0));
    assert!(effects.lookup.is_some_and(|lookup| lookup.tokens == 0));
}

#[test]
fn an_endpoint_that_does_not_answer_is_not_asked_but_told_what_is_verified() {
    let mut target = ssd_target(OnMiss::Remote);
    let mut now = US;
    let mut told = Vec::new();
    for _ in 0..8 {
        now += 30_000 * US;
        target.next(now);
        let effects = target.handle(now, verified(&[TokenId(5)], 0));
        let Some(lookup) = effects.lookup else {
            unreachable!("{effects:?}");
        };
        let [ToDraft::Outcome(outcome)] = &effects.messages[..] else {
            unreachable!("{effects:?}");
        };
        let asks = lookup.source == Source::Fallback(Fallback::Remote);
        assert_eq!(outcome.verifying, (!asks).then(Proposals::new));
        assert_eq!(outcome.branches, 4);
        told.push(asks);
        now += 30_000 * US;
    }
    assert!(told.contains(&true) && told.contains(&false), "{told:?}");
}

#[test]
fn no_more_is_asked_for_than_the_sequence_has_room_for() {
    let options = SsdOptions {
        lookahead: Lookahead::Fixed(3),
        fallback: OnMiss::Nothing,
        ..SsdOptions::default()
    };
    // After a verdict and the token decided after the window, so many fit.
    for (max_len, first, second) in [(14, 3, 2), (13, 2, 1), (12, 1, 0), (11, 0, 0)] {
        let policy = Policy::Ssd(options);
        let mut world = World::new(policy, sampling(0.0), 1, Faults::default(), 0.0, max_len);
        let mut target = {
            let effects = world.target.handle(US, Input::LinkUp);
            let [ToDraft::Open(open)] = &effects.messages[..] else {
                unreachable!("{effects:?}");
            };
            assert_eq!(open.branching.map(|b| b.lookahead), Some(first));
            world.target
        };
        let outcome = decide(&mut target, 5);
        assert_eq!(outcome.lookahead, second, "of {max_len}");
        assert_eq!(outcome.branches > 0, second > 0);
    }
}

#[test]
fn an_endpoint_has_caught_up_once_anything_it_drafted_has_come_or_long_after_it_was_bound() {
    let mut target = ssd_target(OnMiss::Nothing);
    assert!(!target.is_caught_up());
    // Too late for its round, but a sign of life.
    target.next(US);
    decide(&mut target, 8);
    receive(&mut target, part(1, 0, 0, &[(0, 5)], &[1]));
    assert!(target.is_caught_up());
    target.handle(US, Input::LinkDown);
    assert!(!target.is_caught_up());
    target.handle(US, Input::LinkUp);
    let waited = (0..64).take_while(|_| {
        let caught_up = target.is_caught_up();
        if !caught_up {
            decide(&mut target, 8);
        }
        !caught_up
    });
    assert!((8..64).contains(&waited.count()));
}
