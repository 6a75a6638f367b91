//! The target's end of a link.

use foretoken_speculation::message::ToDraft;
use tokio_util::sync::CancellationToken;

use super::{Hello, LinkEvent, LinkOptions, SendError};
use crate::Address;

/// A link that a target keeps to an endpoint. Dropping it ends the link.
#[derive(Debug)]
pub struct Link {
    address: Address,
    stop: CancellationToken,
}

impl Link {
    pub(super) fn spawn(
        _runtime: &tokio::runtime::Handle,
        address: Address,
        _hello: Hello,
        _options: LinkOptions,
        stop: CancellationToken,
        _on_event: Box<dyn FnMut(LinkEvent) + Send>,
    ) -> Self {
        Self { address, stop }
    }

    /// Sends the messages of one step, in one frame if they fit. Never blocks; callable from any
    /// thread. If the queue is full, older messages of a session go first when a newer round of
    /// the same session waits behind them.
    pub fn send(&self, messages: Vec<ToDraft>) -> Result<(), SendError> {
        drop(messages);
        Err(SendError::Down)
    }

    /// Where the endpoint is.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
