//! What waits to be sent over one link.
//!
//! Engines push from their own threads; the transport polls [`Outgoing`] and gets everything
//! that waits as one frame. A queue outlives its connections: each gets a generation, so a stream
//! of an earlier connection can never take messages of a later one.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use foretoken_speculation::{
    Epoch, SessionId,
    message::{Keyed, ToDraft, ToTarget},
};
use futures::Stream;
use tokio::time::Instant;

use super::{
    DraftFrame, Hello, LoadReport, SendError, TargetFrame, Welcome,
    departures::Departures,
    frame::{FrameSize, MAX_MESSAGES, VERSION},
    receipt::Creditor,
};

/// Messages each side grants the other at the start, and keeps granting as it takes them in: several for
/// each of a few hundred sessions during a step, and what an engine takes in within some milliseconds.
pub(super) const CREDIT_WINDOW: u32 = 4096;

/// A frame that can be made of what waits.
pub(super) trait OutgoingFrame: Send + 'static {
    type Message: Keyed + FrameSize + Send;
    type Introduction: Send;

    fn build(messages: Vec<Self::Message>, control: Control<Self::Introduction>) -> Self;

    /// Whether a newer message of the same session makes `older` pointless.
    fn supersedable(older: &Self::Message) -> bool;

    /// Whether the message must not be lost, whatever waits: losing it would leak a slot. It ends its
    /// session, so whatever that has said before is pointless.
    fn vital(message: &Self::Message) -> bool;

    /// Whether the peer cannot know the session before this message.
    fn begins(message: &Self::Message) -> bool;
}

/// What a frame says beside messages.
#[derive(Debug)]
pub(super) struct Control<I> {
    pub(super) introduction: Option<I>,
    pub(super) beat: Option<u64>,
    pub(super) credit: u32,
    pub(super) load: Option<LoadReport>,
}

impl<I> Default for Control<I> {
    fn default() -> Self {
        Self {
            introduction: None,
            beat: None,
            credit: 0,
            load: None,
        }
    }
}

impl<I> Control<I> {
    fn is_empty(&self) -> bool {
        self.introduction.is_none()
            && self.beat.is_none()
            && self.credit == 0
            && self.load.is_none()
    }
}

impl OutgoingFrame for TargetFrame {
    type Message = ToDraft;
    type Introduction = Hello;

    fn build(messages: Vec<ToDraft>, control: Control<Hello>) -> Self {
        Self {
            messages,
            malformed: Vec::new(),
            hello: control.introduction.map(|hello| (VERSION, hello)),
            beat: control.beat,
            credit: control.credit,
        }
    }

    /// An outcome that is lost makes the endpoint ask for a resync, which the newer round would
    /// soon make pointless too. An `Open` is what everything newer builds on.
    fn supersedable(older: &ToDraft) -> bool {
        matches!(older, ToDraft::Outcome(_))
    }

    fn vital(message: &ToDraft) -> bool {
        matches!(message, ToDraft::Close { .. })
    }

    /// A later epoch may follow one that the endpoint still holds.
    fn begins(message: &ToDraft) -> bool {
        matches!(message, ToDraft::Open(open) if open.epoch == Epoch(1))
    }
}

impl OutgoingFrame for DraftFrame {
    type Message = ToTarget;
    type Introduction = Welcome;

    fn build(messages: Vec<ToTarget>, control: Control<Welcome>) -> Self {
        Self {
            messages,
            malformed: Vec::new(),
            welcome: control.introduction.map(|welcome| (VERSION, welcome)),
            beat: control.beat,
            credit: control.credit,
            load: control.load,
        }
    }

    fn supersedable(older: &ToTarget) -> bool {
        matches!(older, ToTarget::Window(_) | ToTarget::Account(_))
    }

    fn vital(_message: &ToTarget) -> bool {
        false
    }

    fn begins(_message: &ToTarget) -> bool {
        false
    }
}

/// What waits to be sent over one link.
pub(super) struct Queue<F: OutgoingFrame> {
    state: Mutex<State<F>>,
    capacity: usize,
    departures: Arc<Departures>,
}

