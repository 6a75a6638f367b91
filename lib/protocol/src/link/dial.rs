//! The target's end of a link.

use std::{fmt, io, sync::Arc};

use foretoken_speculation::message::ToDraft;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Streaming, transport::Endpoint};
use tower::service_fn;

use super::{
    Hello, LinkEvent, LinkOptions, SendError,
    carrier::{Failure, Frames},
    event::{Identity, mismatch},
    frame::{DraftFrame, TargetFrame, VERSION},
    plain::Wire,
    polled::{Polled, Visit},
    pump::{Backoff, Ended, Heard, Source, pump},
    queue::Queue,
    transport::{Driver, WINDOW},
};
use crate::{
    Address, Callee,
    address::Socket,
    tls::{Role, Tls},
    wire::{chain, proto::speculation::v1::speculation_client::SpeculationClient},
};

/// A link that a target keeps to an endpoint. Dropping it ends the link.
pub struct Link {
    address: Address,
    queue: Arc<Queue<TargetFrame>>,
    stop: CancellationToken,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

pub(super) type OnEvent = Box<dyn FnMut(LinkEvent) + Send>;

impl Link {
    pub(super) fn spawn(
        driver: &Driver,
        callee: Callee,
        hello: Hello,
        options: LinkOptions,
        stop: CancellationToken,
        on_event: OnEvent,
    ) -> Self {
        let tls = driver.tls();
        let queue = Arc::new(Queue::new(options.queue, driver.departures()));
        let link = Self {
            address: callee.address.clone(),
            queue: Arc::clone(&queue),
            stop: stop.clone(),
        };
        let polled = driver.polled();
        let mut dialer = Dialer {
            callee,
            visit: Visit::default(),
            polled: Arc::clone(&polled),
            tls,
            hello,
            options,
            stop,
            queue,
            on_event,
        };
        match &link.address {
            Address::Unix(_) => {
                let run = move |visit| {
                    dialer.visit = visit;
                    dialer.run()
                };
                driver.spawn(&link.stop, polled.share(run));
            }
            Address::Tcp { .. } => driver.spawn(&link.stop, dialer.run()),
        }
        link
    }

    /// Sends the messages of one step, in one frame if they fit. Never blocks; callable from any
    /// thread. If the queue is full, older messages of a session go first when a newer round of
    /// the same session waits behind them.
    pub fn send(&self, messages: Vec<ToDraft>) -> Result<(), SendError> {
        self.queue.push(messages)
    }

