//! What carries a link's frames: gRPC between hosts, a plain stream on one host.

use tokio::task::coop;
use tonic::{Code, Status, Streaming};

use crate::wire::end_of_call;

/// The frames that come in over a connection.
pub(super) trait Frames<F>: Send {
    /// The next one; none: the peer has ended the link. To give up waiting loses nothing.
    fn next(&mut self) -> impl Future<Output = Result<Option<F>, Failure>> + Send;
}

/// Why no more frames come.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The two ends do not go together, and the peer says why.
    #[error("{0}")]
    Refused(String),
    /// The connection broke, the peer broke the rules, or does not allow this side to use it, which
    /// may change at any time and says nothing of how the two go together.
    #[error("{0}")]
    Lost(String),
}

impl From<&Status> for Failure {
    fn from(status: &Status) -> Self {
        match status.code() {
            Code::FailedPrecondition => Self::Refused(status.message().into()),
            _ => Self::Lost(end_of_call(status)),
        }
    }
}

impl<F: Send> Frames<F> for Streaming<F> {
    async fn next(&mut self) -> Result<Option<F>, Failure> {
        // Frames that have come are had without waiting, and nothing else counts how many at a time.
        coop::consume_budget().await;
        self.message().await.map_err(|status| (&status).into())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::Cell,
        future::{Future as _, poll_fn},
        pin::pin,
        task::Poll,
    };

    use tonic::{codec::Codec as _, codegen::http::StatusCode};

    use super::{
        super::{
            codec::FrameCodec,
            frame::{DraftFrame, TargetFrame},
        },
        *,
    };

    #[test]
    fn of_many_frames_that_have_come_some_are_taken_at_a_time() {
        let frames = 10_000;
        // Each is a length of no bytes, not compressed.
        let body = "\0".repeat(5 * frames);
        let decoder = FrameCodec::<TargetFrame, DraftFrame>::default().decoder();
        let mut frames = Streaming::new_response(decoder, body, StatusCode::OK, None, None);
        let taken = Cell::new(0);
        let take = async {
            while let Ok(Some(_)) = frames.next().await {
                taken.set(taken.get() + 1);
            }
        };
        let once = async {
            let mut take = pin!(take);
            poll_fn(|context| Poll::Ready(take.as_mut().poll(context).is_ready())).await
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        let is_over = runtime.expect("a runtime").block_on(once);
        assert!(!is_over && (1..1000).contains(&taken.get()), "{taken:?}");
    }
}
