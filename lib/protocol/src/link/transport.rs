//! Who moves the bytes of a process's links.
//!
//! A round trip between two engines costs about 30 us of work and a wake-up per thread that a
//! message passes; across cores a wake-up takes 5 to 30 us. So an engine that waits for messages
//! moves the bytes itself, through its [`Mailbox`], and the transport's own thread only steps in
//! while the engine computes. Without mailboxes the thread does all of it.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::Notify,
    task::yield_now,
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Hello, Link, LinkEvent, LinkOptions, LinkServer, Mailbox, Postbox, ServerEvent, Terms,
    departures::Departures, polled::Polled,
};
use crate::{Callee, Listener, tls::Tls};

/// HTTP/2 flow-control window, of streams and connections. Credits bound what is under way; the
/// window only has to be out of their way.
pub(super) const WINDOW: u32 = 8 << 20;

/// How long links may take to end.
pub(super) const FAREWELL: Duration = Duration::from_millis(200);

/// How long engines may compute before the transport's thread looks after the links.
const PATIENCE: Duration = Duration::from_millis(10);

/// How often an engine that only polls links runs their runtime, for what else they wait for: time,
/// new connections.
const RUN_EVERY: Duration = Duration::from_millis(10);

/// How a transport behaves.
#[derive(Clone, Debug)]
pub struct TransportOptions {
    /// How long a [`Mailbox`] looks for messages before it sleeps, at most; zero: never. Each that is
    /// found so saves a wake-up (10 to 40 us). It looks only while messages come that soon and nobody
    /// else wants its core.
    pub spin: Duration,
    /// What endpoints that are dialled over TCP are shown, and whose certificates they may have; none:
    /// clear text.
    pub tls: Option<Tls>,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self {
            spin: Duration::from_millis(1),
            tls: None,
        }
    }
}

/// Moves the bytes of all links of a process. Dropping it ends all links; that may take a moment,
/// in which their peers are told.
#[derive(Debug)]
pub struct Transport {
    driver: Arc<Driver>,
    spin: Duration,
    thread: Option<thread::JoinHandle<()>>,
}

/// The runtime of the links, and who runs it.
#[derive(Debug)]
pub(super) struct Driver {
    /// Taken by `drop` alone.
    runtime: Option<Runtime>,
    tls: Option<Tls>,
    /// Ends all links.
    stop: CancellationToken,
    /// Their tasks.
    links: TaskTracker,
    begun: Instant,
    /// Mailboxes that exist: engines that promise to drive.
    mailboxes: AtomicUsize,
    /// When an engine last drove, in microseconds after `begun`.
    driven: AtomicU64,
    /// When one last ran the runtime to that end.
    ran: AtomicU64,
    /// The first mailbox was made, or the transport stops.
    relieved: Notify,
    departures: Arc<Departures>,
    polled: Arc<Polled>,
}

impl Transport {
    /// Starts the transport and its thread.
    pub fn start(options: TransportOptions) -> io::Result<Self> {
        let TransportOptions { spin, tls } = options;
        let driver = Arc::new(Driver {
            runtime: Some(Builder::new_current_thread().enable_all().build()?),
            tls,
            stop: CancellationToken::new(),
            links: TaskTracker::new(),
            begun: Instant::now(),
            mailboxes: AtomicUsize::new(0),
            driven: AtomicU64::new(0),
            ran: AtomicU64::new(0),
            relieved: Notify::new(),
            departures: Arc::default(),
            polled: Arc::default(),
        });
        let own = Arc::clone(&driver);
        let thread = thread::Builder::new()
            .name("foretoken-link".into())
            .spawn(move || own.look_after())?;
        Ok(Self {
            driver,
            spin,
            thread: Some(thread),
        })
    }

