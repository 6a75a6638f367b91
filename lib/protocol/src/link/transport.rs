//! The thread that moves the bytes of all links of a process.

use std::{io, thread, time::Duration};

use tokio_util::sync::CancellationToken;

use super::{
    Hello, Link, LinkEvent, LinkOptions, LinkServer, ServerEvent, Welcome,
};
use crate::{Address, Listener};

/// HTTP/2 flow-control window, of streams and connections. Credits bound what is under way; the
/// window only has to be out of their way.
pub(super) const WINDOW: u32 = 8 << 20;

/// How the transport thread behaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransportOptions {
    /// How long the thread looks for more work before it sleeps. More than zero saves a wake-up
    /// (5 to 10 us) per hop and pays only with a core to spare.
    pub spin: Duration,
}

/// The thread that moves the bytes of all links of a process. Dropping it ends all links.
#[derive(Debug)]
pub struct Transport {
    handle: tokio::runtime::Handle,
    stop: CancellationToken,
    thread: Option<thread::JoinHandle<()>>,
}

impl Transport {
    /// Starts the thread.
    pub fn start(options: TransportOptions) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let spin = options.spin;
        let thread = thread::Builder::new().name("foretoken-link".into()).spawn(move || {
            tracing::debug!(?spin, "transport started");
            runtime.block_on(stopped.cancelled());
        })?;
        Ok(Self { handle, stop, thread: Some(thread) })
    }

    /// Keeps a link to the endpoint at `address` until the returned [`Link`] is dropped or `stop`
    /// is cancelled. Connecting, and connecting again, happens by itself; `on_event` is called on
    /// the transport's thread and must not block.
    pub fn dial(
        &self,
        address: Address,
        hello: Hello,
        options: LinkOptions,
        stop: &CancellationToken,
        on_event: impl FnMut(LinkEvent) + Send + 'static,
    ) -> Link {
        Link::spawn(&self.handle, address, hello, options, stop.child_token(), Box::new(on_event))
    }

    /// Accepts links on `listener` until the returned [`LinkServer`] is dropped or `stop` is
    /// cancelled. `on_event` is called on the transport's thread and must not block.
    pub fn serve(
        &self,
        listener: Listener,
        welcome: Welcome,
        options: LinkOptions,
        stop: &CancellationToken,
        on_event: impl FnMut(ServerEvent) + Send + 'static,
    ) -> io::Result<LinkServer> {
        LinkServer::spawn(&self.handle, listener, welcome, options, stop.child_token(), Box::new(on_event))
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            // The thread only panics if a callback did, which has been reported there.
            let _ = thread.join();
        }
    }
}
