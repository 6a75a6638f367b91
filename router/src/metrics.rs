//! What a router counts.
//!
//! Names that vLLM's users know are kept where the meaning is the same (`vllm:...`, label
//! `model_name`); what only a router in front of speculating targets has is `foretoken_...`.

use foretoken_telemetry::Tracer;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

/// The model a metric is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model_name: String,
}

/// The model, and why an output ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FinishLabel {
    model_name: String,
    finished_reason: &'static str,
}

/// An answer's route and status.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResponseLabel {
    path: &'static str,
    status: u16,
}

/// Metrics of one model; handles are cheap to clone and to use.
#[derive(Clone)]
pub(crate) struct ModelMetrics {
    pub(crate) running: Gauge,
    pub(crate) prompt_tokens: Counter,
    pub(crate) cached_tokens: Counter,
    pub(crate) generation_tokens: Counter,
    pub(crate) drafted: Counter,
    pub(crate) accepted: Counter,
    pub(crate) drafts: Counter,
    pub(crate) replays: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) first_token: Histogram,
    pub(crate) inter_token: Histogram,
    pub(crate) per_token: Histogram,
    pub(crate) latency: Histogram,
}

/// All metrics of a router.
pub(crate) struct Metrics {
    registry: Registry,
    running: Family<ModelLabel, Gauge>,
    prompt_tokens: Family<ModelLabel, Counter>,
    cached_tokens: Family<ModelLabel, Counter>,
    generation_tokens: Family<ModelLabel, Counter>,
    drafted: Family<ModelLabel, Counter>,
    accepted: Family<ModelLabel, Counter>,
    drafts: Family<ModelLabel, Counter>,
    replays: Family<ModelLabel, Counter>,
    cancelled: Family<ModelLabel, Counter>,
    first_token: Family<ModelLabel, Histogram>,
    inter_token: Family<ModelLabel, Histogram>,
    per_token: Family<ModelLabel, Histogram>,
    latency: Family<ModelLabel, Histogram>,
    finished: Family<FinishLabel, Counter>,
    responses: Family<ResponseLabel, Counter>,
    targets_ready: Gauge,
    targets_listed: Gauge,
}

/// Times of requests: from 1 ms to 70 minutes.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 23))
}

/// Times of tokens: from 0.1 ms to 105 s.
fn short_seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 21))
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut this = Self {
            registry: Registry::default(),
            running: Family::default(),
            prompt_tokens: Family::default(),
            cached_tokens: Family::default(),
            generation_tokens: Family::default(),
            drafted: Family::default(),
            accepted: Family::default(),
            drafts: Family::default(),
            replays: Family::default(),
            cancelled: Family::default(),
            first_token: Family::new_with_constructor(seconds),
            inter_token: Family::new_with_constructor(short_seconds),
            per_token: Family::new_with_constructor(short_seconds),
            latency: Family::new_with_constructor(seconds),
            finished: Family::default(),
            responses: Family::default(),
            targets_ready: Gauge::default(),
            targets_listed: Gauge::default(),
        };
        this.register_known();
        this.register_own();
        this
    }

    /// Metrics whose name and meaning are vLLM's. Counters get their `_total` on encoding.
    fn register_known(&mut self) {
        let to = &mut self.registry;
        to.register(
            "vllm:num_requests_running",
            "Choices being generated",
            self.running.clone(),
        );
        to.register(
            "vllm:prompt_tokens",
            "Prompt tokens",
            self.prompt_tokens.clone(),
        );
        to.register(
            "vllm:prompt_tokens_cached",
            "Prompt tokens reused",
            self.cached_tokens.clone(),
        );
        to.register(
            "vllm:generation_tokens",
            "Tokens given to users",
            self.generation_tokens.clone(),
        );
        to.register(
            "vllm:spec_decode_num_drafts",
            "Verified windows",
            self.drafts.clone(),
        );
        to.register(
            "vllm:spec_decode_num_draft_tokens",
            "Tokens drafted",
            self.drafted.clone(),
        );
        to.register(
            "vllm:spec_decode_num_accepted_tokens",
            "Tokens accepted",
            self.accepted.clone(),
        );
        to.register(
            "vllm:request_success",
            "Choices finished",
            self.finished.clone(),
        );
        to.register(
            "vllm:time_to_first_token_seconds",
            "From request to first token",
            self.first_token.clone(),
        );
        to.register(
            "vllm:inter_token_latency_seconds",
            "Between the tokens of one round and those of the next",
            self.inter_token.clone(),
        );
        to.register(
            "vllm:request_time_per_output_token_seconds",
            "Seconds a token, mean over a request's tokens after the first",
            self.per_token.clone(),
        );
        to.register(
            "vllm:e2e_request_latency_seconds",
            "From request to last token",
            self.latency.clone(),
        );
    }

    /// Metrics that only a router in front of targets has.
    fn register_own(&mut self) {
        let to = &mut self.registry;
        to.register(
            "foretoken_replays",
            "Streams moved after a target was lost",
            self.replays.clone(),
        );
        to.register(
            "foretoken_requests_cancelled",
            "Choices whose client went away",
            self.cancelled.clone(),
        );
        to.register(
            "foretoken_http_responses",
            "Answers by route and status",
            self.responses.clone(),
        );
        to.register(
            "foretoken_targets_ready",
            "Targets that answer",
            self.targets_ready.clone(),
        );
        to.register(
            "foretoken_targets_listed",
            "Targets that are listed",
            self.targets_listed.clone(),
        );
    }

    /// Shows what becomes of what `tracer` records.
    pub(crate) fn show(&mut self, tracer: &Tracer) {
        tracer.register(&mut self.registry);
    }

    /// Handles of one model's metrics.
    pub(crate) fn of_model(&self, name: &str) -> ModelMetrics {
        let label = ModelLabel {
            model_name: name.to_owned(),
        };
        ModelMetrics {
            running: self.running.get_or_create_owned(&label),
            prompt_tokens: self.prompt_tokens.get_or_create_owned(&label),
            cached_tokens: self.cached_tokens.get_or_create_owned(&label),
            generation_tokens: self.generation_tokens.get_or_create_owned(&label),
            drafted: self.drafted.get_or_create_owned(&label),
            accepted: self.accepted.get_or_create_owned(&label),
            drafts: self.drafts.get_or_create_owned(&label),
            replays: self.replays.get_or_create_owned(&label),
            cancelled: self.cancelled.get_or_create_owned(&label),
            first_token: self.first_token.get_or_create_owned(&label),
            inter_token: self.inter_token.get_or_create_owned(&label),
            per_token: self.per_token.get_or_create_owned(&label),
            latency: self.latency.get_or_create_owned(&label),
        }
    }

    /// Counts a choice that ended.
    pub(crate) fn finished(&self, model: &str, finished_reason: &'static str) {
        let label = FinishLabel {
            model_name: model.to_owned(),
            finished_reason,
        };
        self.finished.get_or_create(&label).inc();
    }

    /// Counts an answer.
    pub(crate) fn responded(&self, path: &'static str, status: u16) {
        self.responses
            .get_or_create(&ResponseLabel { path, status })
            .inc();
    }

    /// The text that Prometheus reads.
    pub(crate) fn render(&self, (ready, listed): (usize, usize)) -> String {
        self.targets_ready.set(ready as i64);
        self.targets_listed.set(listed as i64);
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, &self.registry) {
            Ok(()) => text,
            // Writing to a String fails only if an encoder of ours does.
            Err(_) => String::new(),
        }
    }
}
