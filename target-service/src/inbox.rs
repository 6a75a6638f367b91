//! Everything the engine thread is told, in one queue.

use std::{
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError},
    time::{Duration, Instant},
};

use foretoken_protocol::{
    Address,
    generate::{EventSender, GenerateRequest},
    link::LinkEvent,
};
use foretoken_speculation::policy::Policy;

/// A request that passed its checks, with its way back.
pub(crate) struct Arrival {
    pub(crate) request: GenerateRequest,
    pub(crate) policy: Policy,
    pub(crate) events: EventSender,
    pub(crate) at: Instant,
}

/// What the engine thread is told.
pub(crate) enum Message {
    /// Serve this.
    Generate(Box<Arrival>),
    /// A link to an endpoint has news, since this time: the engine may have been in a step.
    Link(LinkKey, LinkEvent, Instant),
    /// These are the endpoints now, best first.
    Endpoints(Vec<(String, Address)>),
    /// End once nothing runs any more.
    Drain,
    /// End now; requests that run are lost, and replayed elsewhere.
    Stop,
}

/// Names a dialled link; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LinkKey(pub(crate) u64);

/// The engine thread's end of the queue.
pub(crate) struct Inbox {
    messages: Receiver<Message>,
    spin: Duration,
}

/// All senders are gone; nothing will ever come.
pub(crate) struct Disconnected;

impl Inbox {
    /// A queue whose reader polls for `spin` before it sleeps.
    pub(crate) fn new(spin: Duration) -> (Sender<Message>, Self) {
        let (sender, messages) = mpsc::channel();
        (sender, Self { messages, spin })
    }

    /// The next message if one is there.
    pub(crate) fn poll(&self) -> Result<Option<Message>, Disconnected> {
        match self.messages.try_recv() {
            Ok(message) => Ok(Some(message)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Disconnected),
        }
    }

    /// The next message, waited for until `deadline`; forever without one.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Result<Option<Message>, Disconnected> {
        if !self.spin.is_zero() {
            let give_up = Instant::now() + self.spin;
            let give_up = deadline.map_or(give_up, |deadline| deadline.min(give_up));
            loop {
                if let Some(message) = self.poll()? {
                    return Ok(Some(message));
                }
                if Instant::now() >= give_up {
                    break;
                }
                std::hint::spin_loop();
            }
        }
        let Some(deadline) = deadline else {
            return self.messages.recv().map(Some).map_err(|_| Disconnected);
        };
        match self
            .messages
            .recv_timeout(deadline.saturating_duration_since(Instant::now()))
        {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Disconnected),
        }
    }
}