struct State<F: OutgoingFrame> {
    messages: VecDeque<F::Message>,
    control: Control<F::Introduction>,
    /// The connection that may take messages.
    generation: u64,
    phase: Phase,
    /// Messages the peer still allows.
    credit: usize,
    /// The first beat that found messages waiting without any credit, which has not come since.
    starved: Option<Instant>,
    /// Messages the peer may still send, and those that were taken in since it was last granted some.
    allowed: usize,
    taken_in: u32,
    /// Largest frame the peer takes, in bytes.
    max_frame: usize,
    beats: u64,
    waker: Option<Waker>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No connection.
    Closed,
    /// Connected, but the peer has not accepted yet: control only.
    Greeting,
    /// Messages flow.
    Open,
    /// Too much waits that must not be lost: the connection is to be cut. Control only.
    Overrun,
}

impl<F: OutgoingFrame> Queue<F> {
    /// `capacity`: messages that may wait. `departures` wakes its streams.
    pub(super) fn new(capacity: usize, departures: Arc<Departures>) -> Self {
        let state = State {
            messages: VecDeque::new(),
            control: Control::default(),
            generation: 0,
            phase: Phase::Closed,
            credit: 0,
            starved: None,
            allowed: 0,
            taken_in: 0,
            max_frame: 0,
            beats: 0,
            waker: None,
        };
        Self {
            state: Mutex::new(state),
            capacity,
            departures,
        }
    }

    /// Begins a connection with `introduction`. Earlier connections' streams end.
    pub(super) fn connect(self: &Arc<Self>, introduction: F::Introduction) -> Outgoing<F> {
        let mut state = self.lock();
        state.generation += 1;
        state.phase = Phase::Greeting;
        state.credit = CREDIT_WINDOW as usize;
        state.starved = None;
        state.allowed = CREDIT_WINDOW as usize;
        state.taken_in = 0;
        state.control = Control {
            introduction: Some(introduction),
            ..Control::default()
        };
        Outgoing {
            queue: Arc::clone(self),
            generation: state.generation,
        }
    }

    /// Lets messages flow.
    pub(super) fn open(&self, max_frame: usize) {
        let mut state = self.lock();
        state.phase = Phase::Open;
        state.max_frame = max_frame;
    }

