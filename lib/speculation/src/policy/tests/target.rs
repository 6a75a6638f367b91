//! The target's side, message by message.

use super::*;

#[test]
fn only_the_window_of_this_epoch_round_and_length_is_verified() {
    let (mut target, _) = open_target();
    assert_eq!(target.next(US), Next::Verify(&Proposals::new()));
    target.handle(US, verified(&[TokenId(1)], 0));
    for stale in [
        window(0, 1, 10, &[1]),
        window(1, 0, 9, &[1]),
        window(1, 2, 10, &[1]),
    ] {
        target.handle(2 * US, Input::Received(&stale));
        assert!(matches!(target.next(2 * US), Next::Wait { .. }));
    }
    target.handle(3 * US, Input::Received(&window(1, 1, 10, &[4, 5, 6, 7])));
    let expected = [TokenId(4), TokenId(5), TokenId(6)];
    assert_eq!(target.next(3 * US), Next::Verify(&expected[..].into()));
    target.handle(3 * US, Input::Received(&window(1, 1, 10, &[8])));
    assert_eq!(target.next(3 * US), Next::Verify(&expected[..].into()));
}

#[test]
fn a_window_of_another_length_does_not_count() {
    let (mut target, _) = open_target();
    target.next(US);
    target.handle(US, verified(&[TokenId(1)], 0));
    target.handle(US, Input::Received(&window(1, 1, 11, &[4])));
    assert!(matches!(target.next(US), Next::Wait { .. }));
}

#[test]
fn a_late_window_is_dropped_but_teaches_patience() {
    let (mut target, _) = open_target();
    target.next(US);
    target.handle(US, verified(&[TokenId(1)], 0));
    let late = 6_000 * US;
    assert_eq!(target.next(late), Next::Verify(&Proposals::new()));
    let before = target.patience().limit();
    let effects = target.handle(late, Input::Received(&window(1, 1, 10, &[4])));
    assert!(
        effects
            .answer
            .is_some_and(|answer| answer.late && answer.tokens == 1)
    );
    assert_eq!(target.next(late), Next::Verify(&Proposals::new()));
    assert!(target.patience().limit() > before);
}

#[test]
fn a_token_outside_the_vocabulary_ends_the_speculation_of_the_session() {
    let (mut target, _) = open_target();
    target.next(US);
    target.handle(US, verified(&[TokenId(1)], 0));
    let effects = target.handle(US, Input::Received(&window(1, 1, 10, &[VOCAB])));
    assert!(matches!(effects.messages[..], [ToDraft::Close { .. }]));
    assert_eq!(target.next(US), Next::Verify(&Proposals::new()));
    assert!(!target.is_bound());
}

#[test]
fn a_refusal_ends_the_wait_and_a_temporary_one_is_asked_again() {
    for retry in [true, false] {
        let (mut target, _) = open_target();
        target.next(US);
        target.handle(US, verified(&[TokenId(1)], 0));
        let (session, epoch) = (SessionId(3), Epoch(1));
        let refused = ToTarget::Refused {
            session,
            epoch,
            reason: "full".into(),
            retry,
        };
        target.handle(US, Input::Received(&refused));
        assert_eq!(target.next(US), Next::Verify(&Proposals::new()));
        assert!(
            target
                .handle(US, verified(&[TokenId(2)], 0))
                .messages
                .is_empty()
        );
        target.next(US);
        let later = target
            .handle(20_000 * US, verified(&[TokenId(2)], 0))
            .messages;
        assert_eq!(later.len(), usize::from(retry));
        assert!(
            later
                .iter()
                .all(|m| matches!(m, ToDraft::Open(o) if o.epoch == Epoch(2)))
        );
    }
}

