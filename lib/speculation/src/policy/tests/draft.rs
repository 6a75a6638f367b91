//! The endpoint's side, message by message.

use super::*;

#[test]
fn a_draft_proposes_after_each_outcome_and_keeps_what_was_accepted() {
    let (mut draft, mut scratch) = (DraftSession::new(SessionId(3), VOCAB, 64), Scratch::new());
    draft.handle(&open(1, &[1, 2]));
    assert_eq!(settle(&mut draft, &mut scratch), []);
    assert_eq!(draft.handle(&outcome(1, 0, 2, &[3], 3)), None);
    assert_eq!(
        settle(&mut draft, &mut scratch),
        [window(1, 1, 3, &[4, 5, 6])]
    );
    // 4 and 5 were accepted, 9 is the correction: only 9 has to be fed.
    draft.handle(&outcome(1, 1, 3, &[4, 5, 9], 2));
    let work = draft.work().unwrap();
    assert_eq!((work.keep, work.tokens), (5, &[TokenId(9)][..]));
    assert_eq!(
        settle(&mut draft, &mut scratch),
        [window(1, 2, 6, &[10, 11])]
    );
}

#[test]
fn proposals_beyond_the_emitted_tokens_are_proposed_again_without_drafting() {
    let (mut draft, mut scratch) = (DraftSession::new(SessionId(3), VOCAB, 64), Scratch::new());
    draft.handle(&open(1, &[1, 2]));
    draft.handle(&outcome(1, 0, 2, &[3], 4));
    settle(&mut draft, &mut scratch);
    let answer = draft.handle(&outcome(1, 1, 3, &[4], 2));
    assert_eq!(answer, Some(window(1, 2, 4, &[5, 6])));
}

#[test]
fn after_a_correction_a_draft_proposes_what_a_fresh_one_does() {
    let warm = |tokens: &[u32]| match open(1, tokens) {
        ToDraft::Open(mut open) => {
            open.sampling.temperature = 4.0;
            open.sampling.frequency_penalty = 2.0;
            open.sampling.repetition_penalty = 2.0;
            ToDraft::Open(open)
        }
        other => other,
    };
    let mut scratch = Scratch::new();
    let mut old = DraftSession::new(SessionId(3), VOCAB, 64);
    old.handle(&warm(&[1, 2]));
    old.handle(&outcome(1, 0, 2, &[3], 6));
    settle(&mut old, &mut scratch);
    let correction = (old.tokens()[3].0 + 1) % VOCAB;
    old.handle(&outcome(1, 1, 3, &[correction], 6));
    settle(&mut old, &mut scratch);
    let mut fresh = DraftSession::new(SessionId(3), VOCAB, 64);
    fresh.handle(&warm(&[1, 2, 3]));
    fresh.handle(&outcome(1, 0, 3, &[correction], 6));
    settle(&mut fresh, &mut scratch);
    assert_eq!(old.tokens(), fresh.tokens());
}

#[test]
fn a_gap_asks_for_a_resync_and_a_new_epoch_heals_it() {
    let (mut draft, mut scratch) = (DraftSession::new(SessionId(3), VOCAB, 64), Scratch::new());
    let resync = |epoch, have_len| {
        let (session, epoch) = (SessionId(3), Epoch(epoch));
        Some(ToTarget::Resync(Resync {
            session,
            epoch,
            have_len,
        }))
    };
    assert_eq!(draft.handle(&outcome(1, 0, 2, &[3], 2)), resync(1, 0));
    draft.handle(&open(2, &[1, 2]));
    assert_eq!(draft.handle(&outcome(2, 1, 3, &[4], 2)), resync(2, 2));
    assert_eq!(draft.handle(&outcome(2, 0, 2, &[3], 2)), resync(2, 2));
    settle(&mut draft, &mut scratch);
    draft.handle(&open(3, &[1, 2, 3]));
    assert_eq!(draft.work().map(|work| work.keep), Some(2));
    assert_eq!(draft.handle(&outcome(3, 0, 3, &[4], 1)), None);
    assert_eq!(settle(&mut draft, &mut scratch), [window(3, 1, 4, &[5])]);
    assert_eq!(draft.handle(&outcome(3, 0, 3, &[4], 1)), None);
    assert_eq!(draft.handle(&outcome(2, 9, 3, &[4], 1)), None);
}

#[test]
fn a_closed_session_stays_closed() {
    let mut draft = DraftSession::new(SessionId(3), VOCAB, 64);
    draft.handle(&open(2, &[1, 2]));
    draft.handle(&ToDraft::Close {
        session: SessionId(3),
        epoch: Epoch(1),
    });
    assert!(draft.is_bound());
    draft.handle(&ToDraft::Close {
        session: SessionId(3),
        epoch: Epoch(2),
    });
    assert!(!draft.is_bound() && draft.work().is_none());
    assert_eq!(draft.handle(&open(2, &[1, 2])), None);
    assert!(!draft.is_bound());
}

#[test]
fn a_draft_model_that_is_too_short_never_feeds_past_its_end() {
    let (mut draft, mut scratch) = (DraftSession::new(SessionId(3), VOCAB, 5), Scratch::new());
    draft.handle(&open(1, &[1, 2]));
    draft.handle(&outcome(1, 0, 2, &[3], 9));
    assert_eq!(settle(&mut draft, &mut scratch), [window(1, 1, 3, &[4, 5])]);
    // Of what comes then nothing is kept, however long it goes on.
    let refused = |answer| matches!(answer, Some(ToTarget::Refused { retry: false, .. }));
    assert!(refused(draft.handle(&outcome(1, 1, 3, &[4, 5, 6], 9))));
    assert_eq!((draft.is_bound(), draft.tokens()), (false, &[][..]));
    assert_eq!(draft.handle(&outcome(1, 2, 6, &[7], 9)), None);
    assert!(refused(draft.handle(&open(2, &[1, 2, 3, 4, 5]))));
}

#[test]
fn a_session_that_names_too_many_tokens_is_refused_for_good() {
    let most = SamplingParams::MOST_NAMED;
    let opens = |biases: usize, banned: usize| {
        let ToDraft::Open(mut open) = open(1, &[1, 2]) else {
            unreachable!("it is an Open");
        };
        open.sampling.logit_bias = vec![(TokenId(1), 0.1); biases];
        open.sampling.banned_until_min = vec![TokenId(1); banned];
        let mut draft = DraftSession::new(SessionId(3), VOCAB, 64);
        let answer = draft.handle(&ToDraft::Open(open));
        (answer, draft.is_bound())
    };
    let (answer, bound) = opens(most, most);
    assert!(matches!(answer, Some(ToTarget::Opened { .. })) && bound);
    for (field, biases, banned) in [
        ("logit_bias", most + 1, 0),
        ("banned_until_min", 0, most + 1),
    ] {
        let (answer, bound) = opens(biases, banned);
        let Some(ToTarget::Refused { reason, retry, .. }) = answer else {
            panic!("{field}: {answer:?}");
        };
        assert!(reason.starts_with(field) && !retry && !bound, "{reason}");
    }
}
