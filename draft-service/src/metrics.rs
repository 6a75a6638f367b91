//! What a speculation endpoint counts.
//!
//! Names that vLLM's users know are kept where the meaning is the same (`vllm:…`); the others are
//! `foretoken_…`. `docs/metrics.md` tells what good values are.

use std::time::Duration;

use foretoken_engine::runner::RunnerInfo;
use foretoken_protocol::link::WireSize;
use foretoken_service::metrics::{Fraction, Labelled, LabelledSum, Meters};
use foretoken_speculation::{
    bounds::Bound as _,
    fanout::Limit,
    policy::draft::{DraftStats, Purpose},
};
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Tokens of continuations drafted ahead.
pub(crate) struct EntryTokens {
    pushed: Counter,
    pub(crate) timely: Counter,
    pub(crate) late: Counter,
    pub(crate) planned: Counter,
    pub(crate) missing: Counter,
}

impl EntryTokens {
    fn new(to: &mut Meters) -> Self {
        Self {
            pushed: to.counter("foretoken_entry_tokens", "Tokens for outcomes, sent ahead"),
            timely: to.counter("foretoken_entry_tokens_timely", "Of these, used in time"),
            late: to.counter(
                "foretoken_entry_tokens_late",
                "Tokens for outcomes that came about, not there in time, sent or not",
            ),
            planned: to.counter(
                "foretoken_entry_tokens_planned",
                "Tokens for outcomes that came about, for which there seemed to be time",
            ),
            missing: to.counter(
                "foretoken_entry_tokens_missing",
                "Of these, not there in time",
            ),
        }
    }

    fn note(&self, stats: &DraftStats) {
        self.pushed.inc_by(stats.pushed.into());
        self.timely.inc_by(stats.timely.into());
        self.late.inc_by(stats.late.into());
    }

    /// Counts what a verdict found of what there seemed to be time for.
    pub(crate) fn judge(&self, planned: u32, missing: u32) {
        self.planned.inc_by(planned.into());
        self.missing.inc_by(missing.into());
    }
}

/// Handles of all metrics; cheap to use from the engine thread.
pub(crate) struct Metrics {
    pub(crate) kv_usage: Fraction,
    pub(crate) prefix_queries: Counter,
    pub(crate) prefix_hits: Counter,
    pub(crate) sessions: Gauge,
    pub(crate) slots: Gauge,
    pub(crate) links: Gauge,
    pub(crate) targets_refused: Counter,
    pub(crate) drafted: Counter,
    pub(crate) windows: Counter,
    pub(crate) abandoned: Counter,
    pub(crate) refused: Counter,
    pub(crate) resyncs: Counter,
    pub(crate) expired: Counter,
    pub(crate) malformed: Counter,
    step_seconds: Histogram,
    step_rows: Histogram,
    step_time: LabelledSum,
    link_bytes: Labelled,
    pub(crate) build_outcomes: Histogram,
    builds: Counter,
    builds_ended: Labelled,
    branch_tokens: Counter,
    pub(crate) entry_tokens: EntryTokens,
    windows_prepared: Counter,
    judged: Counter,
    ranks: Histogram,
    build_limits: Labelled,
    refusal_limits: Labelled,
    unranked: Counter,
}

/// What `foretoken_draft_time_seconds` calls it.
fn name_of(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Follow => "pace",
        Purpose::Ahead => "ahead",
        Purpose::Window => "awaited",
    }
}

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To a target.
    Sent,
    /// From a target.
    Received,
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Received => "received",
        }
    }
}

