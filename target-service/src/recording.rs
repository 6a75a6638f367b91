//! What is recorded of a request, if anything is.

use std::time::Instant;

use foretoken_protocol::generate::{FinishReason, GenerationStats};
use foretoken_telemetry::{Span, Value, attribute};

/// A request that is recorded.
///
/// ```text
/// generate |-- queue --|-- prefill --|-- round --|-- round --| ...
/// ```
#[derive(Debug)]
pub(crate) struct Recording {
    span: Span,
    /// When the part under way began: the wait, the prompt, a round.
    since: Instant,
    stage: Stage,
    /// Whether the window of the round under way had been drafted before it was known to be
    /// wanted; none if that was not tried.
    hit: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queue,
    Prefill,
    Rounds,
}

/// A verdict, as a trace tells it.
#[derive(Debug)]
pub(crate) struct Told {
    /// Verdicts of the request so far, without that on the prompt.
    pub(crate) round: u32,
    /// Where the window came from.
    pub(crate) source: &'static str,
    /// Whether the next window had been drafted before this verdict; none if that was not tried.
    pub(crate) next_is_hit: Option<bool>,
    /// Tokens of the window.
    pub(crate) drafted: usize,
    /// Of these, accepted.
    pub(crate) accepted: usize,
    /// Tokens emitted.
    pub(crate) emitted: usize,
    /// Whether a window that was asked for did not come in time.
    pub(crate) is_late: bool,
    /// Rows of the step that verified it, of all requests.
    pub(crate) rows: usize,
    /// Microseconds of that step.
    pub(crate) verification: u64,
}

impl Recording {
    /// Begins with a request that has just arrived.
    pub(crate) fn new(span: Span, arrived: Instant) -> Self {
        Self {
            span,
            since: arrived,
            stage: Stage::Queue,
            hit: None,
        }
    }

    /// It was given a place; the first time counts.
    pub(crate) fn admitted(&mut self, tokens: usize, cached: usize, now: Instant) {
        if self.stage == Stage::Queue {
            self.span.add("queue", self.since, now, []);
            self.span.set(attribute::INPUT_TOKENS, tokens as i64);
            self.span.set(attribute::CACHED, cached as i64);
            (self.stage, self.since) = (Stage::Prefill, now);
        }
    }

    /// It was bound to an endpoint.
    pub(crate) fn bound(&self, endpoint: &str) {
        self.span.set("foretoken.endpoint", endpoint.to_owned());
    }

    /// A pass has decided. The first of them ends the prompt.
    pub(crate) fn decided(&mut self, told: &Told, now: Instant) {
        let since = std::mem::replace(&mut self.since, now);
        let hit = std::mem::replace(&mut self.hit, told.next_is_hit);
        if self.stage != Stage::Rounds {
            self.stage = Stage::Rounds;
            return self.span.add("prefill", since, now, []);
        }
        let mut attributes: Vec<(_, Value)> = vec![
            ("foretoken.round", i64::from(told.round).into()),
            ("foretoken.source", told.source.into()),
            (attribute::DRAFTED, (told.drafted as i64).into()),
            (attribute::ACCEPTED, (told.accepted as i64).into()),
            ("foretoken.emitted_tokens", (told.emitted as i64).into()),
            ("foretoken.late", told.is_late.into()),
            ("foretoken.step_rows", (told.rows as i64).into()),
            (
                "foretoken.verification_us",
                (told.verification as i64).into(),
            ),
        ];
        attributes.extend(hit.map(|hit| ("foretoken.hit", hit.into())));
        self.span.add("round", since, now, attributes);
    }

    /// The output has its end.
    pub(crate) fn finished(
        self,
        reason: FinishReason,
        stats: &GenerationStats,
        emitted: u32,
        now: Instant,
    ) {
        let span = self.span;
        let reason = match reason {
            FinishReason::Stop(_) => "stop",
            FinishReason::Length => "length",
        };
        span.finished(reason);
        span.set(attribute::POLICY, stats.policy.clone());
        for (name, count) in [
            (attribute::OUTPUT_TOKENS, emitted),
            (attribute::ROUNDS, stats.rounds),
            (attribute::DRAFTED, stats.drafted),
            (attribute::ACCEPTED, stats.accepted),
            (attribute::HITS, stats.hits),
            (attribute::MISSES, stats.misses),
            (attribute::LATE, stats.late),
        ] {
            span.set(name, i64::from(count));
        }
        span.end(now);
    }

    /// Nobody wants more of it. That is no error: a router also cancels what has come to a stop
    /// string, which targets know nothing of.
    pub(crate) fn cancelled(self, now: Instant) {
        self.span.event("cancelled", now);
        self.span.end(now);
    }

    /// It ended otherwise.
    pub(crate) fn failed(self, why: &str) {
        self.span.fail(why.to_owned());
    }
}