    /// A mailbox for the thread that owns an engine, and where others post to it. From now on
    /// that thread carries the links whenever it waits: it should come by often, and must not
    /// call [`Mailbox`]'s methods from async code.
    pub fn mailbox<T>(&self) -> (Postbox<T>, Mailbox<T>) {
        Mailbox::new(Arc::clone(&self.driver), self.spin)
    }

    /// Keeps a link to the endpoint `callee` until the returned [`Link`] is dropped or `stop`
    /// is cancelled; no event follows then. Connecting, and connecting again, happens by itself.
    /// `on_event` is called by whoever moves the bytes, one event at a time, and must not block.
    pub fn dial(
        &self,
        callee: impl Into<Callee>,
        hello: Hello,
        options: LinkOptions,
        stop: &CancellationToken,
        on_event: impl FnMut(LinkEvent) + Send + 'static,
    ) -> Link {
        Link::spawn(
            &self.driver,
            callee.into(),
            hello,
            options,
            stop.child_token(),
            Box::new(on_event),
        )
    }

    /// Accepts links on `listener`, on these `terms`, until the returned [`LinkServer`] is dropped or `stop` is
    /// cancelled. `on_event` is called by whoever moves the bytes, one event at a time, and must
    /// not block.
    pub fn serve(
        &self,
        listener: Listener,
        terms: Terms,
        stop: &CancellationToken,
        on_event: impl FnMut(ServerEvent) + Send + 'static,
    ) -> io::Result<LinkServer> {
        LinkServer::spawn(
            &self.driver,
            listener,
            terms,
            stop.child_token(),
            Box::new(on_event),
        )
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.driver.stop.cancel();
        self.driver.relieved.notify_one();
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread only panics if a callback did, which has been reported there.
            let _ = thread.join();
        }
    }
}

impl Driver {
    /// The transport's own thread.
    fn look_after(&self) {
        while !self.stop.is_cancelled() {
            if self.mailboxes.load(Ordering::Acquire) == 0 {
                self.run(self.relieved.notified());
                continue;
            }
            thread::park_timeout(PATIENCE);
            if !self.departures.is_running() && self.since_driven() > PATIENCE {
                self.run(turn());
            }
        }
        self.links.close();
        self.run(async {
            // Whoever has not ended by then ends with the runtime.
            let _ = timeout(FAREWELL, self.links.wait()).await;
            turn().await;
        });
    }

    /// Starts the task of a link, which ends when the transport does.
    pub(super) fn spawn(&self, stop: &CancellationToken, link: impl Future + Send + 'static) {
        let ours = self.stop.clone();
        let stop = stop.clone();
        let task = async move {
            let end = async {
                ours.cancelled().await;
                stop.cancel();
                std::future::pending::<()>().await;
            };
            tokio::select! {
                _ = link => {}
                () = end => {}
            }
        };
        self.links.spawn_on(task, self.runtime().handle());
    }

    /// What endpoints are shown.
    pub(super) fn tls(&self) -> Option<Tls> {
        self.tls.clone()
    }

    /// Where the sockets of links belong.
    pub(super) fn handle(&self) -> &Handle {
        self.runtime().handle()
    }

    fn runtime(&self) -> &Runtime {
        match &self.runtime {
            Some(runtime) => runtime,
            None => unreachable!("`drop` is the last to come"),
        }
    }

    /// Who wakes the streams of links.
    pub(super) fn departures(&self) -> Arc<Departures> {
        Arc::clone(&self.departures)
    }

    /// Which links engines can poll.
    pub(super) fn polled(&self) -> Arc<Polled> {
        Arc::clone(&self.polled)
    }

    /// Runs `future` for an engine, and the links while it waits.
    pub(super) fn drive<F: Future>(&self, future: F) -> F::Output {
        let output = self.run(future);
        let now = self.now();
        self.driven.store(now, Ordering::Release);
        self.ran.store(now, Ordering::Release);
        output
    }

    /// Sends what waits and takes in what has arrived, for an engine that goes on at once.
    pub(super) fn look(&self) {
        self.visit(true);
    }

