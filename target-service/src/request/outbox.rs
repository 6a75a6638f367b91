//! What a request has to tell its client and has not sent yet.
//!
//! Handing a round on wakes a thread of the service and, on the same host, whoever reads: some 85 us
//! beside steps of a millisecond, during which the next step stands still. So rounds of short
//! steps leave together, if their reader has allowed it.

use std::time::{Duration, Instant};

use foretoken_protocol::generate::{GenerateEvent, Round};

/// Longest wait, whatever the reader allows.
const LONGEST_HOLD: Duration = Duration::from_secs(1);

/// Events of a request that have not left yet.
pub(super) struct Outbox {
    events: Vec<GenerateEvent>,
    /// How long they may wait for later ones.
    hold: Duration,
    /// When events left last.
    left: Option<Instant>,
}

impl Outbox {
    /// An empty one, of which events may wait so long, unless each round tells what the output took so
    /// far: none of its readers needs the next one for it.
    pub(super) fn new(hold: Duration, tells_stats: bool) -> Self {
        Self {
            events: Vec::new(),
            hold: if tells_stats {
                Duration::ZERO
            } else {
                hold.min(LONGEST_HOLD)
            },
            left: None,
        }
    }

    pub(super) fn push(&mut self, event: GenerateEvent) {
        self.events.push(event);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty()
    }

    /// Whether something waits that may not wait longer than until `at`. The first token has nothing
    /// to wait for.
    pub(super) fn is_due(&self, at: Instant) -> bool {
        !self.events.is_empty() && self.left.is_none_or(|left| at >= left + self.hold)
    }

    /// The latest tokens that wait.
    pub(super) fn last_round(&mut self) -> Option<&mut Round> {
        self.events.iter_mut().rev().find_map(|event| match event {
            GenerateEvent::Tokens(round) => Some(round),
            GenerateEvent::Started { .. } | GenerateEvent::Finished { .. } => None,
        })
    }

    /// All of it, to be sent.
    pub(super) fn take(&mut self, now: Instant) -> Vec<GenerateEvent> {
        self.left = Some(now);
        std::mem::take(&mut self.events)
    }
}