impl Metrics {
    /// Creates all metrics and the registry that shows them.
    pub(crate) fn new(instance: &str, info: &RunnerInfo) -> (Self, Registry) {
        let mut to = Meters::new(instance, &info.path, &info.model_digest);
        let metrics = Self {
            kv_usage: to.fraction("vllm:kv_cache_usage_perc", "KV pages in use, 1 is all"),
            prefix_queries: to.counter("vllm:prefix_cache_queries", "Tokens of opened sessions"),
            prefix_hits: to.counter("vllm:prefix_cache_hits", "Of these, found in the cache"),
            sessions: to.gauge("foretoken_sessions", "Sessions that hold a slot"),
            slots: to.gauge("foretoken_slots", "Sessions that it serves at most"),
            links: to.gauge("foretoken_links", "Targets connected"),
            targets_refused: to.counter(
                "foretoken_targets_refused",
                "Attempts of targets that do not match this endpoint",
            ),
            drafted: to.counter("foretoken_drafted_tokens", "Tokens drawn for windows"),
            windows: to.counter("foretoken_windows", "Windows sent"),
            abandoned: to.counter(
                "foretoken_windows_abandoned",
                "Windows overtaken by an outcome",
            ),
            refused: to.counter("foretoken_sessions_refused", "Sessions turned away"),
            resyncs: to.counter(
                "foretoken_sessions_resynced",
                "Sessions that lost their thread",
            ),
            expired: to.counter("foretoken_leases_expired", "Sessions silent for too long"),
            malformed: to.counter(
                "foretoken_messages_malformed",
                "Messages that made no sense",
            ),
            step_seconds: to.short_times("foretoken_step_seconds", "Seconds of engine steps"),
            step_rows: to.rows("foretoken_step_rows", "Token rows of engine steps"),
            step_time: to.labelled_sum(
                "foretoken_draft_time_seconds",
                "Seconds of engine steps by what they were for",
            ),
            link_bytes: to.labelled(
                "foretoken_link_bytes",
                "Bytes of messages, sent and received",
            ),
            build_outcomes: to.ranks(
                "foretoken_build_outcomes",
                "Outcomes that a verification was drafted for",
            ),
            builds: to.counter("foretoken_builds", "Verifications drafted for while under way"),
            builds_ended: to.labelled(
                "foretoken_builds_incomplete",
                "Of these, ended early: cut by the verdict, or dropped here",
            ),
            branch_tokens: to.counter("foretoken_branch_tokens", "Tokens drafted for outcomes"),
            entry_tokens: EntryTokens::new(&mut to),
            windows_prepared: to.counter(
                "foretoken_windows_prepared",
                "Windows begun before they were asked for",
            ),
            judged: to.counter(
                "foretoken_verdicts_judged",
                "Verdicts held against the candidates of their row",
            ),
            ranks: to.ranks(
                "foretoken_verdict_rank",
                "Rank of the decided token among the candidates of its row, from 1; hits and misses",
            ),
            build_limits: to.labelled(
                "foretoken_build_limits",
                "What kept builds from drafting for more outcomes",
            ),
            refusal_limits: to.labelled(
                "foretoken_refusal_limits",
                "What sessions that were turned away found none of",
            ),
            unranked: to.counter(
                "foretoken_verdicts_unranked",
                "Of the verdicts judged, those whose token was not among the candidates",
            ),
        };
        (metrics, to.registry())
    }

    /// Counts a build for more of which this was in the way.
    pub(crate) fn build_bound_by(&self, limit: Limit) {
        let labels = [("limit", limit.name())];
        self.build_limits.get_or_create_owned(&labels).inc();
    }

    /// Counts a session that was turned away for want of this.
    pub(crate) fn refused_for(&self, limit: Limit) {
        let labels = [("limit", limit.name())];
        self.refusal_limits.get_or_create_owned(&labels).inc();
    }

    /// Counts a step by the most urgent of all that it was for.
    pub(crate) fn note_step(&self, was_for: Purpose, rows: usize, took: Duration) {
        let seconds = took.as_secs_f64();
        self.step_rows.observe(rows as f64);
        self.step_seconds.observe(seconds);
        self.step_time
            .get_or_create_owned(&[("purpose", name_of(was_for))])
            .inc_by(seconds);
    }

    /// Counts the bytes of a message.
    pub(crate) fn note_bytes(&self, direction: Direction, message: &impl WireSize) {
        self.link_bytes
            .get_or_create_owned(&[("direction", direction.name())])
            .inc_by(message.wire_size() as u64);
    }

    /// Counts what sessions did since the last time.
    pub(crate) fn note(&self, stats: &DraftStats) {
        self.builds.inc_by(stats.builds.into());
        let ended = [("cut", stats.cut), ("dropped", stats.dropped)];
        for (cause, count) in ended.into_iter().filter(|(_, count)| *count > 0) {
            let counter = self.builds_ended.get_or_create_owned(&[("cause", cause)]);
            counter.inc_by(count.into());
        }
        self.branch_tokens.inc_by(stats.built.into());
        self.entry_tokens.note(stats);
        self.windows_prepared.inc_by(stats.prepared.into());
        self.judged.inc_by(stats.judged.into());
        let ranked: u32 = stats.ranks.iter().sum();
        self.unranked
            .inc_by(stats.judged.saturating_sub(ranked).into());
        for (rank, &count) in stats.ranks.iter().enumerate() {
            for _ in 0..count {
                self.ranks.observe((rank + 1) as f64);
            }
        }
    }
}
