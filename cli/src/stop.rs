//! When a service stops.
//!
//! SIGTERM or SIGINT: drain; a second one: stop at once. A service that `up` started is told on
//! its standard input instead: the line `drain`, and the end of the input means that the parent is
//! gone, so nobody would ever stop this process: it ends at once. Before it serves there is nothing
//! to drain, so the line ends it too, whatever it is loading.

use std::{
    io, process,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The line that asks a child to drain.
pub(crate) const DRAIN: &str = "drain";

/// Whether this process serves.
static SERVES: AtomicBool = AtomicBool::new(false);

/// From now on a parent that asks this process to stop has it drain.
pub(crate) fn serving() {
    SERVES.store(true, Ordering::Relaxed);
}

/// Ends this process when the parent is gone, from now on, whatever it is doing, and cancels
/// `stop` when the parent asks.
pub(crate) fn follow_parent(stop: CancellationToken) -> io::Result<()> {
    let watch = move || {
        let mut line = String::new();
        loop {
            line.clear();
            match io::stdin().read_line(&mut line) {
                Ok(1..) if line.trim_end() == DRAIN => {
                    if !SERVES.load(Ordering::Relaxed) {
                        process::exit(0);
                    }
                    stop.cancel();
                }
                Ok(1..) => {}
                Ok(0) | Err(_) => process::exit(1),
            }
        }
    };
    thread::Builder::new().name("parent".into()).spawn(watch)?;
    Ok(())
}

/// The signals that ask a process to stop, from when this is made.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// To be called on a runtime.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let watch = |kind| signal(kind).context("cannot watch signals");
        Ok(Self {
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
        })
    }

    /// The next SIGINT or SIGTERM.
    pub(crate) async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Cancels `stop` with the first signal and ends the process with the second.
pub(crate) async fn on_signals(stop: CancellationToken) -> anyhow::Result<()> {
    let mut signals = Signals::new()?;
    loop {
        signals.any().await;
        if stop.is_cancelled() {
            tracing::warn!("stopping at once");
            process::exit(1);
        }
        tracing::info!("draining; a second signal stops at once");
        stop.cancel();
    }
}
