//! What a target counts.
//!
//! Names that vLLM's users know are kept where the meaning is the same (`vllm:…`); what only
//! speculation across services has is `foretoken_…`. `docs/metrics.md` tells what good values are.

use std::time::Duration;

use foretoken_engine::runner::RunnerInfo;
use foretoken_service::metrics::{
    Fraction, Labelled, LabelledHistogram, Meters, NamedFraction, Numbered,
};
use foretoken_speculation::{
    local::Origin,
    policy::target::{AheadStats, Lookup, Source, TargetStats},
};
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

use crate::request::Turnaround;

/// Handles of all metrics; cheap to use from the engine thread.
pub(crate) struct Metrics {
    pub(crate) running: Gauge,
    pub(crate) waiting: Gauge,
    pub(crate) parked: Gauge,
    pub(crate) kv_usage: Fraction,
    pub(crate) prompt_tokens: Counter,
    generated_tokens: Counter,
    pub(crate) preemptions: Counter,
    pub(crate) prefix_queries: Counter,
    pub(crate) prefix_hits: Counter,
    drafts: Counter,
    drawn: Counter,
    pub(crate) draft_tokens: Counter,
    accepted_tokens: Counter,
    accepted_at: Numbered,
    pub(crate) tree_windows: Counter,
    pub(crate) tree_nodes: Counter,
    finished: Labelled,
    pub(crate) first_token: Histogram,
    pub(crate) queue_time: Histogram,
    pub(crate) prefill_time: Histogram,
    pub(crate) decode_time: Histogram,
    inter_token: Histogram,
    pub(crate) per_token: Histogram,
    pub(crate) prompt_sizes: Histogram,
    pub(crate) output_sizes: Histogram,
    pub(crate) latency: Histogram,
    pub(crate) step_seconds: Histogram,
    pub(crate) step_rows: Histogram,
    pub(crate) step_lingered_seconds: Histogram,
    pub(crate) draft_seconds: Histogram,
    pub(crate) lookahead: Gauge,
    lookahead_limit: Labelled,
    pub(crate) links_up: Gauge,
    link_failures: Labelled,
    pub(crate) sessions: Gauge,
    late_windows: Counter,
    pub(crate) stale_windows: Counter,
    pub(crate) refusals: Counter,
    pub(crate) resyncs: Counter,
    pub(crate) malformed: Counter,
    pub(crate) cancelled: Counter,
    pub(crate) busy: Counter,
    pub(crate) lost: Counter,
    hits: Labelled,
    misses: Labelled,
    lookups: Labelled,
    hit_place: Histogram,
    entry_tokens: Labelled,
    round_seconds: LabelledHistogram,
    round_extra_seconds: LabelledHistogram,
    round_lingered_seconds: LabelledHistogram,
    round_bytes: Histogram,
    local_proposed: Labelled,
    local_accepted: Labelled,
    saguaro_c: NamedFraction,
}

/// A verdict, as far as it is counted.
pub(crate) struct Pass {
    /// Tokens of the window.
    pub(crate) drafted: usize,
    /// Of these, emitted.
    pub(crate) accepted: usize,
    /// Whether it was a tree.
    pub(crate) tree: bool,
    /// All tokens emitted.
    pub(crate) emitted: usize,
    /// How long the step took that it came from.
    pub(crate) verification: Duration,
    /// How long it then waited for more of what was drafted for it.
    pub(crate) lingered: Duration,
    /// Whether it was drawn, and came with what it was drawn from.
    pub(crate) drawn: bool,
    /// Where the next window comes from, if that was to be drafted ahead.
    pub(crate) lookup: Option<Lookup>,
    /// The round that it ended.
    pub(crate) round: Option<Turnaround>,
}

