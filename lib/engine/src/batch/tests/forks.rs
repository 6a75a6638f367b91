//! Forks of sequences, and what becomes of what they read.

use super::*;

#[test]
fn a_fork_down_a_tree_goes_on_like_plain_decoding_and_leaves_the_tree_alone() {
    // Trunks that end within a page, at its end, and one token before it.
    for len in [14, 15, 16, 17] {
        let mut engine = with_pages(12);
        let seq = with_text(&mut engine, len);
        let nodes = [1, 2, 3, 4, 5].map(TokenId);
        let parents = [None, Some(0), Some(0), Some(2), None];
        engine.step(&[grow(seq, &nodes, &parents)]).unwrap();
        for path in [&[][..], &[0], &[0, 1], &[0, 2, 3], &[4]] {
            let before = engine.usage().referenced;
            let fork = engine.fork_path(seq, path).unwrap();
            let mut tokens = text(len);
            tokens.extend(path.iter().map(|&node| nodes[node as usize]));
            assert_eq!(engine.tokens(fork).unwrap(), tokens);
            let more = [TokenId(7), TokenId(8)];
            engine.step(&[grow(fork, &more, &[None, Some(0)])]).unwrap();
            let found = engine.logits().row(0, 1).to_vec();
            let alone = engine.open(&[], Reuse::Off);
            tokens.extend(more);
            let expected = engine.step(&[feed(alone, &tokens)]).unwrap();
            assert_eq!(expected.row(0, 0), found, "{len} {path:?}");
            for seq in [fork, alone] {
                engine.close(seq).unwrap();
            }
            assert_eq!(engine.usage().referenced, before);
        }
        assert_eq!(engine.tail(seq).unwrap(), nodes);
        engine.accept_path(seq, &[0, 2, 3]).unwrap();
        let tokens = engine.tokens(seq).unwrap().to_vec();
        let after = engine
            .step(&[feed(seq, &[TokenId(9)])])
            .unwrap()
            .row(0, 0)
            .to_vec();
        let alone = engine.open(&[], Reuse::Off);
        let tokens = [&tokens[..], &[TokenId(9)]].concat();
        assert_eq!(
            engine.step(&[feed(alone, &tokens)]).unwrap().row(0, 0),
            after
        );
    }
    let mut engine = with_pages(2);
    let seq = with_text(&mut engine, 20);
    engine
        .step(&[grow(seq, &text(2), &[None, Some(0)])])
        .unwrap();
    let usage = engine.usage();
    let none_left = engine.fork_path(seq, &[0, 1]);
    assert!(matches!(none_left, Err(StepError::OutOfPages { .. })));
    let astray = engine.fork_path(seq, &[1]);
    assert!(matches!(
        astray,
        Err(StepError::Sequence(SeqError::NotAPath { node: 1 }))
    ));
    assert_eq!(engine.usage(), usage);
}

#[test]
fn what_a_fork_read_can_be_grafted_onto_the_sequence_it_is_of() {
    // Trunks that end within a page, at its end, and one token before it; what is put behind them fills it
    // or goes on in the next.
    for len in [14, 15, 16, 17, 30] {
        let mut engine = with_pages(16);
        let seq = with_text(&mut engine, len + 3);
        let fork = engine.fork(seq, len).unwrap();
        let nodes = [1, 2, 3, 4, 5].map(TokenId);
        let parents = [None, None, Some(1), Some(2), Some(0)];
        engine.step(&[grow(fork, &nodes, &parents)]).unwrap();
        let others = engine.fork(seq, len + 2).unwrap();
        engine.graft(seq, fork, &[1, 2, 3]).unwrap();
        let mut tokens = text(len);
        tokens.extend(&nodes[1..4]);
        assert_eq!(engine.tokens(seq).unwrap(), tokens);
        // The fork and others of the sequence see what they saw.
        assert_eq!(engine.tail(fork).unwrap(), nodes);
        for (seq, before) in [(seq, &tokens[..]), (others, &text(len + 2))] {
            let next = [TokenId(9), TokenId(8)];
            let found = engine.step(&[feed(seq, &next)]).unwrap();
            let found = found.row(0, 0).to_vec();
            let alone = engine.open(&[], Reuse::Off);
            let all = [before, &next].concat();
            let expected = engine.step(&[feed(alone, &all)]).unwrap();
            assert_eq!(expected.row(0, 0), found, "{len}");
            engine.close(alone).unwrap();
        }
        let more = grow(fork, &[TokenId(6)], &[Some(4)]);
        let found = engine.step(&[more]).unwrap().row(0, 0).to_vec();
        let alone = engine.open(&[], Reuse::Off);
        let all = [&text(len)[..], &[1, 5, 6].map(TokenId)].concat();
        let expected = engine.step(&[feed(alone, &all)]).unwrap();
        assert_eq!(expected.row(0, 0), found);
        for seq in [fork, others, alone, seq] {
            engine.close(seq).unwrap();
        }
        assert_eq!(engine.usage().referenced, 0);
    }
}

#[test]
fn what_cannot_be_grafted_changes_nothing() {
    let mut engine = with_pages(3);
    let seq = with_text(&mut engine, 20);
    let fork = engine.fork(seq, 16).unwrap();
    let nodes = text(3);
    engine
        .step(&[grow(fork, &nodes, &[None, Some(0), Some(1)])])
        .unwrap();
    let other = engine.open(&[], Reuse::Off);
    let usage = engine.usage();
    let astray = engine.graft(seq, fork, &[1]);
    assert!(matches!(
        astray,
        Err(StepError::Sequence(SeqError::NotAPath { node: 1 }))
    ));
    let short = engine.graft(other, fork, &[0]);
    assert!(matches!(
        short,
        Err(StepError::Sequence(SeqError::PastEnd { asked: 16, len: 0 }))
    ));
    assert_eq!(engine.usage(), usage);
    assert_eq!(engine.len(seq).unwrap(), 20);
    // Of a sequence that is another, and one whose page is shared while none is left.
    let mut engine = with_pages(2);
    let seq = with_text(&mut engine, 4);
    let fork = engine.fork(seq, 2).unwrap();
    engine.step(&[grow(fork, &text(1), &[None])]).unwrap();
    engine.truncate(seq, 1).unwrap();
    engine.step(&[feed(seq, &[TokenId(60)])]).unwrap();
    let other = engine.graft(seq, fork, &[0]);
    assert!(matches!(
        other,
        Err(StepError::Sequence(SeqError::OtherTrunk { len: 2 }))
    ));
    engine.truncate(seq, 0).unwrap();
    engine.step(&[feed(seq, &text(2))]).unwrap();
    let twin = engine.fork(seq, 2).unwrap();
    let none_left = engine.graft(seq, fork, &[0]);
    assert!(matches!(none_left, Err(StepError::OutOfPages { .. })));
    assert_eq!(engine.tokens(seq).unwrap(), text(2));
    engine.close(twin).unwrap();
    engine.graft(seq, fork, &[0]).unwrap();
}
