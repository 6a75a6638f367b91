use foretoken_speculation::{
    Epoch, Round, Seed, TokenId,
    bounds::BoundCounts,
    fanout::FanOut,
    guess::OutcomeKey,
    message::{
        Account, Branching, Cutoff, Cutoffs, Delivery, Entries, Open, Outcome, Resync, Rise, Side,
        SparseDistribution, TreeBudget, Window,
    },
    saguaro::Saguaro,
    sampling::SamplingParams,
    trace::{TraceContext, TraceFlags},
    verify::Verification,
};
use proptest::{collection::vec, option, prelude::*};

use super::*;

use generated::{to_draft, to_target};

mod generated;
mod malformed;
mod sizes;
mod trees;

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
        accounts: true,
        late_entries: true,
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
        let Hello { instance, model_digest, tokenizer_digest, vocab_size, path, consumer: _, accounts: _, late_entries: _ } = hello();
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
    let beats = Bytes::from([BEAT, 0].repeat(MAX_FIELDS + 1));
    assert_eq!(decode_draft_frame(beats), Err(FrameError::TooManyMessages));
}

#[test]
fn fields_of_later_versions_are_skipped() {
    let mut bytes = target_bytes(&target_frame(vec![outcome(1)])).to_vec();
    bytes.extend([9 << 3 | 2, 3, 1, 2, 3]);
    bytes.extend(target_bytes(&target_frame(vec![outcome(2)])));
    let frame = decode_target_frame(Bytes::from(bytes)).expect("reads");
    assert_eq!(frame.messages, [outcome(1), outcome(2)]);
}
