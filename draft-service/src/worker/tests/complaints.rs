//! How much a target can have written to the log.

use std::sync::atomic::{AtomicUsize, Ordering};

use tracing::{
    Event, Level, Metadata, Subscriber,
    span::{Attributes, Id, Record},
};

use super::*;

/// Counts warnings.
struct Log(std::sync::Arc<AtomicUsize>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
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
fn a_target_that_only_talks_nonsense_does_not_fill_the_log() {
    let lines = std::sync::Arc::default();
    tracing::subscriber::with_default(Log(std::sync::Arc::clone(&lines)), || {
        let mut rig = Rig::new(&DraftConfig::default(), language());
        let mut complain = |link| {
            let odd = |id| Malformed {
                session: Some(SessionId(id)),
                reason: "odd".into(),
            };
            let malformed = (0..1000).map(odd).collect::<Vec<_>>().into();
            rig.worker
                .take(0, ServerEvent::Malformed { link, malformed });
        };
        (0..100).for_each(|_| complain(A));
        complain(B);
        assert_eq!(rig.worker.metrics.malformed.get(), 101_000, "all count");
    });
    let lines = lines.load(Ordering::Relaxed);
    // A slow machine may take some seconds for it.
    assert!((2..20).contains(&lines), "{lines} lines");
}
