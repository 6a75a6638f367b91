//! Everything the engine thread is told, in one queue.

use std::{
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError},
    time::{Duration, Instant},
};

use foretoken_protocol::link::ServerEvent;

/// What the engine thread is told.
pub(crate) enum Message {
    /// One of the links has news; the number says on which of the listeners.
    Link(usize, ServerEvent),
    /// End now.
    Stop,
}

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

    /// The next message, waited for at most so long.
    pub(crate) fn wait(&self, longest: Duration) -> Result<Option<Message>, Disconnected> {
        if !self.spin.is_zero() {
            let give_up = Instant::now() + self.spin.min(longest);
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
        match self.messages.recv_timeout(longest) {
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Disconnected),
        }
    }
}
