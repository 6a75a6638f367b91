//! When a service stops.
//!
//! SIGTERM or SIGINT: drain; a second one: stop at once. A service that `up` started is told on
//! its standard input instead: the line `drain`, and the end of the input means that the parent is
//! gone, so nobody would ever stop this process: it ends at once. Before it serves there is nothing
//! to drain, so the line ends it too, whatever it is loading.
//!
//! So do signals while nobody in the process waits for them. The first process of a container ignores
//! those that it does not watch, so there one thread watches from the start; elsewhere the system
//! sees to it until somebody waits for the first time.

use std::{
    io, process,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use anyhow::Context as _;
use tokio::{
    runtime::Runtime,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};
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

/// What watches signals, once something does.
static WATCHED: Mutex<Option<Watched>> = Mutex::new(None);

/// What tells of each signal; whoever waits has a receiver of it.
#[derive(Clone)]
struct Watched {
    interrupt: watch::Sender<()>,
    terminate: watch::Sender<()>,
}

/// Watches signals from now on if nobody else would: the system ends a process for them, but not the
/// first of a container. To be called before anything that takes long.
pub(crate) fn watch_if_first() -> anyhow::Result<()> {
    if process::id() == 1 {
        watched()?;
    }
    Ok(())
}

/// Watches signals, if that is not done yet.
fn watched() -> anyhow::Result<Watched> {
    let mut known = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(watched) = &*known {
        return Ok(watched.clone());
    }
    let watched = Watched {
        interrupt: watch::Sender::new(()),
        terminate: watch::Sender::new(()),
    };
    let (begun, beginning) = mpsc::channel();
    let telling = watched.clone();
    let work = move || match signals() {
        Ok((runtime, signals)) => {
            let _ = begun.send(Ok(()));
            runtime.block_on(telling.tell(signals));
        }
        Err(error) => {
            let _ = begun.send(Err(error));
        }
    };
    let begins = || {
        thread::Builder::new().name("signals".into()).spawn(work)?;
        beginning.recv().map_err(io::Error::other)?
    };
    begins().context("cannot watch signals")?;
    *known = Some(watched.clone());
    Ok(watched)
}

/// SIGINT and SIGTERM, on a runtime for nothing else.
fn signals() -> io::Result<(Runtime, [Signal; 2])> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let context = runtime.enter();
    let interrupt = signal(SignalKind::interrupt())?;
    let terminate = signal(SignalKind::terminate())?;
    drop(context);
    Ok((runtime, [interrupt, terminate]))
}

impl Watched {
    /// Tells those who wait of each signal, and ends the process if there are none, with the code that
    /// shells give to what a signal ended.
    async fn tell(self, [mut interrupt, mut terminate]: [Signal; 2]) {
        loop {
            let (waiting, kind) = tokio::select! {
                _ = interrupt.recv() => (&self.interrupt, SignalKind::interrupt()),
                _ = terminate.recv() => (&self.terminate, SignalKind::terminate()),
            };
            if waiting.send(()).is_err() {
                process::exit(128 + kind.as_raw_value());
            }
        }
    }
}

/// SIGINT, which somebody sees to as long as this lives.
pub(crate) struct Interrupts(watch::Receiver<()>);

impl Interrupts {
    /// Those from now on.
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self(watched()?.interrupt.subscribe()))
    }

    /// The next one.
    pub(crate) async fn next(&mut self) {
        // What tells of them is never dropped.
        let _ = self.0.changed().await;
    }
}

/// The signals that ask a process to stop, which somebody sees to as long as this lives.
pub(crate) struct Signals {
    interrupt: watch::Receiver<()>,
    terminate: watch::Receiver<()>,
}

impl Signals {
    /// Those from now on.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let watched = watched()?;
        Ok(Self {
            interrupt: watched.interrupt.subscribe(),
            terminate: watched.terminate.subscribe(),
        })
    }

    /// The next SIGINT or SIGTERM.
    pub(crate) async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.changed() => {}
            _ = self.terminate.changed() => {}
        }
    }
}

/// Cancels `stop` with the first signal and ends the process with the second.
pub(crate) async fn on_signals(mut signals: Signals, stop: CancellationToken) {
    drain_until_second(&mut signals, &stop).await;
    tracing::warn!("stopping at once");
    process::exit(1);
}

/// Cancels `stop` with the first signal, whoever else may have asked for it before, as a parent does while the
/// system asks all processes of a service; ends with the second.
async fn drain_until_second(signals: &mut Signals, stop: &CancellationToken) {
    signals.any().await;
    tracing::info!("draining; a second signal stops at once");
    stop.cancel();
    signals.any().await;
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    #[test]
    fn the_first_signal_drains_even_where_somebody_else_has_asked_before() {
        let (interrupts, interrupt) = watch::channel(());
        let (terminates, terminate) = watch::channel(());
        let mut signals = Signals {
            interrupt,
            terminate,
        };
        let stop = CancellationToken::new();
        stop.cancel();
        let mut ends = pin!(drain_until_second(&mut signals, &stop));
        let mut ends = || ends.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        terminates.send_replace(());
        assert_eq!(ends(), Poll::Pending);
        interrupts.send_replace(());
        assert_eq!(ends(), Poll::Ready(()));
    }
}