    /// Ends the connection. What waits is dropped: its sessions ended with the link.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.phase = Phase::Closed;
        state.messages.clear();
        state.control = Control::default();
        self.wake(state);
    }

    /// Adds the messages of one step.
    pub(super) fn push(&self, messages: Vec<F::Message>) -> Result<(), SendError> {
        let mut state = self.lock();
        if state.phase != Phase::Open {
            return Err(SendError::Down);
        }
        let mut lost = BTreeSet::new();
        let mut ended = HashMap::new();
        for message in messages {
            if message.frame_size() > state.max_frame {
                lost.insert(message.session());
                continue;
            }
            if F::vital(&message) {
                ended.insert(message.session(), state.messages.len());
            }
            state.messages.push_back(message);
        }
        let overflows = state.messages.len() > self.capacity;
        if !ended.is_empty() && (overflows || state.credit == 0) {
            state.cancel(&ended);
        }
        if state.messages.len() > self.capacity {
            state.make_room(self.capacity, &mut lost);
        }
        if state.messages.len() > self.capacity {
            // What is left must not be lost: only the end of the link ends those sessions.
            state.phase = Phase::Overrun;
            state.messages.clear();
            return Err(SendError::Down);
        }
        self.wake(state);
        if lost.is_empty() {
            return Ok(());
        }
        Err(SendError::Overflow {
            sessions: lost.into_iter().collect(),
        })
    }

    /// Says that this side lives, at the time `now`.
    pub(super) fn beat(&self, now: Instant) {
        let mut state = self.lock();
        state.beats += 1;
        state.control.beat = Some(state.beats);
        if state.credit == 0 && !state.messages.is_empty() {
            state.starved.get_or_insert(now);
        } else {
            state.starved = None;
        }
        self.wake(state);
    }

    /// Whether the peer has granted nothing for so long while messages waited, or has let more pile up
    /// than may.
    pub(super) fn is_stuck(&self, patience: Duration) -> bool {
        let state = self.lock();
        let starved = state
            .starved
            .is_some_and(|since| since.elapsed() > patience);
        starved || state.phase == Phase::Overrun
    }

    /// The connection that is served now.
    pub(super) fn connection(&self) -> u64 {
        self.lock().generation
    }

    /// So many messages have arrived; says whether the peer was allowed to send them.
    pub(super) fn receive(&self, messages: usize) -> bool {
        let mut state = self.lock();
        let left = state.allowed.checked_sub(messages);
        state.allowed = left.unwrap_or(0);
        left.is_some()
    }

    /// Tells the peer how busy this side is.
    pub(super) fn report(&self, load: LoadReport) {
        let mut state = self.lock();
        state.control.load = Some(load);
        self.wake(state);
    }

    /// The peer lets this side send `messages` more.
    pub(super) fn granted(&self, messages: u32) {
        let mut state = self.lock();
        state.credit = state.credit.saturating_add(messages as usize);
        state.starved = None;
        if !state.messages.is_empty() {
            self.wake(state);
        }
    }

    /// Wakes the stream, after the lock is free: otherwise the woken thread would run into it.
    fn wake(&self, mut state: MutexGuard<'_, State<F>>) {
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            self.departures.wake(waker);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<F>> {
        // Every critical section leaves the state whole, even if it ends by a panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F: OutgoingFrame> Creditor for Queue<F> {
    fn taken_in(&self, connection: u64, messages: u32) {
        let mut state = self.lock();
        if state.generation != connection {
            return;
        }
        state.taken_in += messages;
        // A grant has to be worth a frame.
        if state.taken_in >= CREDIT_WINDOW / 2 {
            let granted = mem::take(&mut state.taken_in);
            state.allowed += granted as usize;
            state.control.credit += granted;
            self.wake(state);
        }
    }
}

impl<F: OutgoingFrame> State<F> {
    /// Drops what the sessions in `ended` had to say before the places where they end; of those that the
    /// peer has not heard of, their end too.
    fn cancel(&mut self, ended: &HashMap<SessionId, usize>) {
        let mut unknown = HashSet::new();
        let mut place = 0;
        self.messages.retain(|message| {
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

    /// Drops superseded messages, then the newest ones, until `capacity` holds again.
    fn make_room(&mut self, capacity: usize, lost: &mut BTreeSet<SessionId>) {
        let mut newest = HashMap::new();
        for (place, message) in self.messages.iter().enumerate() {
            newest.insert(message.session(), place);
        }
        let mut place = 0;
        self.messages.retain(|message| {
            let stale = newest
                .get(&message.session())
                .is_some_and(|newest| *newest > place);
            place += 1;
            let drop = stale && F::supersedable(message);
            if drop {
                lost.insert(message.session());
            }
            !drop
        });
        let mut excess = self.messages.len().saturating_sub(capacity);
        let mut kept = VecDeque::with_capacity(self.messages.len());
        while let Some(message) = self.messages.pop_back() {
            if excess > 0 && !F::vital(&message) {
                excess -= 1;
                lost.insert(message.session());
            } else {
                kept.push_front(message);
            }
        }
        self.messages = kept;
    }

    /// Everything that may be sent now, as one frame.
    fn next_frame(&mut self) -> Option<F> {
        let mut count = 0;
        if self.phase == Phase::Open {
            let limit = self.messages.len().min(self.credit).min(MAX_MESSAGES);
            let mut room = self.max_frame;
            for message in self.messages.iter().take(limit) {
                let Some(left) = room.checked_sub(message.frame_size()) else {
                    break;
                };
                room = left;
                count += 1;
            }
        }
        if count == 0 && self.control.is_empty() {
            return None;
        }
        self.credit -= count;
        Some(F::build(
            self.messages.drain(..count).collect(),
            mem::take(&mut self.control),
        ))
    }
}

/// The frames of one connection.
pub(super) struct Outgoing<F: OutgoingFrame> {
    queue: Arc<Queue<F>>,
    generation: u64,
}

impl<F: OutgoingFrame> Stream for Outgoing<F> {
    type Item = F;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<F>> {
        let mut state = self.queue.lock();
        if state.generation != self.generation || state.phase == Phase::Closed {
            return Poll::Ready(None);
        }
        if let Some(frame) = state.next_frame() {
            return Poll::Ready(Some(frame));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests;
