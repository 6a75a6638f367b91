//! Rounds for whoever listens to them.

use foretoken_protocol::generate::FinishReason;
use foretoken_service::rounds::{Line, Round};
use foretoken_speculation::policy::target::Source;

use super::{Worker, verdict::Verdict};
use crate::metrics::source_name;

impl Worker {
    /// Tells the rounds of a step. Outcomes have left by then: nobody waits for this.
    pub(super) fn tell_rounds(&self, verdicts: &mut [Verdict]) {
        let at_ms = self.clock().as_millis() as u64;
        let verification_us = self.feeding.took.as_micros() as u64;
        let rows = self.feeding.rows() as u32;
        for verdict in verdicts {
            let Some(request) = self.requests.get(&verdict.request) else {
                continue;
            };
            let stats = request.session.stats();
            let round = verdict.round;
            let place = match round.map(|round| round.source) {
                Some(Source::Ahead { place }) => place.map(|place| place + 1),
                Some(Source::Fallback(_)) | None => None,
            };
            self.feed.tell(Line::Round(Round {
                at_ms,
                session: request.id.0,
                round: stats.rounds,
                policy: request.policy.name().into(),
                source: round
                    .map_or("none", |round| source_name(round.source))
                    .into(),
                place,
                window: verdict.drafted as u32,
                accepted: verdict.decided.accepted as u32,
                emitted: verdict.emitted as u32,
                took_us: round.map(|round| round.took.as_micros() as u64),
                verification_us,
                rows,
                c: verdict.drawn.map(|saguaro| saguaro.c()),
                bytes: round.and_then(|round| round.bytes).unwrap_or(0),
                // Metrics learn of it after this.
                late: stats.missed > request.meter.counted.missed,
                ended: verdict.decided.ended.map(|reason| match reason {
                    FinishReason::Stop(_) => "stop".into(),
                    FinishReason::Length => "length".into(),
                }),
                tokens: verdict.tokens.take(),
            }));
        }
    }
}
