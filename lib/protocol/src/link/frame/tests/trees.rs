//! Trees of proposals on the wire.

use super::*;

#[test]
fn what_is_no_tree_is_malformed() {
    let malformed = |parents: Vec<u32>, tokens: &[u32]| {
        let tokens: Vec<_> = tokens.iter().map(|&token| TokenId(token)).collect();
        let window = proto::Window {
            tokens: crate::wire::pack_tokens(&tokens),
            parents,
            ..proto::Window::default()
        };
        let message = proto::DraftMessage {
            session: 9,
            epoch: 1,
            body: Some(proto::draft_message::Body::Window(window)),
        };
        let mut bytes = BytesMut::new();
        write(&mut bytes, MESSAGES, &message);
        let frame = decode_draft_frame(bytes.freeze()).expect("the frame itself is whole");
        frame.malformed.into_iter().next()
    };
    assert_eq!(malformed(vec![0, 0], &[1, 2]), None);
    for (parents, tokens) in [
        (vec![0, 0], &[1, 1][..]),
        (vec![0, 2], &[1, 2]),
        (vec![0], &[1, 2]),
        (vec![0; 64], &(0..64).collect::<Vec<_>>()),
    ] {
        let malformed = malformed(parents, tokens).expect("that is no tree");
        assert_eq!(malformed.session, Some(SessionId(9)));
        assert!(malformed.reason.contains("window.tokens"), "{malformed:?}");
    }
}

#[test]
fn a_chain_costs_no_bytes_for_its_shape_and_a_tree_a_byte_for_each_token() {
    let size = |proposals: Proposals| {
        let window = ToTarget::Window(Window {
            session: SessionId(1),
            epoch: Epoch(1),
            round: Round(1),
            base_len: 1,
            proposals,
            ..Window::default()
        });
        draft_bytes(&DraftFrame {
            messages: vec![window],
            ..DraftFrame::default()
        })
        .len()
    };
    let tokens: Vec<_> = (0..8).map(TokenId).collect();
    let chain = size(tokens.clone().into());
    let tree = Proposals::with_parents(tokens.clone(), &[0, 0, 1, 2, 3, 3, 4, 5]);
    assert_eq!(size(tree.expect("is a tree")), chain + 2 + tokens.len());
    let parents: Vec<u32> = (0..8).collect();
    let same = Proposals::with_parents(tokens, &parents);
    assert_eq!(size(same.expect("is a chain")), chain);
}
