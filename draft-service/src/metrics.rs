//! What a speculation endpoint counts.
//!
//! Names that vLLM's users know are kept where the meaning is the same (`vllm:…`); the others are
//! `foretoken_…`. Every metric carries the labels `instance`, `path` (the arithmetic path) and
//! `model` (the first 12 digits of the model's digest).

use std::{borrow::Cow, sync::atomic::AtomicU64};

use foretoken_engine::runner::RunnerInfo;
use prometheus_client::{
    metrics::{
        counter::Counter,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// Handles of all metrics; cheap to use from the engine thread.
pub(crate) struct Metrics {
    pub(crate) sessions: Gauge,
    pub(crate) links: Gauge,
    pub(crate) kv_usage: Gauge<f64, AtomicU64>,
    pub(crate) prefix_queries: Counter,
    pub(crate) prefix_hits: Counter,
    pub(crate) drafted: Counter,
    pub(crate) windows: Counter,
    pub(crate) abandoned: Counter,
    pub(crate) refused: Counter,
    pub(crate) resyncs: Counter,
    pub(crate) expired: Counter,
    pub(crate) malformed: Counter,
    pub(crate) step_seconds: Histogram,
    pub(crate) step_rows: Histogram,
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
        let metrics = Self {
            sessions: Gauge::default(),
            links: Gauge::default(),
            kv_usage: Gauge::default(),
            prefix_queries: Counter::default(),
            prefix_hits: Counter::default(),
            drafted: Counter::default(),
            windows: Counter::default(),
            abandoned: Counter::default(),
            refused: Counter::default(),
            resyncs: Counter::default(),
            expired: Counter::default(),
            malformed: Counter::default(),
            step_seconds: Histogram::new(exponential_buckets(0.00002, 1.6, 24)),
            step_rows: Histogram::new(exponential_buckets(1.0, 2.0, 12)),
        };
        metrics.register(&mut registry);
        (metrics, registry)
    }

    fn register(&self, to: &mut Registry) {
        to.register(
            "vllm:kv_cache_usage_perc",
            "KV pages in use, 1 is all",
            self.kv_usage.clone(),
        );
        to.register(
            "vllm:prefix_cache_queries",
            "Tokens of opened sessions",
            self.prefix_queries.clone(),
        );
        to.register(
            "vllm:prefix_cache_hits",
            "Of these, found in the cache",
            self.prefix_hits.clone(),
        );
        to.register(
            "foretoken_sessions",
            "Sessions that hold a slot",
            self.sessions.clone(),
        );
        to.register("foretoken_links", "Targets connected", self.links.clone());
        to.register(
            "foretoken_drafted_tokens",
            "Tokens proposed",
            self.drafted.clone(),
        );
        to.register("foretoken_windows", "Windows sent", self.windows.clone());
        to.register(
            "foretoken_windows_abandoned",
            "Windows overtaken by an outcome",
            self.abandoned.clone(),
        );
        to.register(
            "foretoken_sessions_refused",
            "Sessions turned away",
            self.refused.clone(),
        );
        to.register(
            "foretoken_sessions_resynced",
            "Sessions that lost their thread",
            self.resyncs.clone(),
        );
        to.register(
            "foretoken_leases_expired",
            "Sessions silent for too long",
            self.expired.clone(),
        );
        to.register(
            "foretoken_messages_malformed",
            "Messages that made no sense",
            self.malformed.clone(),
        );
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
    }
}
