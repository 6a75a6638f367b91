//! The link between a target and a speculation endpoint.
//!
//! The target dials; one long-lived connection carries all sessions, and a frame carries everything
//! that one engine step has to say. Over TCP it is a bidirectional gRPC stream; over a Unix socket
//! frames follow each other without HTTP/2 around them. [`Transport`] is the thread that moves
//! bytes: engines hand it messages without blocking and get events through a callback on that
//! thread, which should do no more than pass them on (for example into `std::sync::mpsc`).
//!
//! ```text
//! engine ─ Link::send ─> queue ─> frame ═══ socket ═══> frame ─> on_event ─> engine
//! ```
//!
//! A link is a soft dependency. Losing it loses the sessions on it and nothing else: the target
//! decodes alone, the endpoint frees their slots, and after a reconnect the target opens them
//! anew. Messages of one session arrive in the order they were sent or not at all.

mod backlog;
mod carrier;
mod codec;
mod departures;
mod dial;
mod distribution;
mod event;
mod frame;
mod grants;
mod mailbox;
mod message;
mod plain;
mod polled;
mod pump;
mod queue;
mod receipt;
mod serve;
mod size;
mod spin;
mod transport;

pub(crate) use codec::FrameCodec;
pub use dial::Link;
pub use event::{
    Consumer, Hello, Limits, LinkEvent, LinkId, LinkOptions, LoadReport, Malformed, SendError,
    ServerEvent, Welcome,
};
pub use frame::{
    DraftFrame, FrameError, MAX_MESSAGES, TargetFrame, VERSION, decode_draft_frame,
    decode_target_frame, encode_draft_frame, encode_target_frame,
};
pub use grants::{Grants, Terms};
pub use mailbox::{Mailbox, Postbox};
pub use receipt::Received;
pub use serve::LinkServer;
pub use size::WireSize;
pub use transport::{Transport, TransportOptions};
