use foretoken_speculation::{
    Epoch, Round, Seed, TokenId,
    fanout::FanOut,
    guess::OutcomeKey,
    message::{
        Branching, Delivery, Entries, Open, Outcome, Resync, Side, SparseDistribution, TreeBudget,
        Window,
    },
    saguaro::Saguaro,
    sampling::SamplingParams,
    verify::Verification,
};
use proptest::{collection::vec, option, prelude::*};

use super::*;

mod trees;

fn tokens(max: usize) -> impl Strategy<Value = Vec<TokenId>> {
    vec(any::<u32>().prop_map(TokenId), 0..max)
}

fn proposals() -> impl Strategy<Value = Proposals> {
    let nodes = vec((any::<u32>(), any::<u32>()), 0..30);
    let tree = nodes.prop_map(|nodes| {
        let mut tree = Proposals::new();
        for (parent, token) in nodes {
            // A repeated child is left out.
            tree.push(parent % (tree.len() as u32 + 1), TokenId(token))
                .ok();
        }
        tree
    });
    prop_oneof![tokens(9).prop_map(Proposals::from), tree]
}

fn sides() -> impl Strategy<Value = Vec<Side>> {
    let side = |(entry, after, token)| Side {
        entry,
        after,
        token: TokenId(token),
    };
    vec((0..300_u32, 0..70_u32, any::<u32>()).prop_map(side), 0..9)
}

fn key() -> impl Strategy<Value = (SessionId, Epoch)> {
    (
        any::<u64>().prop_map(SessionId),
        any::<u32>().prop_map(Epoch),
    )
}

fn sampling() -> impl Strategy<Value = SamplingParams> {
    let bias = vec((any::<u32>().prop_map(TokenId), -100.0_f32..100.0), 0..5);
    (
        0.0_f32..9.0,
        any::<u32>(),
        0.01_f32..=1.0,
        0.0_f32..=1.0,
        bias,
        tokens(4),
    )
        .prop_map(
            |(temperature, top_k, top_p, min_p, logit_bias, banned_until_min)| SamplingParams {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty: 1.0 + top_p,
                presence_penalty: min_p,
                frequency_penalty: -min_p,
                logit_bias,
                banned_until_min,
                min_tokens: top_k / 2,
            },
        )
}

fn branching() -> impl Strategy<Value = Option<Branching>> {
    let fan_out = prop_oneof![
        Just(FanOut::Uniform),
        Just(FanOut::Geometric),
        Just(FanOut::Learned)
    ];
    let delivery = prop_oneof![Just(Delivery::Push), Just(Delivery::Pull)];
    option::of((0..=4096_u32, 0..=4096_u32, fan_out, delivery)).prop_map(|values| {
        values.map(|(lookahead, branches, fan_out, delivery)| Branching {
            lookahead,
            branches,
            fan_out,
            delivery,
        })
    })
}

fn entries() -> impl Strategy<Value = ToTarget> {
    let keys = vec((any::<u32>(), any::<u32>()), 0..30);
    let numbers = (any::<u32>(), any::<u32>(), any::<u32>());
    let drawn = drawn(tokens(60).boxed());
    (key(), numbers, (keys, sides()), drawn).prop_map(
        |((session, epoch), (round, base_len, before), (keys, sides), (tokens, q, saguaro))| {
            let keys = keys.into_iter().map(|(accepted, token)| OutcomeKey {
                accepted,
                token: TokenId(token),
            });
            ToTarget::Entries(Entries {
                session,
                epoch,
                round: Round(round),
                base_len,
                before,
                keys: keys.collect(),
                tokens,
                sides,
                q,
                saguaro,
            })
        },
    )
}

fn saguaro() -> impl Strategy<Value = Saguaro> {
    (0..9_u32, 0..=20_u32).prop_map(|(fan_out, lost)| Saguaro::new(fan_out, lost))
}

