//! From counts to what they mean; `docs/metrics.md` has the same as expressions for Prometheus.

use std::collections::BTreeMap;

use serde::Serialize;

use super::scrape::Totals;

/// How speculation goes over some time. What cannot be told, since nothing of it happened, is
/// none.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Figures {
    /// Tokens emitted a second.
    pub(super) tokens_per_second: f64,
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
    /// Share of draft time that no target waited for.
    pub(super) hidden_share: Option<f64>,
    /// Time of a hit round over that of its verification, less 1.
    pub(super) hit_round_extra: Option<f64>,
    /// Bytes a round, both ways.
    pub(super) bytes_per_round: Option<f64>,
    /// Outcomes that a verification was drafted for.
    pub(super) outcomes_per_build: Option<f64>,
    /// Rounds that went on without their window.
    pub(super) late: f64,
    /// Tokens drafted ahead that were used, of those received.
    pub(super) used_share: Option<f64>,
    /// Shares of where windows came from after verdicts of SSD.
    pub(super) sources: BTreeMap<String, f64>,
    /// Shares of what bound the lookahead.
    pub(super) lookahead_limits: BTreeMap<String, f64>,
    /// Shares of what bound the outcomes drafted for.
    pub(super) build_limits: BTreeMap<String, f64>,
}

impl Figures {
    /// Of what targets and drafts counted in so many seconds.
    pub(super) fn of(targets: &Totals, drafts: &Totals, seconds: f64) -> Self {
        let tokens = targets.sum("vllm:generation_tokens_total");
        let windows = targets.sum("vllm:spec_decode_num_drafts_total");
        let accepted = targets.sum("vllm:spec_decode_num_accepted_tokens_total");
        let (hits, misses) = ("foretoken_hits_total", "foretoken_misses_total");
        let later = |name| targets.of(name, "round=later");
        let spent = |purpose| drafts.of("foretoken_draft_time_seconds_total", purpose);
        let hit_rounds = targets.of("foretoken_round_seconds_sum", "source=ahead");
        let extra = targets.of("foretoken_round_extra_seconds_sum", "source=ahead");
        let fate = |fate| targets.of("foretoken_entry_tokens_total", fate);
        Self {
            tokens_per_second: if seconds > 0.0 { tokens / seconds } else { 0.0 },
            acceptance_length: part(accepted, windows).map(|mean| mean + 1.0),
            hit_rate: share(targets.sum(hits), targets.sum(misses)),
            later_hit_rate: share(later(hits), later(misses)),
            hit_place: mean(targets, "foretoken_hit_place"),
            decided_rank: mean(drafts, "foretoken_verdict_rank"),
            hidden_share: share(spent("purpose=ahead"), spent("purpose=awaited")),
            hit_round_extra: part(extra, hit_rounds - extra),
            bytes_per_round: mean(targets, "foretoken_round_bytes"),
            outcomes_per_build: mean(drafts, "foretoken_build_outcomes"),
            late: targets.sum("foretoken_windows_late_total"),
            used_share: part(fate("fate=used"), fate("fate=received")),
            sources: shares(targets, "foretoken_lookups_total"),
            lookahead_limits: shares(targets, "foretoken_lookahead_limits_total"),
            build_limits: shares(drafts, "foretoken_build_limits_total"),
        }
    }
}

fn part(part: f64, of: f64) -> Option<f64> {
    (of > 0.0).then(|| part / of)
}

fn share(of: f64, rest: f64) -> Option<f64> {
    part(of, of + rest)
}

/// Mean of a histogram.
fn mean(totals: &Totals, name: &str) -> Option<f64> {
    part(
        totals.sum(&format!("{name}_sum")),
        totals.sum(&format!("{name}_count")),
    )
}

fn shares(totals: &Totals, name: &str) -> BTreeMap<String, f64> {
    let all = totals.sum(name);
    let counted = totals.by(name).filter(|(_, value)| *value > 0.0);
    counted
        .map(|(label, value)| (label.to_owned(), value / all))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_what_their_names_say() {
        let targets = Totals::parse(
            "vllm:generation_tokens_total 100
vllm:spec_decode_num_drafts_total 20
vllm:spec_decode_num_accepted_tokens_total 60
foretoken_hits_total{round=\"first\"} 1
foretoken_hits_total{round=\"later\"} 8
foretoken_misses_total{round=\"first\"} 1
foretoken_round_seconds_sum{source=\"ahead\"} 1.05
foretoken_round_extra_seconds_sum{source=\"ahead\"} 0.05
foretoken_lookups_total{source=\"ahead\"} 9
foretoken_lookups_total{source=\"remote\"} 1
foretoken_round_bytes_sum 6300
foretoken_round_bytes_count 10",
        );
        let drafts = Totals::parse(
            "foretoken_draft_time_seconds_total{purpose=\"ahead\"} 9
foretoken_draft_time_seconds_total{purpose=\"awaited\"} 1
foretoken_draft_time_seconds_total{purpose=\"pace\"} 5",
        );
        let figures = Figures::of(&targets, &drafts, 2.0);
        let told = [
            (Some(figures.tokens_per_second), 50.0),
            (figures.acceptance_length, 4.0),
            (figures.hit_rate, 0.9),
            (figures.later_hit_rate, 1.0),
            (figures.hidden_share, 0.9),
            (figures.hit_round_extra, 0.05),
            (figures.bytes_per_round, 630.0),
            (figures.sources.get("remote").copied(), 0.1),
        ];
        for (index, (found, expected)) in told.into_iter().enumerate() {
            let found = found.unwrap();
            assert!(
                (found - expected).abs() < 1e-9,
                "{index}: {found} {expected}"
            );
        }
        assert_eq!(figures.hit_place, None);
        let nothing = Figures::of(&Totals::default(), &Totals::default(), 0.0);
        assert_eq!(nothing, Figures::default());
    }
}
