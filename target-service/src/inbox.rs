//! Everything the engine thread is told, in one queue.

use std::time::Instant;

use foretoken_protocol::{
    Address,
    generate::{EventSender, GenerateRequest},
    link::LinkEvent,
};
use foretoken_speculation::policy::Policy;

use crate::recording::Recording;

/// A request that passed its checks, with its way back.
pub(crate) struct Arrival {
    pub(crate) request: GenerateRequest,
    pub(crate) policy: Policy,
    pub(crate) events: EventSender,
    pub(crate) at: Instant,
    /// What is recorded of it, if anything is.
    pub(crate) recording: Option<Recording>,
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