impl Metrics {
    /// Creates all metrics and the registry that shows them.
    #[rustfmt::skip]
    pub(crate) fn new(instance: &str, info: &RunnerInfo) -> (Self, Registry) {
        let mut to = Meters::new(instance, &info.path, &info.model_digest);
        let metrics = Self {
            running: to.gauge("vllm:num_requests_running", "Requests decoding or prefilling"),
            waiting: to.gauge("vllm:num_requests_waiting", "Requests waiting for a place"),
            parked: to.gauge("foretoken_requests_parked", "Requests set aside because their clients do not read"),
            kv_usage: to.fraction("vllm:kv_cache_usage_perc", "KV pages in use, 1 is all"),
            prompt_tokens: to.counter("vllm:prompt_tokens", "Prompt tokens of admitted requests"),
            generated_tokens: to.counter("vllm:generation_tokens", "Tokens emitted"),
            preemptions: to.counter("vllm:num_preemptions", "Requests preempted for pages"),
            prefix_queries: to.counter("vllm:prefix_cache_queries", "Prompt tokens looked up"),
            prefix_hits: to.counter("vllm:prefix_cache_hits", "Prompt tokens found"),
            drafts: to.counter("vllm:spec_decode_num_drafts", "Windows verified"),
            drawn: to.counter("foretoken_windows_drawn", "Of these, windows verified by rejection"),
            draft_tokens: to.counter("vllm:spec_decode_num_draft_tokens", "Tokens of windows verified"),
            accepted_tokens: to.counter("vllm:spec_decode_num_accepted_tokens", "Of these, accepted"),
            accepted_at: to.numbered("vllm:spec_decode_num_accepted_tokens_per_pos", "Tokens accepted, by position in the window from 0"),
            tree_windows: to.counter("foretoken_tree_windows", "Windows verified that were trees"),
            tree_nodes: to.counter("foretoken_tree_nodes", "Tokens verified in trees"),
            finished: to.labelled("vllm:request_success", "Requests finished"),
            first_token: to.long_times("vllm:time_to_first_token_seconds", "Seconds from arrival to the first token"),
            queue_time: to.long_times("vllm:request_queue_time_seconds", "Seconds from arrival to a place in the batch"),
            prefill_time: to.long_times("vllm:request_prefill_time_seconds", "Seconds from a place in the batch to the first token"),
            decode_time: to.long_times("vllm:request_decode_time_seconds", "Seconds from the first token to the last"),
            inter_token: to.short_times("vllm:inter_token_latency_seconds", "Seconds between the tokens of one round and those of the next"),
            per_token: to.short_times("vllm:request_time_per_output_token_seconds", "Seconds a token, mean over a request's tokens after the first"),
            prompt_sizes: to.tokens("vllm:request_prompt_tokens", "Prompt tokens of a finished request"),
            output_sizes: to.tokens("vllm:request_generation_tokens", "Tokens emitted for a finished request"),
            latency: to.long_times("vllm:e2e_request_latency_seconds", "Seconds from arrival to the last token"),
            step_seconds: to.short_times("foretoken_step_seconds", "Seconds of engine steps"),
            step_rows: to.rows("foretoken_step_rows", "Token rows of engine steps"),
            step_lingered_seconds: to.short_times("foretoken_step_lingered_seconds", "Seconds that all verdicts of an engine step waited for more of what was drafted for some of them"),
            draft_seconds: to.short_times("foretoken_draft_seconds", "Seconds from an outcome that asks for a window to its arrival"),
            lookahead: to.gauge("foretoken_lookahead", "Tokens asked for in the latest round"),
            lookahead_limit: to.labelled("foretoken_lookahead_limits", "Choices of a lookahead by what bound them"),
            links_up: to.gauge("foretoken_links_up", "Endpoints connected"),
            link_failures: to.labelled("foretoken_link_failures", "Endpoints lost, found unreachable (once for each reason until they are reached), and attempts refused"),
            sessions: to.gauge("foretoken_sessions", "Requests bound to an endpoint"),
            late_windows: to.counter("foretoken_windows_late", "Rounds that went on without the window they had asked for"),
            stale_windows: to.counter("foretoken_windows_stale", "Windows dropped on arrival"),
            refusals: to.counter("foretoken_sessions_refused", "Sessions endpoints refused"),
            resyncs: to.counter("foretoken_sessions_resynced", "Sessions that lost their thread"),
            malformed: to.counter("foretoken_messages_malformed", "Messages that made no sense"),
            cancelled: to.counter("foretoken_requests_cancelled", "Requests whose client went away, or whose text came to a stop string"),
            busy: to.counter("foretoken_requests_busy", "Requests turned away"),
            lost: to.counter("foretoken_requests_lost", "Requests given up by a step that failed or a target that was told to stop; the router replays them elsewhere"),
            hits: to.labelled("foretoken_hits", "Verdicts of SSD that a window had been drafted for"),
            misses: to.labelled("foretoken_misses", "Verdicts of SSD that no window had been drafted for, though one could have been"),
            lookups: to.labelled("foretoken_lookups", "Verdicts of SSD by where the next window came from"),
            hit_place: to.ranks("foretoken_hit_place", "Place of a hit among the outcomes drafted for, likeliest first, from 1"),
            entry_tokens: to.labelled("foretoken_entry_tokens", "Tokens drafted ahead, by fate: received in time, used in a window, late"),
            round_seconds: to.labelled_short_times("foretoken_round_seconds", "Seconds from verdict to verdict of a request, by where the window came from"),
            round_extra_seconds: to.labelled_short_times("foretoken_round_extra_seconds", "Of these, seconds not spent in the step that verified"),
            round_lingered_seconds: to.labelled_short_times("foretoken_round_lingered_seconds", "Of the extra seconds, those that the verdict waited for more of what was drafted for it"),
            round_bytes: to.bytes("foretoken_round_bytes", "Bytes of messages a round of a request, both ways"),
            local_proposed: to.labelled("foretoken_local_tokens_proposed", "Tokens of this host's own proposals verified"),
            local_accepted: to.labelled("foretoken_local_tokens_accepted", "Tokens of this host's own proposals accepted"),
            saguaro_c: to.named_fraction("foretoken_saguaro_c", "Factor by which an endpoint draws less of what it guesses"),
        };
        (metrics, to.registry())
    }

