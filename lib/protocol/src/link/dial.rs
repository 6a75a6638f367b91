//! The target's end of a link.

use std::{fmt, io, sync::Arc};

use foretoken_speculation::message::ToDraft;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming, transport::Endpoint};
use tower::service_fn;

use super::{
    Hello, LinkEvent, LinkOptions, SendError, Welcome,
    event::{Identity, mismatch},
    frame::{DraftFrame, TargetFrame, VERSION},
    pump::{Backoff, Ended, Heard, pump},
    queue::Queue,
    transport::{Driver, WINDOW},
};
use crate::{
    Address,
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
        address: Address,
        hello: Hello,
        options: LinkOptions,
        stop: CancellationToken,
        on_event: OnEvent,
    ) -> Self {
        let tls = driver.tls();
        let queue = Arc::new(Queue::new(options.queue, driver.departures()));
        let link = Self {
            address: address.clone(),
            queue: Arc::clone(&queue),
            stop: stop.clone(),
        };
        let dialer = Dialer {
            address,
            tls,
            hello,
            options,
            stop,
            queue,
            on_event,
        };
        driver.spawn(&link.stop, dialer.run());
        link
    }

    /// Sends the messages of one step, in one frame if they fit. Never blocks; callable from any
    /// thread. If the queue is full, older messages of a session go first when a newer round of
    /// the same session waits behind them.
    pub fn send(&self, messages: Vec<ToDraft>) -> Result<(), SendError> {
        self.queue.push(messages)
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

/// Keeps the link up.
struct Dialer {
    address: Address,
    tls: Option<Tls>,
    hello: Hello,
    options: LinkOptions,
    stop: CancellationToken,
    queue: Arc<Queue<TargetFrame>>,
    on_event: OnEvent,
}

/// Why an attempt, or the link that came of it, ended.
enum Attempt {
    Stopped,
    Incompatible(String),
    Lost(String),
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
        let mut silent = false;
        let stop = self.stop.clone();
        loop {
            let begun = Instant::now();
            let mut up = false;
            let attempt = tokio::select! {
                attempt = self.attempt(&mut up) => attempt,
                () = stop.cancelled() => Attempt::Stopped,
            };
            self.queue.close();
            if up && begun.elapsed() > self.options.backoff_max {
                backoff.reset();
            }
            let wait = match attempt {
                Attempt::Stopped => return,
                Attempt::Incompatible(reason) => {
                    silent = true;
                    (self.on_event)(LinkEvent::Incompatible(reason));
                    backoff.longest()
                }
                Attempt::Lost(reason) => {
                    // Once is enough: nothing has changed since the last time.
                    if up || !silent {
                        silent = true;
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

    async fn attempt(&mut self, up: &mut bool) -> Attempt {
        let (frames, welcome) = match self.connect().await {
            Ok(connected) => connected,
            Err(failed) => return failed,
        };
        *up = true;
        self.queue
            .open((welcome.limits.max_frame as usize).min(self.options.max_frame));
        (self.on_event)(LinkEvent::Up(welcome));
        let Self {
            queue,
            options,
            stop,
            on_event,
            ..
        } = self;
        let ended = pump(frames, queue, options, stop, |heard| match heard {
            Heard::Suspect(suspect) => on_event(LinkEvent::Suspect(suspect)),
            Heard::Frame(frame) => deliver(frame, on_event),
        })
        .await;
        match ended {
            Ended::Stopped => Attempt::Stopped,
            Ended::Lost(reason) => Attempt::Lost(reason),
        }
    }

    async fn connect(&mut self) -> Result<(Streaming<DraftFrame>, Welcome), Attempt> {
        let lost = |reason: String| Attempt::Lost(reason);
        let late = |_| lost(format!("{} did not answer in time", self.address));
        let patience = self.options.dead_after;
        let (address, tls) = (self.address.clone(), self.tls.clone());
        let connector = service_fn(move |_| {
            let (address, tls) = (address.clone(), tls.clone());
            async move {
                let socket = Socket::connect(&address, tls.as_ref(), Role::Draft).await?;
                Ok::<_, io::Error>(TokioIo::new(socket))
            }
        });
        let channel = timeout(
            patience,
            // The name only fills a header: the connector knows where to go.
            Endpoint::from_static("http://endpoint")
                .initial_stream_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .connect_with_connector(connector),
        )
        .await
        .map_err(late)?
        .map_err(|error| lost(format!("cannot reach {}: {}", self.address, chain(&error))))?;

        let mut client =
            SpeculationClient::new(channel).max_decoding_message_size(self.options.max_frame);
        let outgoing = self.queue.connect(self.hello.clone());
        let mut frames = match timeout(patience, client.link(outgoing))
            .await
            .map_err(late)?
        {
            Ok(response) => response.into_inner(),
            Err(status) => return Err(failed(&status)),
        };
        let first = timeout(patience, frames.message()).await.map_err(late)?;
        let introduction = match first {
            Ok(frame) => frame.and_then(|frame| frame.welcome),
            Err(status) => return Err(failed(&status)),
        };
        let Some((version, welcome)) = introduction else {
            return Err(lost("the endpoint did not introduce itself".into()));
        };
        let ours = Identity::of_target(VERSION, &self.hello);
        if let Some(reason) = mismatch(&ours, &Identity::of_endpoint(version, &welcome)) {
            return Err(Attempt::Incompatible(reason));
        }
        Ok((frames, welcome))
    }
}

/// What became of an attempt that ended with `status`.
fn failed(status: &Status) -> Attempt {
    match status.code() {
        Code::FailedPrecondition | Code::PermissionDenied => {
            Attempt::Incompatible(status.message().into())
        }
        // What was wrong with the connection is among the causes.
        _ if std::error::Error::source(status).is_some() => Attempt::Lost(chain(status)),
        _ => Attempt::Lost(status.message().into()),
    }
}

fn deliver(frame: DraftFrame, on_event: &mut OnEvent) {
    for malformed in frame.malformed {
        on_event(LinkEvent::Malformed(malformed));
    }
    if let Some(load) = frame.load {
        on_event(LinkEvent::Load(load));
    }
    if !frame.messages.is_empty() {
        on_event(LinkEvent::Messages(frame.messages));
    }
}
