//! The endpoint's end of its links.

use std::{
    collections::HashMap,
    fmt, io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use foretoken_speculation::message::ToTarget;
use futures::{Stream, StreamExt, stream};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming, transport::Server};

use super::{
    Consumer, Grants, Hello, LinkId, LinkOptions, LoadReport, SendError, ServerEvent, Terms,
    Welcome,
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
    tls::{Peer, Role, ServiceName, Tls},
    wire::proto::speculation::v1::speculation_server::{Speculation, SpeculationServer},
};

/// Most streams of one connection: a target needs one, and one more while it dials again.
const MAX_STREAMS: u32 = 8;

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
    /// Who this endpoint is, where targets have to show who they are.
    name: Option<ServiceName>,
    grants: watch::Receiver<Grants>,
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
        terms: Terms,
        stop: CancellationToken,
        on_event: OnEvent,
    ) -> io::Result<Self> {
        let Terms {
            welcome,
            options,
            grants,
        } = terms;
        let name = listener.tls().map(Tls::name);
        let address = listener.address().clone();
        let incoming = {
            let _runtime = driver.handle().enter();
            listener.incoming()?
        };
        let shared = Arc::new(Shared {
            welcome,
            options,
            name,
            grants,
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
    let sockets = stream::unfold(incoming, |mut incoming| async {
        let socket = incoming.accept().await;
        Some((Ok::<_, io::Error>(socket), incoming))
    });
    let serving = Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        // Beats watch established links; this ends connections that never became one.
        .http2_keepalive_interval(Some(Duration::from_secs(1)))
        .http2_keepalive_timeout(Some(shared.options.dead_after))
        .max_concurrent_streams(Some(MAX_STREAMS))
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
        let target = shared.who(&request)?;
        let mut frames = request.into_inner();
        let first = timeout(shared.options.dead_after, frames.message())
            .await
            .map_err(|_| {
                Status::deadline_exceeded("the target did not introduce itself in time")
            })?;
        let Some((version, mut hello)) = first?.and_then(|frame| frame.hello) else {
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
        if let Some(ServiceName {
            namespace, name, ..
        }) = target
        {
            // Whatever it says of itself.
            hello.consumer = Consumer {
                namespace,
                deployment: name,
            };
        }
        if let Some(reason) = shared.grants.borrow().refusal(&hello.consumer.namespace) {
            return Err(shared.refuse(hello.instance, reason));
        }
        let link = LinkId(NEXT_LINK.fetch_add(1, Ordering::Relaxed));
        let queue = Arc::new(Queue::new(
            shared.options.queue,
            Arc::clone(&shared.departures),
        ));
        let revoked = Arc::<OnceLock<String>>::default();
        let replies = Replies {
            frames: queue.connect(shared.welcome.clone()),
            farewell: Some(Arc::clone(&revoked)),
        };
        let accepted = Accepted {
            link,
            hello,
            queue,
            revoked,
        };
        tokio::spawn(accepted.run(Arc::clone(shared), frames));
        Ok(Response::new(replies))
    }
}

/// An accepted link.
struct Accepted {
    link: LinkId,
    hello: Hello,
    queue: Arc<Queue<DraftFrame>>,
    /// Why its target may not use the endpoint any more.
    revoked: Arc<OnceLock<String>>,
}

impl Accepted {
    /// From its registration to its end.
    async fn run(self, shared: Arc<Shared>, frames: Streaming<TargetFrame>) {
        let Self {
            link,
            hello,
            queue,
            revoked,
        } = self;
        let namespace = hello.consumer.namespace.clone();
        queue.open(shared.options.max_frame);
        {
            let mut links = shared.links();
            if let Some(load) = links.load {
                queue.report(load);
            }
            links.queues.insert(link, Arc::clone(&queue));
        }
        shared.tell(ServerEvent::Up { link, hello });
        let pumping = pump(frames, &queue, &shared.options, &shared.stop, |heard| {
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
        });
        let ended = tokio::select! {
            ended = pumping => ended,
            reason = shared.loss_of_grant(&namespace) => {
                // Set once: this is the only place.
                let _ = revoked.set(reason.clone());
                Ended::Lost(reason)
            }
        };
        shared.links().queues.remove(&link);
        queue.close();
        let reason = match ended {
            Ended::Stopped => "this endpoint is stopping".into(),
            Ended::Lost(reason) => reason,
        };
        shared.tell(ServerEvent::Down { link, reason });
    }
}

impl Shared {
    /// Who dials: a target with a certificate, or none where nobody has to show one.
    fn who<T>(&self, request: &Request<T>) -> Result<Option<ServiceName>, Status> {
        let Some(us) = &self.name else {
            return Ok(None);
        };
        let peer = request.extensions().get::<Peer>();
        let Some(Peer(Some(peer))) = peer.cloned() else {
            let message = format!("{us} serves targets with a certificate only");
            return Err(Status::unauthenticated(message));
        };
        if peer.role != Role::Target {
            let reason = format!("{us} serves targets only, and this is {peer}");
            return Err(self.refuse(peer.to_string(), reason));
        }
        Ok(Some(peer))
    }

    /// Tells the endpoint that a target was sent away, and the target why.
    fn refuse(&self, instance: String, reason: String) -> Status {
        let told = reason.clone();
        self.tell(ServerEvent::Refused { instance, reason });
        Status::permission_denied(told)
    }

    /// Ends when deployments of `namespace` may not use this endpoint any more.
    async fn loss_of_grant(&self, namespace: &str) -> String {
        let mut grants = self.grants.clone();
        loop {
            if let Some(reason) = grants.borrow_and_update().refusal(namespace) {
                return reason;
            }
            if grants.changed().await.is_err() {
                // Nobody is left to change them.
                std::future::pending::<()>().await;
            }
        }
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, event: ServerEvent) {
        // Only the transport's thread calls this: the lock is never contended.
        (self.on_event.lock().unwrap_or_else(PoisonError::into_inner))(event);
    }
}

/// What an endpoint sends over one link.
struct Replies {
    frames: Outgoing<DraftFrame>,
    /// Why its target may not use the endpoint any more, to be said once.
    farewell: Option<Arc<OnceLock<String>>>,
}

impl Stream for Replies {
    type Item = Result<DraftFrame, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(Pin::new(&mut self.frames).poll_next(cx));
        Poll::Ready(match next {
            Some(frame) => Some(Ok(frame)),
            None => self.farewell.take().and_then(|revoked| {
                let reason = revoked.get()?;
                Some(Err(Status::permission_denied(reason)))
            }),
        })
    }
}
