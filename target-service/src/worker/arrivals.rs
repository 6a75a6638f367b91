//! Requests coming in.

use std::time::Duration;

use foretoken_engine::schedule::{Refusal, RequestId};
use foretoken_protocol::generate::{FinishReason, GenerateError};
use foretoken_speculation::policy::target::MOST_DOUBLINGS;

use super::{Worker, endpoints::fresh_patience};
use crate::{
    inbox::Arrival,
    request::{Request, Setting},
};

/// How long after a refusal that may be temporary an endpoint is asked again.
const REOPEN_AFTER: Duration = Duration::from_millis(500);
/// How long such a refusal keeps a request from turning to that endpoint again: the longest time after which
/// the one that it waits for is asked again.
pub(super) const REFUSED_FOR: Duration = REOPEN_AFTER.saturating_mul(1 << MOST_DOUBLINGS);

impl Worker {
    /// Takes a request in, or says at once why not.
    pub(super) fn arrive(&mut self, arrival: Arrival) {
        self.arrivals += 1;
        let id = RequestId(self.arrivals);
        let setting = Setting {
            vocab_size: self.engine.info().vocab_size,
            longest: self.scheduler.limits().longest(),
            eos: &self.eos,
            prefix_cache: self.config.prefix_cache,
            patience: fresh_patience(self.config.patience),
            reopen_after: REOPEN_AFTER,
            verification: self.config.verification.into(),
        };
        let mut request = match Request::new(id, arrival, &setting) {
            Ok(request) => request,
            Err((events, invalid)) => {
                return events.fail(GenerateError::Invalid(invalid.to_string()));
            }
        };
        if let Some(reason) = request.ended_on_arrival() {
            request.finish(reason, self.now);
            request.flush(self.now);
            return;
        }
        let submitted = self.scheduler.submit(request.to_be_scheduled());
        match submitted {
            Ok(()) => {
                self.requests.insert(id, request);
            }
            Err(Refusal::Full { .. }) => {
                self.metrics.busy.inc();
                let instance = self.config.instance.clone();
                request.events.fail(GenerateError::Busy { instance });
            }
            Err(refusal) => request
                .events
                .fail(GenerateError::Invalid(refusal.to_string())),
        }
    }

    /// Counts a request that came to its end.
    pub(super) fn count_finished(&self, request: &Request, reason: FinishReason) {
        let name = match reason {
            FinishReason::Stop(_) => "stop",
            FinishReason::Length => "length",
        };
        self.metrics.finished(name).inc();
        self.measure(request);
    }

    /// Counts a request that nobody wants more of. One that has emitted something may well have come
    /// to a stop string, so it is measured like others.
    pub(super) fn count_cancelled(&self, request: &Request) {
        self.metrics.cancelled.inc();
        self.metrics.finished("abort").inc();
        if request.emitted() > 0 {
            self.measure(request);
        }
    }

    fn measure(&self, request: &Request) {
        let latency = request.latency(self.now);
        self.metrics.latency.observe(latency.as_secs_f64());
        if let Some((prefill, decode)) = request.times() {
            self.metrics.prefill_time.observe(prefill.as_secs_f64());
            self.metrics.decode_time.observe(decode.as_secs_f64());
        }
        let sizes = [
            (&self.metrics.prompt_sizes, request.prompt_len as f64),
            (&self.metrics.output_sizes, request.emitted().into()),
        ];
        for (histogram, tokens) in sizes {
            histogram.observe(tokens);
        }
        if let Some(each) = request.time_per_token() {
            self.metrics.per_token.observe(each.as_secs_f64());
        }
    }
}
