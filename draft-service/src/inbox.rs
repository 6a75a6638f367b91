//! Everything the engine thread is told, in one queue.

use foretoken_protocol::link::ServerEvent;

/// What the engine thread is told.
pub(crate) enum Message {
    /// One of the links has news; the number says on which of the listeners.
    Link(usize, ServerEvent),
    /// Take no new sessions, and end once there are none or their grace is over.
    Drain,
    /// End now.
    Stop,
}