#[test]
fn an_endpoint_cannot_have_a_session_opened_without_end() {
    let (mut target, mut sent) = open_target();
    let asks = |target: &mut TargetSession, epoch| {
        let again = ToTarget::Resync(Resync {
            session: SessionId(3),
            epoch: Epoch(epoch),
            have_len: 0,
        });
        target.handle(US, Input::Received(&again)).messages
    };
    for epoch in 0..100 {
        sent.extend(asks(&mut target, epoch));
    }
    assert_eq!(sent.len(), 1, "the first");
    target.next(US);
    target.handle(US, verified(&[TokenId(1)], 0));
    for epoch in 0..100 {
        sent.extend(asks(&mut target, epoch));
    }
    assert_eq!(sent.len(), 2, "once for what it says to have missed");
}

#[test]
fn an_endpoint_that_loses_the_thread_before_anything_comes_is_left_in_peace_for_a_while() {
    for hears in [false, true] {
        let (mut target, mut sent) = open_target();
        for epoch in 1..=12 {
            target.next(US);
            target.handle(US, verified(&[TokenId(1)], 0));
            if hears {
                let base = target.tokens().len() as u32;
                target.handle(US, Input::Received(&window(epoch, 1, base, &[4])));
            }
            let again = ToTarget::Resync(Resync {
                session: SessionId(3),
                epoch: Epoch(epoch),
                have_len: 0,
            });
            sent.extend(target.handle(US, Input::Received(&again)).messages);
        }
        let opened = sent.iter().filter(|m| matches!(m, ToDraft::Open(_)));
        let closed = sent.iter().filter(|m| matches!(m, ToDraft::Close { .. }));
        // Each costs the whole sequence.
        let expected = if hears { (1 + 12, 0) } else { (1 + 7, 1) };
        assert_eq!((opened.count(), closed.count()), expected);
        assert_eq!(target.is_bound(), hears);
        if !hears {
            target.next(20_000 * US);
            let later = target.handle(20_000 * US, verified(&[TokenId(2)], 0));
            assert!(matches!(later.messages[..], [ToDraft::Open(_)]));
        }
    }
}

#[test]
fn an_endpoint_slower_than_was_thought_is_waited_for_longer() {
    // One that has never said a word may be dead.
    for (speaks, factors) in [(true, [1, 2, 4]), (false, [1, 1, 1])] {
        let (mut target, _) = open_target();
        if speaks {
            let opened = ToTarget::Opened {
                session: SessionId(3),
                epoch: Epoch(1),
            };
            target.handle(US, Input::Received(&opened));
        }
        let mut now = US;
        let mut waits = Vec::new();
        for _ in 0..12 {
            target.next(now);
            target.handle(now, verified(&[TokenId(1)], 0));
            if let Next::Wait { until } = target.next(now) {
                waits.push(until.saturating_sub(now));
                now = until;
            }
        }
        let first = waits[0];
        assert_eq!(waits[..3], factors.map(|factor| factor * first));
    }
}

#[test]
fn only_what_the_endpoint_of_this_binding_did_ahead_is_taken_from_its_accounts() {
    let account = |epoch| {
        ToTarget::Account(Account {
            session: SessionId(3),
            epoch: Epoch(epoch),
            judged: 1,
            ..Account::default()
        })
    };
    let opened = |policy| {
        let mut world = World::new(policy, sampling(0.0), 1, Faults::default(), 0.0, 64);
        world.target.handle(US, Input::LinkUp);
        world.target
    };
    let taken = |target: &mut TargetSession, epoch| {
        let effects = target.handle(US, Input::Received(&account(epoch)));
        effects.account.map(|account| account.judged)
    };
    let mut ahead = opened(Policy::Ssd(SsdOptions::default()));
    assert_eq!(
        [0, 1, 2].map(|epoch| taken(&mut ahead, epoch)),
        [None, Some(1), None]
    );
    ahead.handle(US, Input::LinkDown);
    assert_eq!(taken(&mut ahead, 1), None, "it is bound to nobody");
    let mut in_turn = opened(Policy::Speculative(Lookahead::Fixed(3)));
    assert_eq!(
        taken(&mut in_turn, 1),
        None,
        "nothing is drafted ahead for it"
    );
}
