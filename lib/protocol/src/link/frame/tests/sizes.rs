//! What messages take on the wire.

use std::time::Duration;

use foretoken_speculation::fanout::Limit;

use super::*;

#[test]
fn a_round_drafted_ahead_takes_few_bytes_both_ways() {
    for (rise, most) in [(Rise::default(), 680), (Rise::new(4, 0.2), 684)] {
        let bytes = round_drafted_ahead(Cutoffs::new(0.25, 0.05, rise));
        assert!(bytes <= most, "{bytes} bytes a round");
    }
}

/// Bytes of the frames of a round that is told these cutoffs.
fn round_drafted_ahead(cutoffs: Cutoffs) -> usize {
    // Of a vocabulary of 150 000, after 100 000 tokens, far into a long session.
    let token = |i: u32| TokenId(149_000 - i);
    let (branches, lookahead, round) = (24, 5, Round(20_000));
    let (session, epoch, base_len) = (SessionId(100_000), Epoch(3), 100_000);
    let outcome = TargetFrame {
        messages: vec![ToDraft::Outcome(Outcome {
            session,
            epoch,
            round,
            base_len,
            tokens: (0..=lookahead).map(token).collect(),
            lookahead,
            verifying: Some((0..lookahead).map(token).collect::<Vec<_>>().into()),
            branches,
            cutoffs,
            lingered: Duration::from_micros(900),
            awaited: 2,
            elapsed: Duration::from_millis(23),
            ..Outcome::default()
        })],
        ..TargetFrame::default()
    };
    let mut bytes = target_bytes(&outcome).len();
    for before in 0..lookahead {
        let key = |i: u32| OutcomeKey {
            accepted: i % (lookahead + 1),
            token: token(i),
        };
        let keys = if before == 0 { branches } else { 0 };
        let entries = ToTarget::Entries(Entries {
            session,
            epoch,
            round,
            base_len,
            before,
            keys: (0..keys).map(key).collect(),
            tokens: (0..branches).map(token).collect(),
            ..Entries::default()
        });
        let account = (before == 0).then(|| ToTarget::Account(account(session, epoch)));
        let part = DraftFrame {
            messages: [entries].into_iter().chain(account).collect(),
            ..DraftFrame::default()
        };
        bytes += draft_bytes(&part).len();
    }
    bytes
}

/// What the first column of a build comes with.
fn account(session: SessionId, epoch: Epoch) -> Account {
    let mut limits = BoundCounts::default();
    limits.add(Limit::Time);
    Account {
        session,
        epoch,
        judged: 1,
        ranked: 1,
        ranks: 3,
        ahead: Duration::from_micros(12_700),
        awaited: Duration::from_micros(2_540),
        limits,
    }
}

#[test]
fn messages_without_speculation_ahead_are_written_as_ever() {
    let frame = target_frame(vec![outcome(5)]);
    let expected = [
        MESSAGES,
        22,
        1 << 3,
        5,
        2 << 3,
        1,
        4 << 3 | 2,
        16,
        1 << 3,
        2,
        2 << 3,
        10,
        3 << 3 | 2,
        8,
        7,
        0,
        0,
        0,
        8,
        0,
        0,
        0,
        4 << 3,
        4,
    ];
    assert_eq!(&target_bytes(&frame)[..], expected);
}