    /// The counter of requests that finished for `reason`: `stop`, `length` or `abort`.
    pub(crate) fn finished(&self, reason: &'static str) -> Counter {
        self.finished
            .get_or_create_owned(&[("finished_reason", reason)])
    }

    /// Counts where a window comes from.
    pub(crate) fn note_lookup(&self, source: Source) {
        count(&self.lookups, ("source", source_name(source)), 1);
        if let Source::Ahead { place: Some(place) } = source {
            self.hit_place.observe(f64::from(place) + 1.0);
        }
    }

    /// Counts a verdict and the round that it ended.
    pub(crate) fn note_pass(&self, pass: &Pass) {
        self.generated_tokens.inc_by(pass.emitted as u64);
        if pass.tree {
            self.tree_windows.inc();
            self.tree_nodes.inc_by(pass.drafted as u64);
        }
        if pass.drafted > 0 {
            self.drafts.inc();
            self.drawn.inc_by(pass.drawn.into());
            self.draft_tokens.inc_by(pass.drafted as u64);
            self.accepted_tokens.inc_by(pass.accepted as u64);
            for position in 0..pass.accepted as u32 {
                let label = [("position", position)];
                self.accepted_at.get_or_create_owned(&label).inc();
            }
        }
        if let Some(lookup) = pass.lookup {
            self.note_lookup(lookup.source);
        }
        if let Some(round) = pass.round {
            let label = [("source", source_name(round.sought.source))];
            if pass.emitted > 0 {
                self.inter_token.observe(round.took.as_secs_f64());
            }
            if round.sought.is_timed() {
                let extra = round.took.saturating_sub(pass.verification);
                let (all, rest) = (&self.round_seconds, &self.round_extra_seconds);
                all.get_or_create_owned(&label)
                    .observe(round.took.as_secs_f64());
                rest.get_or_create_owned(&label)
                    .observe(extra.as_secs_f64());
            }
            if !pass.lingered.is_zero() {
                self.round_lingered_seconds
                    .get_or_create_owned(&label)
                    .observe(pass.lingered.as_secs_f64());
            }
            if let Some(bytes) = round.bytes {
                self.round_bytes.observe(bytes.into());
            }
        }
    }