    /// Sends what waits, for an engine that is about to compute.
    pub(super) fn send(&self) {
        self.visit(false);
    }

    fn visit(&self, reads: bool) {
        let now = self.now();
        let since_run = now.saturating_sub(self.ran.load(Ordering::Acquire));
        if since_run < RUN_EVERY.as_micros() as u64 {
            let _runtime = self.handle().enter();
            if self.polled.visit(reads, &self.departures) {
                self.driven.store(now, Ordering::Release);
                return;
            }
        }
        self.drive(turn());
    }

    /// Microseconds since the transport began.
    fn now(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    /// Runs `future`, and the links while it waits.
    fn run<F: Future>(&self, future: F) -> F::Output {
        self.departures.begin();
        let output = self.runtime().block_on(async {
            self.departures.depart();
            self.polled.wake();
            future.await
        });
        self.departures.end();
        output
    }

    /// An engine begins to drive.
    pub(super) fn join(&self) {
        self.mailboxes.fetch_add(1, Ordering::AcqRel);
        self.relieved.notify_one();
    }

    /// An engine will not drive any more. The thread sees it the next time it looks.
    pub(super) fn leave(&self) {
        self.mailboxes.fetch_sub(1, Ordering::AcqRel);
    }

    /// How long ago an engine last moved the links' bytes.
    pub(super) fn since_driven(&self) -> Duration {
        let driven = Duration::from_micros(self.driven.load(Ordering::Acquire));
        self.begun.elapsed().saturating_sub(driven)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waiting for it would be a panic in a service's async code.
            runtime.shutdown_background();
        }
    }
}

/// Sends what waits and takes in what has arrived, without waiting for more. A yield runs every
/// task that can run and then looks at the sockets; what was found there runs in the second.
pub(super) async fn turn() {
    yield_now().await;
    yield_now().await;
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{os::unix::net::UnixListener, sync::mpsc::channel};

    use super::*;
    use crate::{Address, link::Welcome};

    /// Whether links through memory can be polled once that to `address` could not be made.
    fn others_are_polled_without(address: Address) -> bool {
        let ours = Transport::start(TransportOptions::default()).expect("a thread");
        let stop = CancellationToken::new();
        let options = LinkOptions {
            backoff_min: Duration::from_secs(3600),
            backoff_max: Duration::from_secs(3600),
            ..LinkOptions::default()
        };
        let (sender, events) = channel();
        let tell = move |event| drop(sender.send(event));
        let _link = ours.dial(address, Hello::default(), options, &stop, tell);
        let event = events.recv_timeout(Duration::from_secs(60));
        assert!(
            matches!(event, Ok(LinkEvent::Incompatible(_) | LinkEvent::Down(_))),
            "{event:?}"
        );
        let Driver {
            polled, departures, ..
        } = &*ours.driver;
        polled.visit(true, departures)
    }

    #[test]
    fn an_endpoint_that_hangs_up_keeps_nobody_from_polling_the_others() {
        let folder = tempfile::TempDir::new().expect("a folder");
        let path = folder.path().join("link");
        let listener = UnixListener::bind(&path).expect("binds");
        let hangs_up = thread::spawn(move || drop(listener.accept()));
        assert!(others_are_polled_without(Address::Unix(path)));
        hangs_up.join().expect("ends");
    }

    #[test]
    fn an_endpoint_of_another_kind_keeps_nobody_from_polling_the_others() {
        let theirs = Transport::start(TransportOptions::default()).expect("a thread");
        let stop = CancellationToken::new();
        let welcome = Welcome {
            vocab_size: 13,
            ..Welcome::default()
        };
        let terms = Terms::new(welcome, LinkOptions::default());
        let listener = Listener::bind(&Address::loopback(0)).expect("binds");
        let server = theirs
            .serve(listener, terms, &stop, |_| ())
            .expect("listens");
        assert!(others_are_polled_without(server.address().clone()));
    }
}
