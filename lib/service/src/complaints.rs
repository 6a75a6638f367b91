//! What the log says of messages that make no sense.

use std::time::{Duration, Instant};

use foretoken_protocol::link::Malformed;

/// Least time between lines about one peer.
const PAUSE: Duration = Duration::from_secs(1);

/// When the log last had a line about a peer's messages. A line takes longer than a message, and the
/// peer may send as many as it likes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Complaints {
    last: Option<Instant>,
}

impl Complaints {
    /// Tells the log of these messages of `peer`, unless it has just had a line about others.
    pub fn log(&mut self, peer: &str, malformed: &[Malformed], now: Instant) {
        let recent = |at: Instant| now.saturating_duration_since(at) < PAUSE;
        if let Some(first) = malformed.first()
            && !self.last.is_some_and(recent)
        {
            let (messages, reason) = (malformed.len(), &first.reason);
            tracing::warn!(peer, messages, reason, "malformed messages");
            self.last = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use tracing::{
        Event, Metadata, Subscriber,
        span::{Attributes, Id, Record},
    };

    use super::*;

    /// Counts lines.
    struct Log(Arc<AtomicUsize>);

    impl Subscriber for Log {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, _: &Event<'_>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn who_only_talks_nonsense_does_not_fill_the_log() {
        let lines = Arc::default();
        tracing::subscriber::with_default(Log(Arc::clone(&lines)), || {
            let odd = Malformed {
                session: None,
                reason: "odd".into(),
            };
            let odd = vec![odd; 1000];
            let began = Instant::now();
            let mut complaints = Complaints::default();
            complaints.log("t", &[], began);
            for i in 0..30 {
                complaints.log("t", &odd, began + PAUSE * i / 10);
            }
        });
        assert_eq!(lines.load(Ordering::Relaxed), 3);
    }
}
