//! What links have said and the engine thread has yet to take in: a message of each in turn, so that
//! whoever says much at once keeps only itself waiting.
//!
//! Credits bound how much that is: those of a frame are given back once all of it was taken in.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use foretoken_protocol::link::{LinkId, Received, ServerEvent};
use foretoken_speculation::message::ToDraft;

use super::{Outlet, Worker};

/// What is left of all links that have said something, beginning with the one whose turn it is. Refused
/// targets have none, and are one together.
#[derive(Default)]
pub(super) struct Unheard(VecDeque<(Option<LinkId>, VecDeque<Part>)>);

/// What is taken in of a link, in the order in which it came.
enum Part {
    /// Messages of a frame, and how many are left.
    Messages {
        link: LinkId,
        left: usize,
        messages: <Received<ToDraft> as IntoIterator>::IntoIter,
    },
    /// Anything else, and on which of the listeners.
    Event(usize, ServerEvent),
}

/// What is taken in at once.
enum Said {
    Message(LinkId, ToDraft),
    Event(usize, ServerEvent),
}

impl Unheard {
    /// Adds what came last over a link of the listener.
    pub(super) fn add(&mut self, listener: usize, event: ServerEvent) {
        let link = match &event {
            ServerEvent::Messages { messages, .. } if messages.is_empty() => return,
            ServerEvent::Up { link, .. }
            | ServerEvent::Messages { link, .. }
            | ServerEvent::Malformed { link, .. }
            | ServerEvent::Down { link, .. } => Some(*link),
            ServerEvent::Refused { .. } => None,
        };
        let part = match event {
            ServerEvent::Messages { link, messages } => Part::Messages {
                link,
                left: messages.len(),
                messages: messages.into_iter(),
            },
            event => Part::Event(listener, event),
        };
        match self.0.iter_mut().find(|(of, _)| *of == link) {
            Some((_, parts)) => parts.push_back(part),
            None => self.0.push_back((link, [part].into())),
        }
    }

    /// What is next, after which it is the other links' turn.
    fn next(&mut self) -> Option<Said> {
        let (of, mut parts) = self.0.pop_front()?;
        let said = match parts.pop_front()? {
            Part::Messages {
                link,
                left,
                mut messages,
            } => {
                let message = messages.next()?;
                let left = left - 1;
                // The credits of a frame are given back with its last message.
                if left > 0 {
                    parts.push_front(Part::Messages {
                        link,
                        left,
                        messages,
                    });
                }
                Said::Message(link, message)
            }
            Part::Event(listener, event) => Said::Event(listener, event),
        };
        if !parts.is_empty() {
            self.0.push_back((of, parts));
        }
        Some(said)
    }

    /// Links of which there is something.
    pub(super) fn links(&self) -> usize {
        self.0.len()
    }
}

impl<O: Outlet> Worker<O> {
    /// Takes in what links have said until `time` is over, and something of each of them however little
    /// that is.
    pub(super) fn listen(&mut self, time: Duration) {
        let begun = Instant::now();
        let mut unasked = self.unheard.links();
        while unasked > 0 || begun.elapsed() < time {
            unasked = unasked.saturating_sub(1);
            match self.unheard.next() {
                Some(Said::Message(link, message)) => {
                    self.now = Instant::now();
                    self.take_message(link, message);
                }
                Some(Said::Event(listener, event)) => self.take(listener, event),
                None => return,
            }
        }
    }
}
