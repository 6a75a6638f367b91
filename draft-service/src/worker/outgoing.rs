//! What is said to targets: one frame a link at a time.
//!
//! A target reads frames between two steps, when its user waits. Columns of continuations that would
//! only lie there until its verdict is in therefore wait for the columns after them, as long as those
//! will be there in time too.

use std::time::Duration;

use foretoken_protocol::link::LinkId;
use foretoken_speculation::{
    SessionId,
    message::{Account, Keyed as _, ToTarget},
    policy::draft::Timing,
};

use super::{Outlet, Worker, sessions::Session};
use crate::metrics::Direction;

/// Steps that must fit into the time left to a target's verdict for a column to wait for the next.
const STEPS_TO_SPARE: f64 = 2.0;

impl Session {
    /// Whether a column it has drawn can wait for the next one, which takes `step` seconds.
    fn may_hold(&self, step: f64, timing: &Timing, now: Duration) -> bool {
        let left = self.outlook.left(now, timing);
        self.draft.is_branching() && left.is_some_and(|left| left > STEPS_TO_SPARE * step)
    }
}

impl<O: Outlet> Worker<O> {
    /// Queues an answer for the next frame of `link`.
    pub(super) fn answer(&mut self, link: LinkId, message: ToTarget) {
        match self.outgoing.iter_mut().find(|(to, _)| *to == link) {
            Some((_, messages)) => messages.push(message),
            None => self.outgoing.push((link, vec![message])),
        }
    }

    /// Drops the columns of a session whose verdict is in, or that ends: nobody looks at them any more.
    pub(super) fn drop_columns(&mut self, link: LinkId, id: SessionId) {
        let is_of =
            |message: &ToTarget| matches!(message, ToTarget::Entries(part) if part.session == id);
        for (to, messages) in &mut self.outgoing {
            if *to == link {
                messages.retain(|message| !is_of(message));
            }
        }
        self.outgoing.retain(|(_, messages)| !messages.is_empty());
    }

    /// Sends what has piled up; says whether there was anything.
    pub(crate) fn flush(&mut self) -> bool {
        let frames = std::mem::take(&mut self.outgoing);
        self.send(frames)
    }

    /// Sends what should not wait for the next step, which follows at once.
    pub(super) fn flush_urgent(&mut self) -> bool {
        let now = self.clock();
        let frames = std::mem::take(&mut self.outgoing);
        let (held, urgent) = frames.into_iter().partition(|(link, messages)| {
            let mut messages = messages.iter();
            messages.all(|message| self.may_wait(*link, message, now))
        });
        self.outgoing = held;
        self.send(urgent)
    }

    fn send(&mut self, frames: Vec<(LinkId, Vec<ToTarget>)>) -> bool {
        let any = !frames.is_empty();
        for (link, mut messages) in frames {
            let peer = self.links.get(&link);
            let Some((listener, accounts)) = peer.map(|peer| (peer.listener, peer.accounts)) else {
                continue;
            };
            let told: Vec<_> = messages
                .iter()
                .filter_map(|message| self.note_sent(link, message))
                .collect();
            if accounts {
                // Before the windows: where there is no room, what is last of a session stays.
                messages.splice(0..0, told.into_iter().map(ToTarget::Account));
            }
            for message in &messages {
                self.metrics.note_bytes(Direction::Sent, message);
            }
            self.outlet.send(listener, link, messages);
        }
        any
    }

    /// Notes that a message is on its way; what was done for its session, if that is to be told with it.
    fn note_sent(&mut self, link: LinkId, message: &ToTarget) -> Option<Account> {
        let begins = match message {
            ToTarget::Entries(column) => column.before == 0,
            ToTarget::Window(_) => true,
            _ => return None,
        };
        let index = self.find(link, message.session())?;
        let session = &mut self.sessions[index];
        if let ToTarget::Entries(column) = message {
            session.draft.note_pushed(column);
        }
        begins.then(|| session.take_account()).flatten()
    }

    fn may_wait(&self, link: LinkId, message: &ToTarget, now: Duration) -> bool {
        let ToTarget::Entries(part) = message else {
            return false;
        };
        let learned = self.learned.get(&link);
        let session = self.find(link, part.session);
        learned.zip(session).is_some_and(|(learned, index)| {
            let session = &self.sessions[index];
            let step = self.steps.seconds(session.outcomes);
            session.may_hold(step, &learned.timing, now)
        })
    }
}