/// Tokens, and perhaps what they were drawn from.
fn drawn(
    tokens: BoxedStrategy<Vec<TokenId>>,
) -> impl Strategy<Value = (Vec<TokenId>, Vec<SparseDistribution>, Saguaro)> {
    let q = (distribution(), distribution());
    (tokens, option::of((q, saguaro()))).prop_map(|(tokens, q)| match q {
        Some(((a, b), saguaro)) if !tokens.is_empty() => {
            let q = [a, b].into_iter().cycle().take(tokens.len()).collect();
            (tokens, q, saguaro)
        }
        Some(_) | None => (tokens, Vec::new(), Saguaro::default()),
    })
}

fn to_draft() -> impl Strategy<Value = ToDraft> {
    let how = (sampling(), option::of(1..300_u32));
    let open = (key(), how, any::<u64>(), tokens(40), branching()).prop_map(
        |((session, epoch), (sampling, support), seed, tokens, branching)| {
            let prompt_len = tokens.len() as u32 / 2;
            ToDraft::Open(Open {
                session,
                epoch,
                sampling,
                verification: support.map_or(Verification::Coupled, |support| {
                    Verification::Rejection { support }
                }),
                seed: Seed(seed),
                prompt_len,
                tokens,
                branching,
            })
        },
    );
    let tree =
        (any::<u32>(), any::<u32>()).prop_map(|(nodes, row_cost)| TreeBudget { nodes, row_cost });
    let next = (
        0..=4096_u32,
        option::of(proposals()),
        0..=4096_u32,
        option::of(tree),
        saguaro(),
    );
    let outcome = (key(), any::<u32>(), any::<u32>(), tokens(9), next).prop_map(
        |((session, epoch), round, base_len, tokens, next)| {
            let (lookahead, verifying, branches, tree, saguaro) = next;
            let round = Round(round);
            ToDraft::Outcome(Outcome {
                session,
                epoch,
                round,
                base_len,
                tokens,
                lookahead,
                verifying,
                branches,
                tree,
                saguaro,
            })
        },
    );
    let close = key().prop_map(|(session, epoch)| ToDraft::Close { session, epoch });
    prop_oneof![open, outcome, close]
}

fn distribution() -> impl Strategy<Value = SparseDistribution> {
    let token = prop_oneof![0..9_u32, any::<u32>(), Just(u32::MAX)];
    vec((token, 1..=SparseDistribution::MAX_WEIGHT), 1..6).prop_map(|mut entries| {
        entries.sort_by_key(|entry| entry.0);
        entries.dedup_by_key(|entry| entry.0);
        let entries = entries.into_iter();
        SparseDistribution {
            entries: entries
                .map(|(token, weight)| (TokenId(token), weight))
                .collect(),
        }
    })
}

fn to_target() -> impl Strategy<Value = ToTarget> {
    let opened = key().prop_map(|(session, epoch)| ToTarget::Opened { session, epoch });
    let refused =
        (key(), ".{0,20}", any::<bool>()).prop_map(|((session, epoch), reason, retry)| {
            ToTarget::Refused {
                session,
                epoch,
                reason,
                retry,
            }
        });
    let q = option::of((vec(distribution(), 9), saguaro()));
    let window = (key(), any::<u32>(), any::<u32>(), proposals(), q).prop_map(
        |((session, epoch), round, base_len, mut proposals, q)| {
            let (mut q, mut saguaro) = q.unwrap_or_default();
            if !q.is_empty() {
                proposals.truncate(q.len());
            }
            q.truncate(proposals.len());
            if q.is_empty() {
                saguaro = Saguaro::default();
            }
            ToTarget::Window(Window {
                session,
                epoch,
                round: Round(round),
                base_len,
                proposals,
                q,
                saguaro,
            })
        },
    );
    let resync = (key(), any::<u32>()).prop_map(|((session, epoch), have_len)| {
        ToTarget::Resync(Resync {
            session,
            epoch,
            have_len,
        })
    });
    prop_oneof![opened, refused, window, entries(), resync]
}

