//! The target's side.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{GenerateError, GenerateEvent, GenerateRequest, TargetInfo};
use crate::Listener;

/// What a target does with requests.
pub trait GenerateService: Send + Sync + 'static {
    /// Takes a request in. Returns at once; everything that follows goes through `events`, whose
    /// drop without `Finished` tells the router that the target was lost. An error here, or one
    /// sent by [`EventSender::fail`], ends the request.
    fn generate(&self, request: GenerateRequest, events: EventSender) -> Result<(), GenerateError>;

    /// What this target is and how busy.
    fn info(&self) -> TargetInfo;
}

/// Nobody waits for the answer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request was cancelled")]
pub struct Cancelled;

/// Where a request's events go. Never blocks: an output is bounded by its `max_tokens`, so a
/// client that does not read costs at most that much memory.
#[derive(Debug)]
pub struct EventSender {
    events: mpsc::UnboundedSender<Result<GenerateEvent, GenerateError>>,
}

impl EventSender {
    /// A sender and what it sends, for tests and for callers in the same process.
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<Result<GenerateEvent, GenerateError>>) {
        let (events, receiver) = mpsc::unbounded_channel();
        (Self { events }, receiver)
    }

    /// Sends an event. Callable from any thread.
    pub fn send(&self, event: GenerateEvent) -> Result<(), Cancelled> {
        self.events.send(Ok(event)).map_err(|_| Cancelled)
    }

    /// Ends the request with an error.
    pub fn fail(self, error: GenerateError) {
        // If nobody waits, nobody needs to know.
        let _ = self.events.send(Err(error));
    }

    /// Whether the router has gone away: free the request's slots. Cheap enough for every step.
    pub fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// Waits until the router has gone away.
    pub async fn cancelled(&self) {
        self.events.closed().await;
    }
}

/// Why serving ended early.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket could not be handed to the runtime.
    #[error("cannot serve on {address}")]
    Listen {
        /// Where.
        address: crate::Address,
        /// What the system said.
        source: std::io::Error,
    },
    /// The server failed.
    #[error("the server failed")]
    Transport(#[source] tonic::transport::Error),
}

/// Serves requests until `stop`; then accepts no more and returns when those that run have ended.
pub async fn serve_generate(
    listener: Listener,
    service: Arc<impl GenerateService>,
    stop: CancellationToken,
) -> Result<(), ServeError> {
    drop((listener, service));
    stop.cancelled().await;
    Ok(())
}
