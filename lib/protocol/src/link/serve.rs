//! The endpoint's end of its links.

use std::io;

use foretoken_speculation::message::ToTarget;
use tokio_util::sync::CancellationToken;

use super::{LinkId, LinkOptions, LoadReport, SendError, ServerEvent, Welcome};
use crate::{Address, Listener};

/// Accepts links from targets. Dropping it ends them all.
#[derive(Debug)]
pub struct LinkServer {
    address: Address,
    stop: CancellationToken,
}

impl LinkServer {
    pub(super) fn spawn(
        _runtime: &tokio::runtime::Handle,
        listener: Listener,
        _welcome: Welcome,
        _options: LinkOptions,
        stop: CancellationToken,
        _on_event: Box<dyn FnMut(ServerEvent) + Send>,
    ) -> io::Result<Self> {
        let address = listener.address().clone();
        Ok(Self { address, stop })
    }

    /// Sends the messages of one step over one link, in one frame if they fit. Never blocks;
    /// callable from any thread.
    pub fn send(&self, link: LinkId, messages: Vec<ToTarget>) -> Result<(), SendError> {
        let _ = (link, messages);
        Err(SendError::Down)
    }

    /// Tells all targets how busy this endpoint is; later ones are told when they dial.
    pub fn report(&self, load: LoadReport) {
        let _ = load;
    }

    /// Where targets reach it, with the real port.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

impl Drop for LinkServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
