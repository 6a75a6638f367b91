//! Messages that break promises, one by one; their neighbours are read.

use super::*;

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
fn a_trace_that_cannot_be_read_costs_nothing_else() {
    let traced = |trace| {
        ToDraft::Open(Open {
            tokens: vec![TokenId(1)],
            trace,
            ..Open::default()
        })
    };
    let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let whole = traced(TraceContext::parse(text));
    let mut bytes = target_bytes(&target_frame(vec![whole])).to_vec();
    let at = bytes.windows(55).position(|seen| seen == text.as_bytes());
    bytes[at.expect("the text is in it")] = b'x';
    let frame = decode_target_frame(Bytes::from(bytes)).expect("the frame itself is whole");
    assert_eq!(frame.messages, [traced(None)]);
    assert!(frame.malformed.is_empty());
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
        (window(vec![(0..257).map(|id| (id, 5)).collect()]), "256"),
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
    let most = DraftFrame {
        messages: vec![window(vec![(0..256).map(|id| (id, 5)).collect()])],
        ..DraftFrame::default()
    };
    let frame = decode_draft_frame(draft_bytes(&most)).expect("the frame itself is whole");
    assert_eq!((frame.messages, frame.malformed), (most.messages, vec![]));
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
