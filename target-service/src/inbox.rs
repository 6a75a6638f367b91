//! Everything the engine thread is told, in one queue.

use std::time::Instant;

use foretoken_protocol::{
    Callee,
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
    Endpoints(Vec<Source>),
    /// End once nothing runs any more.
    Drain,
    /// End now; requests that run are lost, and replayed elsewhere.
    Stop,
}

/// An endpoint that there is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Source {
    /// Unique among them.
    pub(crate) name: String,
    /// Who is dialled.
    pub(crate) callee: Callee,
    /// Its share of the requests, relative to others with one; none: it comes before those, in the
    /// order of the list.
    pub(crate) share: Option<f64>,
}

/// Names a dialled link; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LinkKey(pub(crate) u64);
