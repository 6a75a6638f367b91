//! The endpoint's end of its links.

use std::{
    collections::HashMap,
    fmt, io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use foretoken_speculation::message::ToTarget;
use futures::{Stream, StreamExt, stream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, transport::Server};

use super::{
    Hello, LinkId, LinkOptions, LoadReport, SendError, ServerEvent, Welcome,
    departures::Departures,
    event::{Identity, mismatch},
    frame::{DraftFrame, TargetFrame, VERSION},
    pump::{Ended, Heard, pump},
    queue::{Outgoing, Queue},
    transport::{Driver, FAREWELL, WINDOW},
};
use crate::{
    Address, Listener,
    address::Incoming,
    wire::proto::speculation::v1::speculation_server::{Speculation, SpeculationServer},
};

/// Identifies links over all servers of the process.
static NEXT_LINK: AtomicU64 = AtomicU64::new(1);

/// Accepts links from targets. Dropping it ends them all.
pub struct LinkServer {
    address: Address,
    shared: Arc<Shared>,
    stop: CancellationToken,
}

impl fmt::Debug for LinkServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LinkServer")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

pub(super) type OnEvent = Box<dyn FnMut(ServerEvent) + Send>;

/// What the server's handle and its links share.
struct Shared {
    welcome: Welcome,
    options: LinkOptions,
    stop: CancellationToken,
    links: Mutex<Links>,
    departures: Arc<Departures>,
    on_event: Mutex<OnEvent>,
}

#[derive(Default)]
struct Links {
    queues: HashMap<LinkId, Arc<Queue<DraftFrame>>>,
    load: Option<LoadReport>,
}

impl LinkServer {
    pub(super) fn spawn(
        driver: &Driver,
        listener: Listener,
        welcome: Welcome,
        options: LinkOptions,
        stop: CancellationToken,
        on_event: OnEvent,
    ) -> io::Result<Self> {
        let address = listener.address().clone();
        let incoming = {
            let _runtime = driver.handle().enter();
            listener.incoming()?
        };
        let shared = Arc::new(Shared {
            welcome,
            options,
            stop: stop.clone(),
            links: Mutex::default(),
            departures: driver.departures(),
            on_event: Mutex::new(on_event),
        });
        driver.spawn(&stop, accept(incoming, Arc::clone(&shared)));
        Ok(Self {
            address,
            shared,
            stop,
        })
    }

    /// Sends the messages of one step over one link, in one frame if they fit. Never blocks;
    /// callable from any thread.
    pub fn send(&self, link: LinkId, messages: Vec<ToTarget>) -> Result<(), SendError> {
        let queue = self.shared.links().queues.get(&link).cloned();
        queue.ok_or(SendError::Down)?.push(messages)
    }

    /// Tells all targets how busy this endpoint is; later ones are told when they dial.
    pub fn report(&self, load: LoadReport) {
        let mut links = self.shared.links();
        links.load = Some(load);
        for queue in links.queues.values() {
            queue.report(load);
        }
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

async fn accept(incoming: Incoming, shared: Arc<Shared>) {
    let stop = shared.stop.clone();
    let service = SpeculationServer::new(Acceptor {
        shared: Arc::clone(&shared),
    })
    .max_decoding_message_size(shared.options.max_frame);
    let sockets = stream::unfold(incoming, |incoming| async {
        let socket = incoming.accept().await;
        Some((Ok::<_, io::Error>(socket), incoming))
    });
    let serving = Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        // Beats watch established links; this ends connections that never became one.
        .http2_keepalive_interval(Some(Duration::from_secs(1)))
        .http2_keepalive_timeout(Some(shared.options.dead_after))
        .add_service(service)
        .serve_with_incoming_shutdown(sockets.boxed(), stop.cancelled());
    tokio::select! {
        served = serving => if let Err(error) = served {
            tracing::error!(%error, "links are no longer accepted");
        },
        () = async { stop.cancelled().await; sleep(FAREWELL).await } => {}
    }
}

struct Acceptor {
    shared: Arc<Shared>,
}

#[tonic::async_trait]
impl Speculation for Acceptor {
    type LinkStream = Replies;

    async fn link(
        &self,
        request: Request<Streaming<TargetFrame>>,
    ) -> Result<Response<Replies>, Status> {
        let shared = &self.shared;
        let mut frames = request.into_inner();
        let first = timeout(shared.options.dead_after, frames.message())
            .await
            .map_err(|_| {
                Status::deadline_exceeded("the target did not introduce itself in time")
            })?;
        let Some((version, hello)) = first?.and_then(|frame| frame.hello) else {
            return Err(Status::invalid_argument(
                "the target did not introduce itself",
            ));
        };
        let ours = Identity::of_endpoint(VERSION, &shared.welcome);
        if let Some(reason) = mismatch(&Identity::of_target(version, &hello), &ours) {
            shared.tell(ServerEvent::Refused {
                instance: hello.instance,
                reason: reason.clone(),
            });
            return Err(Status::failed_precondition(reason));
        }
        let link = LinkId(NEXT_LINK.fetch_add(1, Ordering::Relaxed));
        let queue = Arc::new(Queue::new(
            shared.options.queue,
            Arc::clone(&shared.departures),
        ));
        let replies = Replies(queue.connect(shared.welcome.clone()));
        tokio::spawn(run(Arc::clone(shared), link, hello, frames, queue));
        Ok(Response::new(replies))
    }
}

/// One accepted link, from its registration to its end.
async fn run(
    shared: Arc<Shared>,
    link: LinkId,
    hello: Hello,
    frames: Streaming<TargetFrame>,
    queue: Arc<Queue<DraftFrame>>,
) {
    queue.open(shared.options.max_frame);
    {
        let mut links = shared.links();
        if let Some(load) = links.load {
            queue.report(load);
        }
        links.queues.insert(link, Arc::clone(&queue));
    }
    shared.tell(ServerEvent::Up { link, hello });
    let ended = pump(frames, &queue, &shared.options, &shared.stop, |heard| {
        // The endpoint has nothing to do about a silent target until its link is cut.
        if let Heard::Frame(frame) = heard {
            for malformed in frame.malformed {
                shared.tell(ServerEvent::Malformed { link, malformed });
            }
            if !frame.messages.is_empty() {
                shared.tell(ServerEvent::Messages {
                    link,
                    messages: frame.messages,
                });
            }
        }
    })
    .await;
    shared.links().queues.remove(&link);
    queue.close();
    let reason = match ended {
        Ended::Stopped => "this endpoint is stopping".into(),
        Ended::Lost(reason) => reason,
    };
    shared.tell(ServerEvent::Down { link, reason });
}

impl Shared {
    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: ServerEvent) {
        // Only the transport's thread calls this: the lock is never contended.
        (self.on_event.lock().unwrap_or_else(PoisonError::into_inner))(event);
    }
}

/// What an endpoint sends over one link.
struct Replies(Outgoing<DraftFrame>);

impl Stream for Replies {
    type Item = Result<DraftFrame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0)
            .poll_next(cx)
            .map(|frame| frame.map(Ok))
    }
}
