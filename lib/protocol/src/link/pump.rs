//! What both ends of an established link do: take frames in, keep the beat, watch the peer.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;

use super::{
    DraftFrame, LinkOptions, TargetFrame,
    carrier::Frames,
    queue::{OutgoingFrame, Queue},
    receipt::{Creditor, Received},
};

/// A frame as flow control sees it.
pub(super) trait IncomingFrame {
    /// Messages in it, readable or not.
    fn count(&self) -> usize;
    /// Messages it lets this side send.
    fn credit(&self) -> u32;
}

impl IncomingFrame for TargetFrame {
    fn count(&self) -> usize {
        self.messages.len() + self.malformed.len()
    }

    fn credit(&self) -> u32 {
        self.credit
    }
}

impl IncomingFrame for DraftFrame {
    fn count(&self) -> usize {
        self.messages.len() + self.malformed.len()
    }

    fn credit(&self) -> u32 {
        self.credit
    }
}

/// What the pump tells its owner.
pub(super) enum Heard<'a, F> {
    Frame(F, &'a Source),
    Suspect(bool),
}

/// The connection that a frame came over.
pub(super) struct Source {
    creditor: Arc<dyn Creditor>,
    connection: u64,
}

impl Source {
    /// Messages of one of its frames, which the owner takes in.
    pub(super) fn receive<M>(&self, messages: Vec<M>) -> Received<M> {
        Received::new(messages, &self.creditor, self.connection)
    }
}

/// Why a link ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// This side was told to stop.
    Stopped,
    /// The peer is gone or broke the rules.
    Lost(String),
}

/// Times `dead_after` that messages may wait for a peer that beats and takes nothing in: longer than any
/// step that an honest engine computes before it looks for messages.
const MOST_STARVED: u32 = 5;

/// Most frames without messages between two beats, since they cost no credit. Honest peers send a few a
/// second, and one whenever how busy they are changes.
const MOST_EMPTY: u32 = 4096;

/// Runs an established link until it ends.
pub(super) async fn pump<I: IncomingFrame, O: OutgoingFrame>(
    frames: &mut impl Frames<I>,
    queue: &Arc<Queue<O>>,
    options: &LinkOptions,
    stop: &CancellationToken,
    mut on_heard: impl FnMut(Heard<'_, I>),
) -> Ended {
    let mut beat = interval_at(Instant::now() + options.beat, options.beat);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopped = std::pin::pin!(stop.cancelled());
    let source = Source {
        creditor: Arc::clone(queue) as Arc<dyn Creditor>,
        connection: queue.connection(),
    };
    let mut heard = Instant::now();
    let mut suspected = false;
    let mut empty = 0;
    loop {
        tokio::select! {
            frame = frames.next() => {
                let frame = match frame {
                    Ok(Some(frame)) => frame,
                    Ok(None) => return Ended::Lost("the peer ended the link".into()),
                    Err(failure) => return Ended::Lost(failure.to_string()),
                };
                heard = Instant::now();
                if std::mem::take(&mut suspected) {
                    on_heard(Heard::Suspect(false));
                }
                if !queue.receive(frame.count()) {
                    return Ended::Lost("the peer sent more than it was granted".into());
                }
                if frame.count() == 0 {
                    empty += 1;
                }
                if empty > MOST_EMPTY {
                    return Ended::Lost("the peer sends frame after frame without messages".into());
                }
                if frame.credit() > 0 {
                    queue.granted(frame.credit());
                }
                on_heard(Heard::Frame(frame, &source));
            }
            due = beat.tick() => {
                empty = 0;
                queue.beat(Instant::now());
                let late = due.elapsed();
                let silence = heard.elapsed();
                // If this thread itself did not run, silence says nothing about the peer.
                if late < options.beat && silence > options.dead_after {
                    return Ended::Lost(format!("nothing heard for {} ms", silence.as_millis()));
                }
                // Beats only say that the peer's transport lives.
                if late < options.beat && queue.is_stuck(MOST_STARVED * options.dead_after) {
                    return Ended::Lost("the peer takes no messages in".into());
                }
                if late < options.beat && silence > options.suspect_after && !suspected {
                    suspected = true;
                    on_heard(Heard::Suspect(true));
                }
            }
            () = &mut stopped => return Ended::Stopped,
        }
    }
}

/// Waits between attempts: doubling, with jitter so that many targets do not come at once.
#[derive(Debug)]
pub(super) struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    pub(super) fn new(options: &LinkOptions) -> Self {
        Self {
            min: options.backoff_min,
            max: options.backoff_max,
            next: options.backoff_min,
        }
    }

    pub(super) fn reset(&mut self) {
        self.next = self.min;
    }

    /// How long to wait now: between half and all of the step.
    pub(super) fn wait(&mut self) -> Duration {
        let step = self.next.min(self.max);
        self.next = (step * 2).min(self.max);
        jitter(step)
    }

    /// The longest wait, with jitter.
    pub(super) fn longest(&self) -> Duration {
        jitter(self.max)
    }
}

fn jitter(step: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    // A fresh `RandomState` is the standard library's only source of randomness; spreading
    // reconnects needs no better one.
    let random = RandomState::new().hash_one(0_u8) % 1024;
    step / 2 + step / 2048 * (random as u32)
}
