//! What waits to be sent over one link.
//!
//! Engines push from their own threads; the transport polls [`Outgoing`] and gets everything
//! that waits as one frame. A queue outlives its connections: each gets a generation, so a stream
//! of an earlier connection can never take messages of a later one.

use std::{
    collections::{BTreeSet, HashMap},
    mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use foretoken_speculation::{
    Epoch, Round,
    message::{Keyed, ToDraft, ToTarget},
};
use futures::Stream;
use tokio::time::Instant;

use super::{
    DraftFrame, Hello, LoadReport, SendError, TargetFrame, Welcome,
    backlog::{Backlog, Room},
    departures::Departures,
    frame::{FrameSize, MAX_MESSAGES, VERSION},
    receipt::Creditor,
};

/// Messages each side grants the other at the start, and keeps granting as it takes them in: several for
/// each of a few hundred sessions during a step, and what an engine takes in within some milliseconds.
pub(super) const CREDIT_WINDOW: u32 = 4096;

/// Largest frames that the peer takes, as many bytes of which may wait.
const MOST_FRAMES: usize = 32;

/// Before and after all rounds of an epoch.
const FIRST: Round = Round(0);
const LAST: Round = Round(u32::MAX);

/// A frame that can be made of what waits.
pub(super) trait OutgoingFrame: Send + 'static {
    type Message: Keyed + FrameSize + Send;
    type Introduction: Send;

    fn build(messages: Vec<Self::Message>, control: Control<Self::Introduction>) -> Self;

    /// Whether a message is pointless where one of a later round or epoch of its session waits too.
    fn supersedable(message: &Self::Message) -> bool;

    /// The round that a message is about: [`FIRST`] if it begins an epoch, [`LAST`] if it ends one.
    fn round(message: &Self::Message) -> Round;

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
    fn supersedable(message: &ToDraft) -> bool {
        matches!(message, ToDraft::Outcome(_))
    }

    fn round(message: &ToDraft) -> Round {
        match message {
            ToDraft::Open(_) => FIRST,
            ToDraft::Outcome(outcome) => outcome.round,
            ToDraft::Close { .. } => LAST,
        }
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

    fn supersedable(message: &ToTarget) -> bool {
        match message {
            ToTarget::Window(_) | ToTarget::Entries(_) | ToTarget::Account(_) => true,
            ToTarget::Opened { .. } | ToTarget::Refused { .. } | ToTarget::Resync(_) => false,
        }
    }

    /// A window is not made pointless by what is drafted ahead of its own verdict. An account only tells,
    /// so it goes before any window.
    fn round(message: &ToTarget) -> Round {
        match message {
            ToTarget::Opened { .. } | ToTarget::Account(_) => FIRST,
            ToTarget::Window(window) => window.round,
            ToTarget::Entries(entries) => entries.round,
            ToTarget::Refused { .. } | ToTarget::Resync(_) => LAST,
        }
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
    backlog: Backlog<F>,
    control: Control<F::Introduction>,
    /// The connection that may take messages.
    generation: u64,
    /// Connections that messages have flowed over.
    opened: u64,
    phase: Phase,
    /// Messages the peer still allows.
    credit: usize,
    /// Whether messages were taken since the last beat.
    moved: bool,
    /// The first beat since which messages wait and none was taken.
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
            backlog: Backlog::default(),
            control: Control::default(),
            generation: 0,
            opened: 0,
            phase: Phase::Closed,
            credit: 0,
            moved: false,
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
        state.moved = false;
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
        state.opened += 1;
        state.phase = Phase::Open;
        state.max_frame = max_frame;
    }

    /// Ends the connection. What waits is dropped: its sessions ended with the link.
    pub(super) fn close(&self) {
        let mut state = self.lock();
        state.phase = Phase::Closed;
        state.backlog.clear();
        state.control = Control::default();
        self.wake(state);
    }

    /// Adds the messages of one step.
    pub(super) fn push(&self, messages: Vec<F::Message>) -> Result<(), SendError> {
        self.add(self.lock(), messages)
    }

    /// The same, for the connection that was the `opened`-th to let messages flow and no other.
    pub(super) fn push_over(
        &self,
        opened: u64,
        messages: Vec<F::Message>,
    ) -> Result<(), SendError> {
        let state = self.lock();
        if state.opened != opened {
            return Err(SendError::Down);
        }
        self.add(state, messages)
    }

    fn add(
        &self,
        mut state: MutexGuard<'_, State<F>>,
        messages: Vec<F::Message>,
    ) -> Result<(), SendError> {
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
                ended.insert(message.session(), state.backlog.len());
            }
            state.backlog.push(message);
        }
        let room = Room {
            messages: self.capacity,
            bytes: MOST_FRAMES.saturating_mul(state.max_frame),
        };
        let overflows = state.backlog.exceeds(room);
        if !ended.is_empty() && (overflows || state.credit == 0) {
            state.backlog.cancel(&ended);
        }
        if state.backlog.exceeds(room) {
            state.backlog.make_room(room, &mut lost);
        }
        if state.backlog.exceeds(room) {
            // What is left must not be lost: only the end of the link ends those sessions.
            state.phase = Phase::Overrun;
            state.backlog.clear();
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
        let moved = mem::take(&mut state.moved);
        if moved || state.backlog.is_empty() {
            state.starved = None;
        } else {
            state.starved.get_or_insert(now);
        }
        self.wake(state);
    }

    /// Whether messages have waited for so long and the peer has taken none, or has let more pile up than
    /// may.
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
        if !state.backlog.is_empty() {
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
    /// Everything that may be sent now, as one frame.
    fn next_frame(&mut self) -> Option<F> {
        let messages = if self.phase == Phase::Open {
            let most = Room {
                messages: self.credit.min(MAX_MESSAGES),
                bytes: self.max_frame,
            };
            self.backlog.take(most)
        } else {
            Vec::new()
        };
        if messages.is_empty() && self.control.is_empty() {
            return None;
        }
        self.credit -= messages.len();
        self.moved |= !messages.is_empty();
        Some(F::build(messages, mem::take(&mut self.control)))
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