fn target_bytes(frame: &TargetFrame) -> Bytes {
    let mut bytes = BytesMut::new();
    encode_target_frame(frame, &mut bytes);
    bytes.freeze()
}

fn draft_bytes(frame: &DraftFrame) -> Bytes {
    let mut bytes = BytesMut::new();
    encode_draft_frame(frame, &mut bytes);
    bytes.freeze()
}

fn hello() -> Hello {
    Hello {
        instance: "target-0".into(),
        model_digest: "m".into(),
        tokenizer_digest: "t".into(),
        vocab_size: 4096,
        path: "avx512".into(),
        consumer: Consumer {
            namespace: "chat".into(),
            deployment: "story".into(),
        },
    }
}

proptest! {
    #[test]
    fn a_targets_frame_reads_back_what_was_written(
        messages in vec(to_draft(), 0..8),
        beat in option::of(any::<u64>()),
        credit in any::<u32>(),
        introduces in any::<bool>(),
    ) {
        let hello = introduces.then(|| (VERSION, hello()));
        let frame = TargetFrame { messages, malformed: Vec::new(), hello, beat, credit };
        let bytes = target_bytes(&frame);
        let sizes: usize = frame.messages.iter().map(FrameSize::frame_size).sum();
        prop_assert!(introduces || bytes.len() <= sizes + 32, "size is an upper bound");
        prop_assert_eq!(decode_target_frame(bytes), Ok(frame));
    }

    #[test]
    fn an_endpoints_frame_reads_back_what_was_written(
        messages in vec(to_target(), 0..8),
        beat in option::of(any::<u64>()),
        load in option::of((any::<u32>(), any::<u32>(), any::<bool>())),
    ) {
        let load = load.map(|(slots, used, draining)| LoadReport { slots, used, draining });
        let limits = Limits { slots: 3, max_positions: 9, max_frame: 1 << 20 };
        let Hello { instance, model_digest, tokenizer_digest, vocab_size, path, consumer: _ } = hello();
        let welcome =
            Welcome { instance, model_digest, tokenizer_digest, vocab_size, path, limits };
        let welcome = beat.map(|_| (VERSION, welcome));
        let frame = DraftFrame { messages, malformed: Vec::new(), welcome, beat, credit: 1, load };
        let bytes = draft_bytes(&frame);
        let sizes: usize = frame.messages.iter().map(FrameSize::frame_size).sum();
        prop_assert!(beat.is_some() || bytes.len() <= sizes + 64, "size is an upper bound");
        prop_assert_eq!(decode_draft_frame(bytes), Ok(frame));
    }

    #[test]
    fn any_bytes_are_a_frame_or_an_error(bytes in vec(any::<u8>(), 0..200)) {
        let _ = decode_target_frame(Bytes::from(bytes.clone()));
        let _ = decode_draft_frame(Bytes::from(bytes));
    }

    #[test]
    fn mutated_frames_are_frames_or_errors(
        ours in vec(to_draft(), 1..4),
        theirs in vec(to_target(), 1..4),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let ours = target_bytes(&TargetFrame { messages: ours, ..TargetFrame::default() });
        let theirs = draft_bytes(&DraftFrame { messages: theirs, ..DraftFrame::default() });
        for (bytes, is_target) in [(ours, true), (theirs, false)] {
            let mut bytes = bytes.to_vec();
            for (place, value) in &changes {
                let place = place.index(bytes.len());
                bytes[place] = *value;
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            // Whatever is read has to be writable: it keeps the promises of its types.
            if is_target {
                if let Ok(mut frame) = decode_target_frame(Bytes::from(bytes)) {
                    frame.malformed.clear();
                    prop_assert_eq!(decode_target_frame(target_bytes(&frame)), Ok(frame));
                }
            } else if let Ok(mut frame) = decode_draft_frame(Bytes::from(bytes)) {
                frame.malformed.clear();
                prop_assert_eq!(decode_draft_frame(draft_bytes(&frame)), Ok(frame));
            }
        }
    }
}

fn outcome(session: u64) -> ToDraft {
    ToDraft::Outcome(Outcome {
        session: SessionId(session),
        epoch: Epoch(1),
        round: Round(2),
        base_len: 10,
        tokens: vec![TokenId(7), TokenId(8)],
        lookahead: 4,
        ..Outcome::default()
    })
}

fn target_frame(messages: Vec<ToDraft>) -> TargetFrame {
    TargetFrame {
        messages,
        ..TargetFrame::default()
    }
}

#[test]
fn a_malformed_message_is_reported_and_its_neighbours_are_read() {
    let mut torn = target_bytes(&target_frame(vec![outcome(5)])).to_vec();
    let mut bytes = target_bytes(&target_frame(vec![outcome(4)])).to_vec();
    // A message whose body is cut off in the middle: session and epoch can be read, no more.
    let whole = torn.split_off(2);
    let cut = &whole[..whole.len() - 3];
    bytes.extend([MESSAGES, cut.len() as u8]);
    bytes.extend(cut);
    bytes.extend(target_bytes(&target_frame(vec![outcome(6)])));

    let frame = decode_target_frame(Bytes::from(bytes)).expect("the frame itself is whole");
    assert_eq!(frame.messages, [outcome(4), outcome(6)]);
    assert_eq!(frame.malformed.len(), 1);
    assert_eq!(frame.malformed[0].session, Some(SessionId(5)));
}

#[test]
fn messages_that_break_their_types_promises_are_malformed() {
    let key = (SessionId(9), Epoch(1));
    let open = |change: &dyn Fn(&mut Open)| {
        let mut open = Open {
            session: key.0,
            epoch: key.1,
            sampling: SamplingParams::default(),
            seed: Seed(1),
            prompt_len: 1,
            tokens: vec![TokenId(1)],
            ..Open::default()
        };
        change(&mut open);
        ToDraft::Open(open)
    };
    for (message, word) in [
        (
            open(&|open| open.sampling.temperature = f32::NAN),
            "temperature",
        ),
        (open(&|open| open.sampling.top_p = 0.0), "top_p"),
        (open(&|open| open.prompt_len = 2), "prompt_len"),
        (
            open(&|open| open.sampling.logit_bias = vec![(TokenId(0), f32::INFINITY)]),
            "logit_bias",
        ),
    ] {
        let frame = decode_target_frame(target_bytes(&target_frame(vec![message])));
        let malformed = frame.expect("the frame itself is whole").malformed;
        assert_eq!(malformed[0].session, Some(key.0));
        assert!(
            malformed[0].reason.contains(word),
            "{}",
            malformed[0].reason
        );
    }

    let window = |q: Vec<Vec<(u32, u32)>>| {
        let q = q.into_iter().map(|entries| SparseDistribution {
            entries: entries
                .into_iter()
                .map(|(id, p)| (TokenId(id), p))
                .collect(),
        });
        let (session, epoch) = key;
        let (round, base_len, tokens) = (Round(1), 1, vec![TokenId(1)]);
        ToTarget::Window(Window {
            session,
            epoch,
            round,
            base_len,
            proposals: tokens.into(),
            q: q.collect(),
            ..Window::default()
        })
    };
    for (message, word) in [
        (window(vec![vec![(2, 5), (1, 5)]]), "distribution"),
        (window(vec![vec![(1, 5), (1, 5)]]), "distribution"),
        (window(vec![vec![(1, 5), (2, 0)]]), "distribution"),
        (window(vec![vec![(1, 1 << 16)]]), "distribution"),
        (window(vec![vec![]]), "distribution"),
        (window(vec![vec![(1, 5)], vec![(1, 5)]]), "counts"),
    ] {
        let frame = DraftFrame {
            messages: vec![message],
            ..DraftFrame::default()
        };
        let frame = decode_draft_frame(draft_bytes(&frame)).expect("the frame itself is whole");
        assert!(
            frame.malformed[0].reason.contains(word),
            "{}",
            frame.malformed[0].reason
        );
    }
}

#[test]
fn a_frame_that_cannot_be_followed_is_an_error() {
    let good = target_bytes(&target_frame(vec![outcome(1)]));
    let cut = good.slice(..good.len() - 1);
    assert!(matches!(
        decode_target_frame(cut),
        Err(FrameError::Bytes { at: 0, .. })
    ));
    let no_key = Bytes::from_static(&[0x0d, 1, 2, 3, 4]);
    assert!(matches!(
        decode_target_frame(no_key),
        Err(FrameError::Bytes { at: 0, .. })
    ));
    let endless = Bytes::from_static(&[MESSAGES, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    assert!(matches!(
        decode_draft_frame(endless),
        Err(FrameError::Bytes { .. })
    ));
    let long_name = Hello {
        instance: "x".repeat(5000),
        ..hello()
    };
    let frame = TargetFrame {
        hello: Some((VERSION, long_name)),
        ..TargetFrame::default()
    };
    assert!(matches!(
        decode_target_frame(target_bytes(&frame)),
        Err(FrameError::Value(_))
    ));
    let many = Bytes::from([MESSAGES, 0].repeat(MAX_MESSAGES + 1));
    assert_eq!(decode_target_frame(many), Err(FrameError::TooManyMessages));
}

#[test]
fn fields_of_later_versions_are_skipped() {
    let mut bytes = target_bytes(&target_frame(vec![outcome(1)])).to_vec();
    bytes.extend([9 << 3 | 2, 3, 1, 2, 3]);
    bytes.extend(target_bytes(&target_frame(vec![outcome(2)])));
    let frame = decode_target_frame(Bytes::from(bytes)).expect("reads");
    assert_eq!(frame.messages, [outcome(1), outcome(2)]);
}

#[test]
fn a_round_drafted_ahead_takes_few_bytes_both_ways() {
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
        let part = DraftFrame {
            messages: vec![ToTarget::Entries(Entries {
                session,
                epoch,
                round,
                base_len,
                before,
                keys: (0..keys).map(key).collect(),
                tokens: (0..branches).map(token).collect(),
                ..Entries::default()
            })],
            ..DraftFrame::default()
        };
        bytes += draft_bytes(&part).len();
    }
    assert!(bytes <= 650, "{bytes} bytes a round");
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

#[test]
fn entries_that_break_their_promises_are_malformed() {
    let mut entries = proto::Entries {
        round: 1,
        base_len: 9,
        accepted: vec![0, 1],
        decided: vec![5, 6],
        tokens: vec![1, 2],
        ..proto::Entries::default()
    };
    let malformed = |entries: &proto::Entries| {
        let message = proto::DraftMessage {
            session: 9,
            epoch: 1,
            body: Some(proto::draft_message::Body::Entries(entries.clone())),
        };
        let mut bytes = BytesMut::new();
        write(&mut bytes, MESSAGES, &message);
        let frame = decode_draft_frame(bytes.freeze()).expect("the frame itself is whole");
        frame.malformed.into_iter().next()
    };
    assert_eq!(malformed(&entries), None);
    entries.accepted.pop();
    let reason = malformed(&entries).expect("keys are torn").reason;
    assert!(reason.contains("entries.accepted"), "{reason}");
    (entries.accepted, entries.decided) = (vec![0; 5000], vec![0; 5000]);
    let reason = malformed(&entries).expect("too many keys").reason;
    assert!(reason.contains("entries.decided"), "{reason}");
    (entries.accepted, entries.decided) = (Vec::new(), Vec::new());
    entries.tokens = vec![1; 1 << 17];
    let reason = malformed(&entries).expect("too many tokens").reason;
    assert!(reason.contains("entries.tokens"), "{reason}");
}
