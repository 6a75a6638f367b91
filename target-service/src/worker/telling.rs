//! Rounds for whoever listens to them, and for traces.

use std::time::Instant;

use foretoken_protocol::generate::FinishReason;
use foretoken_service::rounds::{Line, Round};
use foretoken_speculation::{bounds::Bound as _, policy::target::Source};

use super::{Worker, feeding::Feeding, verdict::Verdict};
use crate::{metrics::source_name, recording::Told, request::Request};

impl Worker {
    /// Tells the rounds of a step. Outcomes have left by then: nobody waits for this.
    pub(super) fn tell_rounds(&self, verdicts: &mut [Verdict]) {
        let at_ms = self.elapsed().as_millis() as u64;
        let verification_us = self.feeding.took.as_micros() as u64;
        let rows = self.feeding.rows() as u32;
        for verdict in verdicts {
            let Some(request) = self.requests.get(&verdict.request) else {
                continue;
            };
            let stats = request.session.stats();
            let round = verdict.round;
            let took = round.filter(|round| round.sought.is_timed());
            let next = verdict.lookup.filter(|lookup| lookup.expected);
            // Metrics learn of it after this.
            let before = request.meter.counted;
            let (ahead, known) = (stats.ahead, before.ahead);
            let place = match round.map(|round| round.sought.source) {
                Some(Source::Ahead { place }) => place.map(|place| place + 1),
                Some(Source::Fallback(_)) | None => None,
            };
            self.feed.tell(Line::Round(Round {
                at_ms,
                session: request.id.0,
                round: stats.rounds,
                policy: request.policy.name().into(),
                source: round
                    .map_or("none", |round| source_name(round.sought.source))
                    .into(),
                place,
                window: verdict.drafted as u32,
                accepted: verdict.decided.accepted as u32,
                emitted: verdict.emitted as u32,
                took_us: took.map(|round| round.took.as_micros() as u64),
                verification_us,
                rows,
                c: verdict.drawn.map(|saguaro| saguaro.c()),
                hit: next.map(|lookup| lookup.is_hit()),
                first: next.is_some_and(|lookup| lookup.first),
                received: (ahead.received - known.received) as u32,
                used: ahead.used - known.used,
                late_tokens: (ahead.late - known.late) as u32,
                limit: request.meter.limit().map(|limit| limit.name().into()),
                bytes: round.and_then(|round| round.bytes).unwrap_or(0),
                late: stats.missed > before.missed,
                ended: verdict.decided.ended.map(|reason| match reason {
                    FinishReason::Stop(_) => "stop".into(),
                    FinishReason::Length => "length".into(),
                }),
                tokens: verdict.tokens.take(),
            }));
        }
    }
}

impl Request {
    /// Records a round, if the request is recorded. To be called before metrics learn of it.
    pub(super) fn record(&mut self, verdict: &Verdict, feeding: &Feeding, now: Instant) {
        let Some(recording) = &mut self.recording else {
            return;
        };
        let stats = self.session.stats();
        let hit = verdict.lookup.filter(|lookup| lookup.expected);
        let told = Told {
            round: stats.rounds.saturating_sub(1),
            source: verdict
                .round
                .map_or("none", |round| source_name(round.sought.source)),
            next_is_hit: hit.map(|lookup| lookup.is_hit()),
            drafted: verdict.drafted,
            accepted: verdict.decided.accepted,
            emitted: verdict.emitted,
            is_late: stats.missed > self.meter.counted.missed,
            rows: feeding.rows(),
            verification: feeding.took.as_micros() as u64,
        };
        recording.decided(&told, now);
    }
}
