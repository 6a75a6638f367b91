//! When a request got its tokens.

use std::time::{Duration, Instant};

use super::Request;

impl Request {
    /// Notes that tokens were emitted; says how long the first took, once.
    pub(crate) fn note_tokens(&mut self, now: Instant) -> Option<Duration> {
        if let Some((_, last)) = &mut self.emitting {
            *last = now;
            return None;
        }
        self.emitting = Some((now, now));
        Some(now.saturating_duration_since(self.arrived))
    }

    /// From its arrival to its last token, or to `now` if it has none.
    pub(crate) fn latency(&self, now: Instant) -> Duration {
        let last = self.emitting.map_or(now, |(_, last)| last);
        last.saturating_duration_since(self.arrived)
    }

    /// From its place in the batch to its first token, and from that to its last; once it has one.
    pub(crate) fn times(&self) -> Option<(Duration, Duration)> {
        let (admitted, (first, _)) = (self.admitted?, self.emitting?);
        let prefill = first.saturating_duration_since(admitted);
        Some((prefill, self.decoding()?))
    }

    /// Mean time of the tokens after the first.
    pub(crate) fn time_per_token(&self) -> Option<Duration> {
        let later = self.emitted.checked_sub(1).filter(|&later| later > 0)?;
        Some(self.decoding()? / later)
    }

    fn decoding(&self) -> Option<Duration> {
        let (first, last) = self.emitting?;
        Some(last.saturating_duration_since(first))
    }
}
