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
