//! The messages that wait to be sent over one link, and which of them go where too many do.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use foretoken_speculation::{SessionId, message::Keyed};

use super::{frame::FrameSize, queue::OutgoingFrame};

/// How much there is room for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) messages: usize,
    /// Bytes in frames.
    pub(super) bytes: usize,
}

/// Messages in the order in which they were given.
pub(super) struct Backlog<F: OutgoingFrame> {
    messages: VecDeque<F::Message>,
    /// What they take in frames.
    bytes: usize,
}

impl<F: OutgoingFrame> Default for Backlog<F> {
    fn default() -> Self {
        Self {
            messages: VecDeque::new(),
            bytes: 0,
        }
    }
}

impl<F: OutgoingFrame> Backlog<F> {
    pub(super) fn len(&self) -> usize {
        self.messages.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    pub(super) fn push(&mut self, message: F::Message) {
        self.bytes += message.frame_size();
        self.messages.push_back(message);
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(super) fn exceeds(&self, room: Room) -> bool {
        self.messages.len() > room.messages || self.bytes > room.bytes
    }

    /// Takes the oldest, as many as there is room for.
    pub(super) fn take(&mut self, room: Room) -> Vec<F::Message> {
        let (mut count, mut bytes) = (0, 0);
        for message in self.messages.iter().take(room.messages) {
            let more = bytes + message.frame_size();
            if more > room.bytes {
                break;
            }
            bytes = more;
            count += 1;
        }
        self.bytes -= bytes;
        self.messages.drain(..count).collect()
    }

    /// Drops what the sessions in `ended` had to say before the places where they end; of those that the
    /// peer has not heard of, their end too.
    pub(super) fn cancel(&mut self, ended: &HashMap<SessionId, usize>) {
        let mut unknown = HashSet::new();
        let mut place = 0;
        self.retain(|message| {
            let session = message.session();
            let end = ended.get(&session).copied();
            let here = place;
            place += 1;
            if end.is_some_and(|end| here < end) && F::begins(message) {
                unknown.insert(session);
            }
            match end {
                Some(end) if here == end => !unknown.contains(&session),
                Some(end) => here > end,
                None => true,
            }
        });
    }

    /// Drops superseded messages, then the newest ones, until there is room. Whose messages are `lost` is
    /// noted.
    pub(super) fn make_room(&mut self, room: Room, lost: &mut BTreeSet<SessionId>) {
        let when = |message: &F::Message| {
            let (session, epoch) = message.key();
            (session, (epoch, F::round(message)))
        };
        let mut latest = HashMap::new();
        for (session, time) in self.messages.iter().map(when) {
            let latest = latest.entry(session).or_insert(time);
            *latest = time.max(*latest);
        }
        self.retain(|message| {
            let (session, time) = when(message);
            let superseded = F::supersedable(message) && time < latest[&session];
            if superseded {
                lost.insert(session);
            }
            !superseded
        });
        let mut kept = Vec::new();
        while self.exceeds(Room {
            messages: room.messages.saturating_sub(kept.len()),
            ..room
        }) {
            let Some(message) = self.messages.pop_back() else {
                break;
            };
            if F::vital(&message) {
                kept.push(message);
            } else {
                self.bytes -= message.frame_size();
                lost.insert(message.session());
            }
        }
        self.messages.extend(kept.into_iter().rev());
    }

    fn retain(&mut self, mut keeps: impl FnMut(&F::Message) -> bool) {
        let bytes = &mut self.bytes;
        self.messages.retain(|message| {
            let kept = keeps(message);
            if !kept {
                *bytes -= message.frame_size();
            }
            kept
        });
    }
}
