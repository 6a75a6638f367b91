//! What a target counts.
//!
//! Names that vLLM's users know are kept where the meaning is the same (`vllm:…`); what only
//! speculation across services has is `foretoken_…`. Every metric carries the labels `instance`,
//! `path` (the arithmetic path, for example `cpu/avx512-bf16/bf16`) and `model` (the first 12
//! digits of the model's digest).

use std::{borrow::Cow, sync::atomic::AtomicU64};

use foretoken_engine::runner::RunnerInfo;
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

type Label = [(&'static str, &'static str); 1];

/// Handles of all metrics; cheap to use from the engine thread.
pub(crate) struct Metrics {
    pub(crate) running: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) kv_usage: Gauge<f64, AtomicU64>,
    pub(crate) prompt_tokens: Counter,
    pub(crate) generated_tokens: Counter,
    pub(crate) preemptions: Counter,
    pub(crate) prefix_queries: Counter,
    pub(crate) prefix_hits: Counter,
    pub(crate) drafts: Counter,
    pub(crate) draft_tokens: Counter,
    pub(crate) accepted_tokens: Counter,
    pub(crate) first_token: Histogram,
    pub(crate) per_token: Histogram,
    pub(crate) latency: Histogram,
    pub(crate) step_seconds: Histogram,
    pub(crate) step_rows: Histogram,
    pub(crate) draft_seconds: Histogram,
    pub(crate) lookahead: Gauge,
    pub(crate) links_up: Gauge,
    pub(crate) sessions: Gauge,
    pub(crate) late_windows: Counter,
    pub(crate) stale_windows: Counter,
    pub(crate) refusals: Counter,
    pub(crate) resyncs: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) busy: Counter,
    finished: Family<Label, Counter>,
    lookahead_limit: Family<Label, Counter>,
}

impl Metrics {
    /// Creates all metrics and the registry that shows them.
    pub(crate) fn new(instance: &str, info: &RunnerInfo) -> (Self, Registry) {
        let digest: String = info.model_digest.chars().take(12).collect();
        let labels = [
            ("instance", instance),
            ("path", &info.path),
            ("model", &digest),
        ];
        let mut registry = Registry::with_labels(
            labels
                .into_iter()
                .map(|(k, v)| (Cow::Borrowed(k), Cow::Owned(v.to_owned()))),
        );
        let seconds = || Histogram::new(exponential_buckets(0.0005, 2.0, 18));
        let micros = || Histogram::new(exponential_buckets(0.00005, 1.6, 24));
        let metrics = Self {
            running: Gauge::default(),
            waiting: Gauge::default(),
            kv_usage: Gauge::default(),
            prompt_tokens: Counter::default(),
            generated_tokens: Counter::default(),
            preemptions: Counter::default(),
            prefix_queries: Counter::default(),
            prefix_hits: Counter::default(),
            drafts: Counter::default(),
            draft_tokens: Counter::default(),
            accepted_tokens: Counter::default(),
            first_token: seconds(),
            per_token: micros(),
            latency: seconds(),
            step_seconds: micros(),
            step_rows: Histogram::new(exponential_buckets(1.0, 2.0, 12)),
            draft_seconds: micros(),
            lookahead: Gauge::default(),
            links_up: Gauge::default(),
            sessions: Gauge::default(),
            late_windows: Counter::default(),
            stale_windows: Counter::default(),
            refusals: Counter::default(),
            resyncs: Counter::default(),
            cancelled: Counter::default(),
            busy: Counter::default(),
            finished: Family::default(),
            lookahead_limit: Family::default(),
        };
        metrics.register_known(&mut registry);
        metrics.register_own(&mut registry);
        (metrics, registry)
    }

    /// The counter of requests that finished for `reason`: `stop`, `length` or `abort`.
    pub(crate) fn finished(&self, reason: &'static str) -> Counter {
        self.finished
            .get_or_create_owned(&[("finished_reason", reason)])
    }

