//! When a service stops.
//!
//! SIGTERM or SIGINT: drain; a second one: stop at once. A service that `up` started is told on
//! its standard input instead: the line `drain`, and the end of the input means that the parent is
//! gone, so nobody would ever stop this process: it ends at once.

use std::{io, process, thread};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The line that asks a child to drain.
pub(crate) const DRAIN: &str = "drain";

/// Ends this process when the parent is gone, from now on, whatever it is doing, and cancels
/// `stop` when the parent asks.
pub(crate) fn follow_parent(stop: CancellationToken) -> io::Result<()> {
    let watch = move || {
        let mut line = String::new();
        loop {
            line.clear();
            match io::stdin().read_line(&mut line) {
                Ok(1..) if line.trim_end() == DRAIN => stop.cancel(),
                Ok(1..) => {}
                Ok(0) | Err(_) => process::exit(1),
            }
        }
    };
    thread::Builder::new().name("parent".into()).spawn(watch)?;
    Ok(())
}

/// Cancels `stop` with the first signal and ends the process with the second.
pub(crate) async fn on_signals(stop: CancellationToken) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        if stop.is_cancelled() {
            tracing::warn!("stopping at once");
            process::exit(1);
        }
        tracing::info!("draining; a second signal stops at once");
        stop.cancel();
    }
}
