//! What a target counts.
//!
//! Names that vLLM's users know are kept where the meaning is the same (`vllm:…`); what only
//! speculation across services has is `foretoken_…`.

use foretoken_engine::runner::RunnerInfo;
use foretoken_service::metrics::{Fraction, Labelled, Meters};
use foretoken_speculation::policy::target::{AheadStats, Lookup, Source};
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Handles of all metrics; cheap to use from the engine thread.
pub(crate) struct Metrics {
    pub(crate) running: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) kv_usage: Fraction,
    pub(crate) prompt_tokens: Counter,
    pub(crate) generated_tokens: Counter,
    pub(crate) preemptions: Counter,
    pub(crate) prefix_queries: Counter,
    pub(crate) prefix_hits: Counter,
    pub(crate) drafts: Counter,
    pub(crate) draft_tokens: Counter,
    pub(crate) accepted_tokens: Counter,
    finished: Labelled,
    pub(crate) first_token: Histogram,
    pub(crate) per_token: Histogram,
    pub(crate) latency: Histogram,
    pub(crate) step_seconds: Histogram,
    pub(crate) step_rows: Histogram,
    pub(crate) draft_seconds: Histogram,
    pub(crate) lookahead: Gauge,
    lookahead_limit: Labelled,
    pub(crate) links_up: Gauge,
    pub(crate) sessions: Gauge,
    pub(crate) late_windows: Counter,
    pub(crate) stale_windows: Counter,
    pub(crate) refusals: Counter,
    pub(crate) resyncs: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) busy: Counter,
    lookups: Labelled,
    hit_place: Histogram,
    entry_tokens: Labelled,
}

impl Metrics {
    /// Creates all metrics and the registry that shows them.
    #[rustfmt::skip]
    pub(crate) fn new(instance: &str, info: &RunnerInfo) -> (Self, Registry) {
        let mut to = Meters::new(instance, &info.path, &info.model_digest);
        let metrics = Self {
            running: to.gauge("vllm:num_requests_running", "Requests decoding or prefilling"),
            waiting: to.gauge("vllm:num_requests_waiting", "Requests waiting for a place"),
            kv_usage: to.fraction("vllm:kv_cache_usage_perc", "KV pages in use, 1 is all"),
            prompt_tokens: to.counter("vllm:prompt_tokens", "Prompt tokens of admitted requests"),
            generated_tokens: to.counter("vllm:generation_tokens", "Tokens emitted"),
            preemptions: to.counter("vllm:num_preemptions", "Requests preempted for pages"),
            prefix_queries: to.counter("vllm:prefix_cache_queries", "Prompt tokens looked up"),
            prefix_hits: to.counter("vllm:prefix_cache_hits", "Prompt tokens found"),
            drafts: to.counter("vllm:spec_decode_num_drafts", "Windows verified"),
            draft_tokens: to.counter("vllm:spec_decode_num_draft_tokens", "Tokens verified"),
            accepted_tokens: to.counter("vllm:spec_decode_num_accepted_tokens", "Tokens accepted"),
            finished: to.labelled("vllm:request_success", "Requests finished"),
            first_token: to.long_times("vllm:time_to_first_token_seconds", "From arrival to the first token"),
            per_token: to.short_times("vllm:time_per_output_token_seconds", "Mean over a request's later tokens"),
            latency: to.long_times("vllm:e2e_request_latency_seconds", "From arrival to the last token"),
            step_seconds: to.short_times("foretoken_step_seconds", "Engine steps"),
            step_rows: to.rows("foretoken_step_rows", "Token rows per step"),
            draft_seconds: to.short_times("foretoken_draft_seconds", "From an outcome to its window"),
            lookahead: to.gauge("foretoken_lookahead", "Tokens asked for in the latest round"),
            lookahead_limit: to.labelled("foretoken_lookahead_limits", "What bound the choice of lookahead"),
            links_up: to.gauge("foretoken_links_up", "Endpoints connected"),
            sessions: to.gauge("foretoken_sessions", "Requests bound to an endpoint"),
            late_windows: to.counter("foretoken_windows_late", "Rounds that went on without a window"),
            stale_windows: to.counter("foretoken_windows_stale", "Windows dropped on arrival"),
            refusals: to.counter("foretoken_sessions_refused", "Sessions endpoints refused"),
            resyncs: to.counter("foretoken_sessions_resynced", "Sessions that lost their thread"),
            cancelled: to.counter("foretoken_requests_cancelled", "Requests whose client went away"),
            busy: to.counter("foretoken_requests_busy", "Requests turned away"),
            lookups: to.labelled("foretoken_lookups", "Verdicts of SSD by where the next window came from"),
            hit_place: to.rows("foretoken_hit_place", "Place of a verdict among the outcomes prepared for, from 1"),
            entry_tokens: to.labelled("foretoken_entry_tokens", "Tokens prepared ahead: received in time, used, late"),
        };
        (metrics, to.registry())
    }

    /// The counter of requests that finished for `reason`: `stop`, `length` or `abort`.
    pub(crate) fn finished(&self, reason: &'static str) -> Counter {
        self.finished
            .get_or_create_owned(&[("finished_reason", reason)])
    }

    /// Counts where the window after a verdict came from.
    pub(crate) fn note_lookup(&self, lookup: &Lookup) {
        let source = match lookup.source {
            Source::Ahead { .. } => "ahead",
            Source::Fallback(fallback) => fallback.name(),
        };
        self.lookups
            .get_or_create_owned(&[("source", source)])
            .inc();
        if let Source::Ahead { place: Some(place) } = lookup.source {
            self.hit_place.observe(f64::from(place) + 1.0);
        }
    }

    /// Counts what was drafted ahead for a request that is over.
    pub(crate) fn note_ahead(&self, stats: &AheadStats) {
        let tokens = [
            ("received", stats.received),
            ("used", stats.used.into()),
            ("late", stats.late),
        ];
        for (fate, tokens) in tokens.into_iter().filter(|(_, tokens)| *tokens > 0) {
            let counter = self.entry_tokens.get_or_create_owned(&[("fate", fate)]);
            counter.inc_by(tokens);
        }
    }

    /// The counter of lookahead choices in which `limit` was what bound.
    pub(crate) fn lookahead_limit(&self, limit: &'static str) -> Counter {
        self.lookahead_limit
            .get_or_create_owned(&[("limit", limit)])
    }
}