    /// Counts what a request did since the last time: from `counted` to `stats`.
    pub(crate) fn note_stats(&self, counted: &mut TargetStats, stats: TargetStats) {
        let before = std::mem::replace(counted, stats);
        self.late_windows
            .inc_by((stats.missed - before.missed).into());
        let AheadStats { hits, misses, .. } = stats.ahead;
        if (hits, misses) != (before.ahead.hits, before.ahead.misses) {
            for (counter, all, first) in [
                (
                    &self.hits,
                    hits - before.ahead.hits,
                    stats.ahead.first_hits - before.ahead.first_hits,
                ),
                (
                    &self.misses,
                    misses - before.ahead.misses,
                    stats.ahead.first_misses - before.ahead.first_misses,
                ),
            ] {
                count(counter, ("round", "first"), first.into());
                count(counter, ("round", "later"), (all - first).into());
            }
        }
        let (now, before) = (stats.ahead, before.ahead);
        for (fate, tokens) in [
            ("received", now.received - before.received),
            ("used", u64::from(now.used - before.used)),
            ("late", now.late - before.late),
        ] {
            count(&self.entry_tokens, ("fate", fate), tokens);
        }
    }

    /// The gauge of the factor C of an endpoint; it is off at first.
    pub(crate) fn c_of(&self, endpoint: &str) -> Fraction {
        let c = self.saguaro_c.get_or_create_owned(&named(endpoint));
        c.set(1.0);
        c
    }

    /// Shows nothing more of an endpoint that has gone.
    pub(crate) fn forget_endpoint(&self, endpoint: &str) {
        self.saguaro_c.remove(&named(endpoint));
    }

    /// Counts a link that failed: `unreachable`, `lost`, `refused` or `silent`.
    pub(crate) fn link_failed(&self, kind: &'static str) {
        count(&self.link_failures, ("kind", kind), 1);
    }

    /// Counts what became of a window that this host proposed from `origin`.
    pub(crate) fn note_local(&self, origin: Origin, proposed: u32, accepted: u32) {
        let label = ("origin", origin.name());
        count(&self.local_proposed, label, proposed.into());
        count(&self.local_accepted, label, accepted.into());
    }

    /// The counter of this host's verified proposals from `origin`.
    #[cfg(test)]
    pub(crate) fn local_proposed(&self, origin: Origin) -> Counter {
        let labels = [("origin", origin.name())];
        self.local_proposed.get_or_create_owned(&labels)
    }

    /// How often links failed like this.
    #[cfg(test)]
    pub(crate) fn link_failures(&self, kind: &'static str) -> u64 {
        let label = [("kind", kind)];
        self.link_failures.get_or_create_owned(&label).get()
    }

    /// The counter of lookahead choices in which `limit` was what bound.
    pub(crate) fn lookahead_limit(&self, limit: &'static str) -> Counter {
        self.lookahead_limit
            .get_or_create_owned(&[("limit", limit)])
    }
}

/// Where a window came from, as metrics call it.
pub(crate) fn source_name(source: Source) -> &'static str {
    match source {
        Source::Ahead { .. } => "ahead",
        Source::Fallback(fallback) => fallback.name(),
    }
}

fn named(endpoint: &str) -> [(&'static str, String); 1] {
    [("endpoint", endpoint.to_owned())]
}

fn count(family: &Labelled, label: (&'static str, &'static str), by: u64) {
    if by > 0 {
        family.get_or_create_owned(&[label]).inc_by(by);
    }
}

#[cfg(test)]
mod tests {
    use foretoken_engine::{
        runner::ModelRunner as _,
        sim::{SimOptions, SimRunner},
    };

    use super::*;

    #[test]
    fn tokens_drafted_ahead_are_counted_once_by_what_became_of_them() {
        let runner = SimRunner::new(SimOptions::default());
        let (metrics, _) = Metrics::new("t", runner.info());
        let mut counted = TargetStats::default();
        let mut stats = TargetStats::default();
        for (received, used, late) in [(40, 4, 0), (40, 4, 7), (90, 9, 12)] {
            stats.ahead = AheadStats {
                received,
                used,
                late,
                ..stats.ahead
            };
            metrics.note_stats(&mut counted, stats);
            let fate = |fate: &'static str| {
                let label = [("fate", fate)];
                metrics.entry_tokens.get_or_create_owned(&label).get()
            };
            let fates = ["received", "used", "late"].map(fate);
            assert_eq!(fates, [received, used.into(), late]);
        }
    }
}
