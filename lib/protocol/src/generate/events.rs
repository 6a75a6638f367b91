//! What a target has said and the router has not taken yet.
//!
//! Sending never blocks: the engine thread has others to serve. How much waits is known at any
//! time instead ([`EventSender::unread`]), and whoever generates pauses before it is too much.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures::Stream;
use tokio::sync::mpsc;

use super::{EmittedToken, GenerateError, GenerateEvent, TokenLogprobs};

/// An event, or why there are no more.
type Item = Result<GenerateEvent, GenerateError>;
/// Events that leave together, or why there are no more.
type Batch = Result<Vec<GenerateEvent>, GenerateError>;

/// Nobody waits for the answer any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request was cancelled")]
pub struct Cancelled;

/// Where a request's events go. Never blocks; see [`Self::unread`] for when to pause.
#[derive(Debug)]
pub struct EventSender {
    events: mpsc::UnboundedSender<Batch>,
    unread: Arc<AtomicUsize>,
}

/// Where a request's events come from. Its drop cancels the request.
#[derive(Debug)]
pub struct EventReceiver {
    events: mpsc::UnboundedReceiver<Batch>,
    /// What came with the event that was read last.
    rest: VecDeque<GenerateEvent>,
    unread: Arc<AtomicUsize>,
}

impl EventSender {
    /// A sender and what it sends, for tests and for callers in the same process.
    pub fn channel() -> (Self, EventReceiver) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let unread = Arc::<AtomicUsize>::default();
        let sender = Self {
            events: sender,
            unread: Arc::clone(&unread),
        };
        let receiver = EventReceiver {
            events: receiver,
            rest: VecDeque::new(),
            unread,
        };
        (sender, receiver)
    }

    /// Sends an event. Callable from any thread.
    pub fn send(&self, event: GenerateEvent) -> Result<(), Cancelled> {
        self.send_all(vec![event])
    }

    /// Sends events in one go: whoever waits for them is woken once.
    pub fn send_all(&self, events: Vec<GenerateEvent>) -> Result<(), Cancelled> {
        let size = events.iter().map(size).sum();
        self.unread.fetch_add(size, Ordering::Relaxed);
        self.events.send(Ok(events)).map_err(|_| Cancelled)
    }

    /// Ends the request with an error.
    pub fn fail(self, error: GenerateError) {
        // If nobody waits, nobody needs to know.
        let _ = self.events.send(Err(error));
    }

    /// Bytes of memory, about, that events take which nobody has read. A client that does not
    /// read holds up its own stream alone, so this is what tells that it should be waited for.
    pub fn unread(&self) -> usize {
        self.unread.load(Ordering::Relaxed)
    }

    /// Whether the router has gone away: free the request's slots. Cheap enough for every step.
    pub fn is_cancelled(&self) -> bool {
        self.events.is_closed()
    }

    /// Waits until the router has gone away.
    pub async fn cancelled(&self) {
        self.events.closed().await;
    }
}

impl EventReceiver {
    /// The next event, if it has been sent already.
    pub fn try_recv(&mut self) -> Option<Item> {
        loop {
            if let Some(event) = self.next_of_rest() {
                return Some(Ok(event));
            }
            match self.events.try_recv().ok()? {
                Ok(events) => self.rest.extend(events),
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn next_of_rest(&mut self) -> Option<GenerateEvent> {
        let event = self.rest.pop_front()?;
        self.unread.fetch_sub(size(&event), Ordering::Relaxed);
        Some(event)
    }
}

impl Stream for EventReceiver {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        loop {
            if let Some(event) = self.next_of_rest() {
                return Poll::Ready(Some(Ok(event)));
            }
            match ready!(self.events.poll_recv(cx)) {
                Some(Ok(events)) => self.rest.extend(events),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

/// Memory that an event takes, about.
fn size(event: &GenerateEvent) -> usize {
    let told = |logprobs: &TokenLogprobs| size_of_val(logprobs.top.as_slice());
    let inside: usize = match event {
        GenerateEvent::Started {
            prompt_logprobs, ..
        } => prompt_logprobs
            .iter()
            .map(|logprobs| size_of::<TokenLogprobs>() + told(logprobs))
            .sum(),
        GenerateEvent::Tokens(round) => {
            let tokens = round.tokens.iter();
            let tokens = tokens
                .map(|token| size_of::<EmittedToken>() + token.logprobs.as_ref().map_or(0, told));
            let stats = round.stats.as_ref();
            tokens.sum::<usize>() + stats.map_or(0, |stats| size_of_val(&**stats))
        }
        GenerateEvent::Finished { .. } => 0,
    };
    size_of::<GenerateEvent>() + inside
}

#[cfg(test)]
mod tests {
    use foretoken_speculation::TokenId;

    use super::*;
    use crate::generate::Round;

    fn tokens(count: u32, top: u32) -> GenerateEvent {
        let token = |id| EmittedToken {
            token: TokenId(id),
            accepted: false,
            logprobs: Some(TokenLogprobs {
                logprob: -1.0,
                rank: 0,
                top: (0..top).map(|id| (TokenId(id), -1.0)).collect(),
            }),
        };
        GenerateEvent::Tokens(Round {
            drafted: 0,
            tokens: (0..count).map(token).collect(),
            stats: None,
        })
    }

    #[test]
    fn what_nobody_has_read_is_known_by_its_size() {
        let (sender, mut receiver) = EventSender::channel();
        sender.send(tokens(1, 0)).expect("somebody waits");
        let one = sender.unread();
        assert!(one > 0);
        sender
            .send_all(vec![tokens(3, 20), tokens(1, 0)])
            .expect("somebody waits");
        // Eight bytes for each alternative.
        assert!(sender.unread() > one + 3 * 20 * 8);
        assert_eq!(receiver.try_recv(), Some(Ok(tokens(1, 0))));
        assert!(sender.unread() > one);
        assert_eq!(receiver.try_recv(), Some(Ok(tokens(3, 20))));
        assert_eq!(sender.unread(), one);
        assert_eq!(receiver.try_recv(), Some(Ok(tokens(1, 0))));
        assert_eq!(sender.unread(), 0);
        assert_eq!(receiver.try_recv(), None);
    }
}
