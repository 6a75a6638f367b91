//! From counts to what they mean; `docs/metrics.md` has the same as expressions for Prometheus.

use std::collections::BTreeMap;

use serde::Serialize;

use super::counts::Counts;

/// How speculation goes over some time. What cannot be told, since nothing of it happened, is
/// none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    /// Tokens emitted a second.
    pub(super) tokens_per_second: Option<f64>,
    /// Tokens that the verification of a window emits.
    pub(super) acceptance_length: Option<f64>,
    /// Hits over hits and misses.
    pub(super) hit_rate: Option<f64>,
    /// The same without first verdicts.
    pub(super) later_hit_rate: Option<f64>,
    /// Mean place of hits among the outcomes drafted for, from 1.
    pub(super) hit_place: Option<f64>,
    /// Mean rank of decided tokens among the candidates of their rows, from 1; of those that were.
    pub(super) decided_rank: Option<f64>,
    /// Share of decided tokens that were held against candidates and not among them.
    pub(super) unranked_share: Option<f64>,
    /// Share of draft time that no target waited for.
    pub(super) hidden_share: Option<f64>,
    /// Time of a hit round over that of its verification, less 1.
    pub(super) hit_round_extra: Option<f64>,
    /// Bytes a round, both ways.
    pub(super) bytes_per_round: Option<f64>,
    /// Outcomes that a verification was drafted for.
    pub(super) outcomes_per_build: Option<f64>,
    /// Rounds that went on without their window.
    pub(super) late: Option<f64>,
    /// Tokens drafted ahead, by what became of them.
    pub(super) entry_tokens: EntryTokens,
    /// Tokens drafted ahead that were used, of those received.
    pub(super) used_share: Option<f64>,
    /// Shares of where windows came from after verdicts of SSD.
    pub(super) sources: BTreeMap<String, f64>,
    /// Shares of what bound the lookahead.
    pub(super) lookahead_limits: BTreeMap<String, f64>,
    /// Shares of what bound the outcomes drafted for.
    pub(super) build_limits: BTreeMap<String, f64>,
}

/// Tokens drafted ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct EntryTokens {
    /// Sent by endpoints.
    pub(super) pushed: Option<f64>,
    /// Come to targets in time.
    pub(super) received: Option<f64>,
    /// Of these, in windows.
    pub(super) used: Option<f64>,
    /// Come too late.
    pub(super) late: Option<f64>,
}

impl Figures {
    /// Of what was counted in so many seconds.
    pub(super) fn of(counts: &Counts, seconds: f64) -> Self {
        let Counts { hits, misses, .. } = *counts;
        let judged = counts.ranks.count() + counts.unranked;
        let entries = counts.entries;
        Self {
            tokens_per_second: part(counts.tokens, seconds),
            acceptance_length: part(counts.accepted, counts.windows).map(|mean| mean + 1.0),
            hit_rate: share(hits, misses),
            later_hit_rate: share(hits - counts.first_hits, misses - counts.first_misses),
            hit_place: counts.places.get(),
            decided_rank: counts.ranks.get(),
            unranked_share: part(counts.unranked, judged),
            hidden_share: share(counts.ahead, counts.awaited),
            hit_round_extra: part(counts.hit_extra, counts.hit - counts.hit_extra),
            bytes_per_round: counts.bytes.get(),
            outcomes_per_build: counts.outcomes.get(),
            late: Some(counts.late),
            entry_tokens: EntryTokens {
                pushed: Some(entries.pushed),
                received: Some(entries.received),
                used: Some(entries.used),
                late: Some(entries.late),
            },
            used_share: part(entries.used, entries.received),
            sources: shares(&counts.sources),
            lookahead_limits: shares(&counts.lookahead_limits),
            build_limits: shares(&counts.build_limits),
        }
    }