    /// The counter of lookahead choices in which `limit` was what bound.
    pub(crate) fn lookahead_limit(&self, limit: &'static str) -> Counter {
        self.lookahead_limit
            .get_or_create_owned(&[("limit", limit)])
    }

    /// Metrics whose name and meaning are vLLM's. Counters get their `_total` on encoding.
    fn register_known(&self, to: &mut Registry) {
        to.register(
            "vllm:num_requests_running",
            "Requests decoding or prefilling",
            self.running.clone(),
        );
        to.register(
            "vllm:num_requests_waiting",
            "Requests waiting for a place",
            self.waiting.clone(),
        );
        to.register(
            "vllm:kv_cache_usage_perc",
            "KV pages in use, 1 is all",
            self.kv_usage.clone(),
        );
        to.register(
            "vllm:prompt_tokens",
            "Prompt tokens of admitted requests",
            self.prompt_tokens.clone(),
        );
        to.register(
            "vllm:generation_tokens",
            "Tokens emitted",
            self.generated_tokens.clone(),
        );
        to.register(
            "vllm:num_preemptions",
            "Requests preempted for pages",
            self.preemptions.clone(),
        );
        to.register(
            "vllm:prefix_cache_queries",
            "Prompt tokens looked up",
            self.prefix_queries.clone(),
        );
        to.register(
            "vllm:prefix_cache_hits",
            "Prompt tokens found",
            self.prefix_hits.clone(),
        );
        to.register(
            "vllm:spec_decode_num_drafts",
            "Windows verified",
            self.drafts.clone(),
        );
        to.register(
            "vllm:spec_decode_num_draft_tokens",
            "Tokens verified",
            self.draft_tokens.clone(),
        );
        to.register(
            "vllm:spec_decode_num_accepted_tokens",
            "Tokens accepted",
            self.accepted_tokens.clone(),
        );
        to.register(
            "vllm:request_success",
            "Requests finished",
            self.finished.clone(),
        );
        to.register(
            "vllm:time_to_first_token_seconds",
            "From arrival to the first token",
            self.first_token.clone(),
        );
        to.register(
            "vllm:time_per_output_token_seconds",
            "Mean over a request's later tokens",
            self.per_token.clone(),
        );
        to.register(
            "vllm:e2e_request_latency_seconds",
            "From arrival to the last token",
            self.latency.clone(),
        );
    }

    /// Metrics that only split speculation has.
    fn register_own(&self, to: &mut Registry) {
        to.register(
            "foretoken_step_seconds",
            "Engine steps",
            self.step_seconds.clone(),
        );
        to.register(
            "foretoken_step_rows",
            "Token rows per step",
            self.step_rows.clone(),
        );
        to.register(
            "foretoken_draft_seconds",
            "From an outcome to its window",
            self.draft_seconds.clone(),
        );
        to.register(
            "foretoken_lookahead",
            "Tokens asked for in the latest round",
            self.lookahead.clone(),
        );
        to.register(
            "foretoken_lookahead_limits",
            "What bound the choice of lookahead",
            self.lookahead_limit.clone(),
        );
        to.register(
            "foretoken_links_up",
            "Endpoints connected",
            self.links_up.clone(),
        );
        to.register(
            "foretoken_sessions",
            "Requests bound to an endpoint",
            self.sessions.clone(),
        );
        to.register(
            "foretoken_windows_late",
            "Rounds that went on without a window",
            self.late_windows.clone(),
        );
        to.register(
            "foretoken_windows_stale",
            "Windows dropped on arrival",
            self.stale_windows.clone(),
        );
        to.register(
            "foretoken_sessions_refused",
            "Sessions endpoints refused",
            self.refusals.clone(),
        );
        to.register(
            "foretoken_sessions_resynced",
            "Sessions that lost their thread",
            self.resyncs.clone(),
        );
        to.register(
            "foretoken_requests_cancelled",
            "Requests whose client went away",
            self.cancelled.clone(),
        );
        to.register(
            "foretoken_requests_busy",
            "Requests turned away",
            self.busy.clone(),
        );
    }
}
