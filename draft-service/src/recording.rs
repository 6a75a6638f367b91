//! What is recorded of a session, if anything is.

use std::time::Instant;

use foretoken_speculation::{message::Open, policy::draft::DraftStats};
use foretoken_telemetry::{Span, SpanKind, Tracer, attribute};

/// A session whose request is recorded: one span for all that is drafted for it.
///
/// ```text
/// draft |-- prefill --|
/// ```
#[derive(Debug)]
pub(crate) struct Recording {
    span: Span,
    opened: Instant,
}

impl Recording {
    /// Begins with a session that has just got a slot; none if its request is not recorded.
    pub(crate) fn new(tracer: &Tracer, open: &Open, cached: usize, now: Instant) -> Option<Self> {
        let caller = open.trace.filter(|trace| trace.is_sampled())?;
        let trace = tracer.begin("draft", SpanKind::Server, Some(caller), now);
        let span = trace.into_span()?;
        span.set(attribute::INPUT_TOKENS, open.tokens.len() as i64);
        span.set(attribute::CACHED, cached as i64);
        Some(Self { span, opened: now })
    }

    /// The prompt is in.
    pub(crate) fn primed(&self, now: Instant) {
        self.span.add("prefill", self.opened, now, []);
    }

    /// The endpoint gives it up.
    pub(crate) fn gives_up(&self, reason: &str) {
        self.span.set("foretoken.given_up", reason.to_owned());
    }

    /// It is over.
    pub(crate) fn ended(self, stats: &DraftStats, now: Instant) {
        for (name, count) in [
            ("foretoken.windows", stats.windows),
            ("foretoken.windows_prepared", stats.prepared),
            ("foretoken.builds", stats.builds),
            ("foretoken.builds_cut", stats.cut),
            ("foretoken.branch_tokens", stats.built),
            ("foretoken.entry_tokens", stats.pushed),
            ("foretoken.entry_tokens_late", stats.late),
            ("foretoken.verdicts_judged", stats.judged),
        ] {
            self.span.set(name, i64::from(count));
        }
        self.span.end(now);
    }
}