    /// The same, over the connection that the `up`-th [`LinkEvent::Up`] told of and no other: for
    /// whoever takes events in later than they come. What it says to sessions of a connection that is
    /// lost would open some in the next one that nobody closes.
    pub fn send_over(&self, up: u64, messages: Vec<ToDraft>) -> Result<(), SendError> {
        self.queue.push_over(up, messages)
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

/// Most reasons that are told of why a link does not come up.
const MOST_TOLD: usize = 8;

/// Keeps the link up.
struct Dialer {
    callee: Callee,
    visit: Visit,
    polled: Arc<Polled>,
    tls: Option<Tls>,
    hello: Hello,
    options: LinkOptions,
    stop: CancellationToken,
    queue: Arc<Queue<TargetFrame>>,
    on_event: OnEvent,
}

impl Drop for Dialer {
    fn drop(&mut self) {
        // However this task ends, senders are told so.
        self.queue.close();
    }
}

impl Dialer {
    async fn run(mut self) {
        let mut backoff = Backoff::new(&self.options);
        // What the owner was told of why there is no link.
        let mut told = Vec::new();
        let stop = self.stop.clone();
        loop {
            let begun = Instant::now();
            let mut up = false;
            let attempt = tokio::select! {
                attempt = self.attempt(&mut up) => attempt,
                () = stop.cancelled() => Ok(Ended::Stopped),
            };
            self.queue.close();
            self.visit.leave();
            if up && begun.elapsed() > self.options.backoff_max {
                backoff.reset();
            }
            let wait = match attempt {
                Ok(Ended::Stopped) => return,
                Err(Failure::Refused(reason)) => {
                    told.clear();
                    (self.on_event)(LinkEvent::Incompatible(reason));
                    backoff.longest()
                }
                Ok(Ended::Lost(reason)) | Err(Failure::Lost(reason)) => {
                    if up {
                        told.clear();
                    }
                    // Once is enough, also of reasons that take turns, or never come again.
                    if told.len() < MOST_TOLD && !told.contains(&reason) {
                        told.push(reason.clone());
                        (self.on_event)(LinkEvent::Down(reason));
                    }
                    backoff.wait()
                }
            };
            tokio::select! {
                () = sleep(wait) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Connects, and keeps the link until it ends; `up` once both ends know each other.
    async fn attempt(&mut self, up: &mut bool) -> Result<Ended, Failure> {
        match &self.callee.address {
            Address::Tcp { .. } => {
                let frames = self.call().await?;
                let _needs_the_runtime = self.polled.other();
                self.keep(frames, up).await
            }
            Address::Unix(path) => {
                let wire = Wire::dial(path, self.options.max_frame, self.visit.clone()).await;
                let wire = wire.map_err(|error| self.unreachable(&error))?;
                let outgoing = self.queue.connect(self.hello.clone());
                self.keep(wire.carry(outgoing), up).await
            }
        }
    }

    /// The link over a connection that nothing was said on yet.
    async fn keep(
        &mut self,
        mut frames: impl Frames<DraftFrame>,
        up: &mut bool,
    ) -> Result<Ended, Failure> {
        let first = self.in_time(frames.next()).await??;
        let Some(DraftFrame {
            welcome: Some((version, welcome)),
            load,
            ..
        }) = first
        else {
            let problem = "the endpoint did not introduce itself";
            return Err(Failure::Lost(problem.into()));
        };
        let ours = Identity::of_target(VERSION, &self.hello);
        if let Some(reason) = mismatch(&ours, &Identity::of_endpoint(version, &welcome)) {
            return Err(Failure::Refused(reason));
        }
        *up = true;
        self.queue
            .open((welcome.limits.max_frame as usize).min(self.options.max_frame));
        (self.on_event)(LinkEvent::Up(welcome));
        if let Some(load) = load {
            (self.on_event)(LinkEvent::Load(load));
        }
        let Self {
            queue,
            options,
            stop,
            on_event,
            ..
        } = self;
        let ended = pump(&mut frames, queue, options, stop, |heard| match heard {
            Heard::Suspect(suspect) => on_event(LinkEvent::Suspect(suspect)),
            Heard::Frame(frame, source) => deliver(frame, source, on_event),
        });
        Ok(ended.await)
    }

    /// The stream of frames that gRPC brings.
    async fn call(&mut self) -> Result<Streaming<DraftFrame>, Failure> {
        let (callee, tls) = (self.callee.clone(), self.tls.clone());
        let connector = service_fn(move |_| {
            let (callee, tls) = (callee.clone(), tls.clone());
            async move {
                let socket = Socket::connect(&callee, tls.as_ref(), Role::Draft).await?;
                Ok::<_, io::Error>(TokioIo::new(socket))
            }
        });
        // The name only fills a header: the connector knows where to go.
        let endpoint = Endpoint::from_static("http://endpoint")
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW);
        let channel = endpoint.connect_with_connector(connector);
        let channel = self.in_time(channel).await?;
        let channel = channel.map_err(|error| self.unreachable(&error))?;
        let mut client =
            SpeculationClient::new(channel).max_decoding_message_size(self.options.max_frame);
        let outgoing = self.queue.connect(self.hello.clone());
        let response = self.in_time(client.link(outgoing)).await?;
        Ok(response
            .map_err(|status| Failure::from(&status))?
            .into_inner())
    }

    /// What comes of `step`, unless the endpoint takes too long.
    async fn in_time<T>(&mut self, step: impl Future<Output = T>) -> Result<T, Failure> {
        let done = timeout(self.options.dead_after, step).await;
        done.map_err(|_| Failure::Lost(format!("{} did not answer in time", self.callee.address)))
    }

    fn unreachable(&self, error: &dyn std::error::Error) -> Failure {
        let address = &self.callee.address;
        Failure::Lost(format!("cannot reach {address}: {}", chain(error)))
    }
}

fn deliver(frame: DraftFrame, source: &Source, on_event: &mut OnEvent) {
    if !frame.malformed.is_empty() {
        on_event(LinkEvent::Malformed(source.receive(frame.malformed)));
    }
    if let Some(load) = frame.load {
        on_event(LinkEvent::Load(load));
    }
    if !frame.messages.is_empty() {
        on_event(LinkEvent::Messages(source.receive(frame.messages)));
    }
}
