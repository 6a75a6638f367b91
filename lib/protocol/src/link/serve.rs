//! The endpoint's end of its links.

mod grpc;
mod plain;

use std::{
    collections::HashMap,
    fmt, io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use foretoken_speculation::message::ToTarget;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::{
    Grants, Hello, LinkId, LinkOptions, LoadReport, SendError, ServerEvent, Terms, Welcome,
    carrier::Frames,
    departures::Departures,
    event::{Identity, mismatch},
    frame::{DraftFrame, TargetFrame, VERSION},
    polled::Polled,
    pump::{Ended, Heard, pump},
    queue::{Outgoing, Queue},
    transport::Driver,
};
use crate::{
    Address, Listener,
    tls::{ServiceName, Tls},
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
    /// Who this endpoint is, where targets have to show who they are.
    name: Option<ServiceName>,
    grants: watch::Receiver<Grants>,
    stop: CancellationToken,
    links: Mutex<Links>,
    departures: Arc<Departures>,
    polled: Arc<Polled>,
    on_event: Mutex<OnEvent>,
}

#[derive(Default)]
struct Links {
    queues: HashMap<LinkId, Arc<Queue<DraftFrame>>>,
    load: Option<LoadReport>,
}

/// Why a connection ends that never became a link.
const LATE: &str = "the target did not introduce itself in time";
const NAMELESS: &str = "the target did not introduce itself";

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
            polled: driver.polled(),
            on_event: Mutex::new(on_event),
        });
        match &address {
            Address::Tcp { .. } => driver.spawn(&stop, grpc::serve(incoming, Arc::clone(&shared))),
            Address::Unix(_) => driver.spawn(&stop, plain::serve(incoming, Arc::clone(&shared))),
        }
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
    async fn run(self, shared: &Shared, frames: &mut impl Frames<TargetFrame>) {
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
            if let Heard::Frame(frame, source) = heard {
                if !frame.malformed.is_empty() {
                    let malformed = source.receive(frame.malformed);
                    shared.tell(ServerEvent::Malformed { link, malformed });
                }
                if !frame.messages.is_empty() {
                    let messages = source.receive(frame.messages);
                    shared.tell(ServerEvent::Messages { link, messages });
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
    /// Lets a target in that says `hello`, or says why not.
    fn admit(
        &self,
        version: u32,
        hello: Hello,
    ) -> Result<(Accepted, Outgoing<DraftFrame>), Status> {
        let ours = Identity::of_endpoint(VERSION, &self.welcome);
        if let Some(reason) = mismatch(&Identity::of_target(version, &hello), &ours) {
            self.tell(ServerEvent::Refused {
                instance: hello.instance,
                reason: reason.clone(),
            });
            return Err(Status::failed_precondition(reason));
        }
        if let Some(reason) = self.grants.borrow().refusal(&hello.consumer.namespace) {
            return Err(self.refuse(hello.instance, reason));
        }
        let departures = Arc::clone(&self.departures);
        let queue = Arc::new(Queue::new(self.options.queue, departures));
        let outgoing = queue.connect(self.welcome.clone());
        let accepted = Accepted {
            link: LinkId(NEXT_LINK.fetch_add(1, Ordering::Relaxed)),
            hello,
            queue,
            revoked: Arc::default(),
        };
        Ok((accepted, outgoing))
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