    /// The same if no target was asked: what only targets count is then not 0, but unknown.
    pub(super) fn without_targets(mut self) -> Self {
        self.late = None;
        self.entry_tokens = EntryTokens {
            pushed: self.entry_tokens.pushed,
            ..EntryTokens::default()
        };
        self
    }

    /// The same if no draft was asked.
    pub(super) fn without_drafts(mut self) -> Self {
        self.entry_tokens.pushed = None;
        self
    }
}

fn part(part: f64, of: f64) -> Option<f64> {
    (of > 0.0).then(|| part / of)
}

fn share(of: f64, rest: f64) -> Option<f64> {
    part(of, of + rest)
}

fn shares(counts: &BTreeMap<String, f64>) -> BTreeMap<String, f64> {
    let all: f64 = counts.values().sum();
    let shares = counts
        .iter()
        .map(|(name, count)| (name.clone(), count / all));
    shares.collect()
}

#[cfg(test)]
mod tests {
    use foretoken_service::rounds::{Build, Round};

    use super::{super::scrape::Totals, *};

    fn targets() -> Totals {
        Totals::parse(
            "vllm:generation_tokens_total 100
vllm:spec_decode_num_drafts_total 20
vllm:spec_decode_num_accepted_tokens_total 60
foretoken_hits_total{round=\"first\"} 1
foretoken_hits_total{round=\"later\"} 8
foretoken_misses_total{round=\"first\"} 1
foretoken_hit_place_sum 18
foretoken_hit_place_count 8
foretoken_round_seconds_sum{source=\"ahead\"} 1.05
foretoken_round_extra_seconds_sum{source=\"ahead\"} 0.05
foretoken_lookups_total{source=\"ahead\"} 9
foretoken_lookups_total{source=\"remote\"} 1
foretoken_lookahead_limits_total{limit=\"margin\"} 3
foretoken_lookahead_limits_total{limit=\"maximum\"} 1
foretoken_entry_tokens_total{fate=\"received\"} 400
foretoken_entry_tokens_total{fate=\"used\"} 40
foretoken_entry_tokens_total{fate=\"late\"} 25
foretoken_windows_late_total 3
foretoken_round_lingered_seconds_sum 8
foretoken_step_lingered_seconds_sum 0.5
foretoken_round_bytes_sum 6300
foretoken_round_bytes_count 10",
        )
    }

    fn drafts() -> Totals {
        Totals::parse(
            "foretoken_draft_time_seconds_total{purpose=\"ahead\"} 9
foretoken_draft_time_seconds_total{purpose=\"awaited\"} 1
foretoken_draft_time_seconds_total{purpose=\"pace\"} 5
foretoken_verdict_rank_sum 12
foretoken_verdict_rank_count 8
foretoken_verdicts_unranked_total 2
foretoken_build_outcomes_sum 96
foretoken_build_outcomes_count 8
foretoken_build_limits_total{limit=\"time\"} 6
foretoken_build_limits_total{limit=\"worth\"} 2
foretoken_entry_tokens_total 430",
        )
    }

    /// Each figure that must be there, with what it must be.
    fn assert_all(told: &[(&str, Option<f64>, f64)]) {
        for (name, found, expected) in told {
            let found = found.unwrap_or(f64::NAN);
            assert!(
                (found - expected).abs() < 1e-9,
                "{name}: {found} {expected}"
            );
        }
    }

    #[test]
    fn figures_are_what_their_names_say() {
        let figures = Figures::of(&Counts::of(&targets(), &drafts()), 2.0);
        let entries = figures.entry_tokens;
        let of = |shares: &BTreeMap<String, f64>, name: &str| shares.get(name).copied();
        assert_all(&[
            ("tokens", figures.tokens_per_second, 50.0),
            ("length", figures.acceptance_length, 4.0),
            ("hit rate", figures.hit_rate, 0.9),
            ("later", figures.later_hit_rate, 1.0),
            ("place", figures.hit_place, 2.25),
            ("rank", figures.decided_rank, 1.5),
            ("unranked", figures.unranked_share, 0.2),
            ("hidden", figures.hidden_share, 0.85),
            ("extra", figures.hit_round_extra, 0.05),
            ("bytes", figures.bytes_per_round, 630.0),
            ("outcomes", figures.outcomes_per_build, 12.0),
            ("late", figures.late, 3.0),
            ("pushed", entries.pushed, 430.0),
            ("received", entries.received, 400.0),
            ("used", entries.used, 40.0),
            ("late tokens", entries.late, 25.0),
            ("used share", figures.used_share, 0.1),
            ("source", of(&figures.sources, "remote"), 0.1),
            ("lookahead", of(&figures.lookahead_limits, "margin"), 0.75),
            ("outcomes bound", of(&figures.build_limits, "time"), 0.75),
        ]);
        let nothing = Figures::of(&Counts::default(), 0.0);
        assert_eq!(
            (nothing.late, nothing.entry_tokens.used),
            (Some(0.0), Some(0.0))
        );
        let nobody = nothing.without_targets().without_drafts();
        assert_eq!(nobody, Figures::default());
    }

    /// A round of 105 us, 100 us of which are its verification.
    fn round(source: &'static str) -> Round {
        Round {
            source: source.into(),
            window: 4,
            accepted: 3,
            emitted: 4,
            took_us: Some(105),
            verification_us: 100,
            bytes: 600,
            received: 50,
            used: 4,
            limit: Some("margin".into()),
            ..Round::default()
        }
    }

    #[test]
    fn figures_of_a_session_are_those_of_its_rounds_and_builds() {
        let mut counts = Counts::default();
        let prompt = Round {
            emitted: 1,
            bytes: 4000,
            hit: Some(false),
            first: true,
            ..Round::default()
        };
        counts.add_round(&prompt, None);
        let found = Round {
            place: Some(3),
            hit: Some(true),
            ..round("ahead")
        };
        counts.add_round(&found, Some(&prompt));
        let asked = Round {
            took_us: Some(300),
            late: true,
            late_tokens: 5,
            hit: Some(true),
            limit: Some("answer".into()),
            ..round("remote")
        };
        counts.add_round(&asked, Some(&found));
        let build = Build {
            outcomes: 10,
            pushed: 52,
            limit: Some("time".into()),
            ahead_us: 80,
            awaited_us: 20,
            judged: 1,
            rank: Some(7),
            ..Build::default()
        };
        counts.add_build(&build);
        let missed = Build {
            rank: None,
            limit: None,
            outcomes: 0,
            ..build
        };
        counts.add_build(&missed);
        let figures = Figures::of(&counts, 1.0);
        let of = |shares: &BTreeMap<String, f64>, name: &str| shares.get(name).copied();
        assert_all(&[
            ("tokens", figures.tokens_per_second, 9.0),
            ("length", figures.acceptance_length, 4.0),
            ("hit rate", figures.hit_rate, 2.0 / 3.0),
            ("later", figures.later_hit_rate, 1.0),
            ("place", figures.hit_place, 3.0),
            ("rank", figures.decided_rank, 7.0),
            ("unranked", figures.unranked_share, 0.5),
            ("hidden", figures.hidden_share, 0.8),
            ("extra", figures.hit_round_extra, 0.05),
            (
                "bytes, not those of the prompt",
                figures.bytes_per_round,
                600.0,
            ),
            ("outcomes", figures.outcomes_per_build, 10.0),
            ("late", figures.late, 1.0),
            ("pushed", figures.entry_tokens.pushed, 104.0),
            ("late tokens", figures.entry_tokens.late, 5.0),
            ("used share", figures.used_share, 0.08),
            ("source", of(&figures.sources, "remote"), 0.5),
            ("lookahead", of(&figures.lookahead_limits, "answer"), 0.5),
            ("outcomes bound", of(&figures.build_limits, "time"), 1.0),
        ]);
    }
}
