//! What messages weigh: for metrics, which tell bytes apart by session as frames do not.

use foretoken_speculation::message::{ToDraft, ToTarget};
use prost::{Message, length_delimiter_len};

use crate::wire::Wire;

/// The bytes of a message in a frame, its key and length included. A frame with nothing else has
/// 5 bytes more on the stream (gRPC's prefix), and beats and credits come now and then.
pub trait WireSize {
    /// Bytes. Encodes the message to find out: well below a microsecond for those of a round.
    fn wire_size(&self) -> usize;
}

impl WireSize for ToDraft {
    fn wire_size(&self) -> usize {
        field_size(&self.to_proto())
    }
}

impl WireSize for ToTarget {
    fn wire_size(&self) -> usize {
        field_size(&self.to_proto())
    }
}

fn field_size(message: &impl Message) -> usize {
    let len = message.encoded_len();
    1 + length_delimiter_len(len) + len
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use foretoken_speculation::{
        Epoch, Round, SessionId, TokenId,
        guess::OutcomeKey,
        message::{Entries, Outcome, Window},
    };

    use super::*;
    use crate::link::{DraftFrame, TargetFrame, encode_draft_frame, encode_target_frame};

    fn tokens(n: u32) -> Vec<TokenId> {
        (0..n).map(|id| TokenId(id * 131)).collect()
    }

    #[test]
    fn the_sizes_of_messages_add_up_to_the_size_of_their_frame() {
        let (session, epoch, round) = (SessionId(300), Epoch(2), Round(7));
        let outcome = ToDraft::Outcome(Outcome {
            session,
            epoch,
            round,
            base_len: 900,
            tokens: tokens(4),
            lookahead: 5,
            verifying: Some(tokens(5).into()),
            branches: 24,
            ..Outcome::default()
        });
        let frame = TargetFrame {
            messages: vec![outcome, ToDraft::Close { session, epoch }],
            ..TargetFrame::default()
        };
        let mut bytes = BytesMut::new();
        encode_target_frame(&frame, &mut bytes);
        let sizes: usize = frame.messages.iter().map(WireSize::wire_size).sum();
        assert_eq!(sizes, bytes.len());

        let key = |token| OutcomeKey { accepted: 1, token };
        let entries = ToTarget::Entries(Entries {
            session,
            epoch,
            round,
            base_len: 904,
            before: 0,
            keys: tokens(24).into_iter().map(key).collect(),
            tokens: tokens(120),
            ..Entries::default()
        });
        let window = ToTarget::Window(Window {
            session,
            epoch,
            round,
            base_len: 904,
            proposals: tokens(5).into(),
            ..Window::default()
        });
        let frame = DraftFrame {
            messages: vec![entries, window],
            ..DraftFrame::default()
        };
        let mut bytes = BytesMut::new();
        encode_draft_frame(&frame, &mut bytes);
        let sizes: usize = frame.messages.iter().map(WireSize::wire_size).sum();
        assert_eq!(sizes, bytes.len());
    }
}
