//! What a target and its endpoint count moves when it should, and adds up.

use std::{collections::BTreeMap, time::Duration};

use foretoken_engine::sim::Role;
use foretoken_protocol::generate::GenerationStats;

use super::{
    rig::*,
    ssd::{ahead, quick, slow},
};

/// Everything a service counts: by name, with the labels of the metric itself.
pub(super) struct Scrape(BTreeMap<String, f64>);

impl Scrape {
    pub(super) async fn of(port: u16) -> Self {
        let text = reqwest::get(format!("http://127.0.0.1:{port}/metrics")).await;
        let text = text.expect("it answers").text().await.expect("text");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let read = |line: &str| -> (String, f64) {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').expect("labels");
            let labels = labels.trim_end_matches('}').split(',');
            let own = |label: &&str| {
                let of_service = ["instance=", "path=", "model="];
                !of_service.iter().any(|known| label.starts_with(known))
            };
            let labels: Vec<&str> = labels.filter(own).collect();
            let value = value.parse().expect("a number");
            (format!("{name}{{{}}}", labels.join(",")), value)
        };
        Self(lines.map(read).collect())
    }

    /// The value of `name`, or of `name{label="value"}`; 0 of what was never counted.
    pub(super) fn get(&self, name: &str) -> f64 {
        self.find(name).unwrap_or(0.0)
    }

    /// The same of what must be there.
    pub(super) fn shown(&self, name: &str) -> f64 {
        self.find(name)
            .unwrap_or_else(|| panic!("no {name} in {:?}", self.0))
    }

    fn find(&self, name: &str) -> Option<f64> {
        let name = if name.contains('{') {
            name.to_owned()
        } else {
            format!("{name}{{}}")
        };
        self.0.get(&name).copied()
    }

    /// The same of what is counted in whole numbers.
    pub(super) fn count(&self, name: &str) -> u64 {
        self.get(name) as u64
    }

    /// The same over all values of its label.
    fn counts(&self, name: &str) -> u64 {
        self.sum(name) as u64
    }

    /// Over all values of its label.
    fn sum(&self, name: &str) -> f64 {
        let series = self.0.iter().filter(|(series, _)| {
            let found = series.split_once('{').map(|(found, _)| found);
            found == Some(name)
        });
        series.map(|(_, value)| value).sum()
    }
}

#[tokio::test]
async fn what_drafting_ahead_comes_to_is_counted_on_both_sides() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, draft_port) = observed(&address, runner(quick(0.8)));
    let (client, target, port) = observed_target(with_endpoint(&address), runner(slow()));
    warm(&client).await;
    let mut stats = Vec::new();
    for seed in 0..4 {
        stats.push(output(&client, ahead(request(seed, 60))).await.1);
    }
    let total = |field: fn(&GenerationStats) -> u32| -> u64 {
        stats.iter().map(|stats| u64::from(field(stats))).sum()
    };
    let of_target = Scrape::of(port).await;

    // Hits and misses are those of the answers, and lookups know where windows came from.
    assert_eq!(of_target.counts("foretoken_hits_total"), total(|s| s.hits));
    assert_eq!(
        of_target.counts("foretoken_misses_total"),
        total(|s| s.misses)
    );
    let hits = of_target.count(r#"foretoken_lookups_total{source="ahead"}"#);
    assert_eq!(hits, total(|s| s.hits));
    assert!(of_target.get(r#"foretoken_hits_total{round="later"}"#) > 0.0);
    // A hit may be the rest of a window, which has no place.
    assert!(of_target.count("foretoken_hit_place_count") <= hits);
    let fate = |fate: &str| {
        let name = format!("foretoken_entry_tokens_total{{fate=\"{fate}\"}}");
        of_target.get(&name)
    };
    assert!(fate("received") >= fate("used") && fate("used") > 0.0);

    // Every round but an output's first is timed, and a step is part of its rounds.
    let rounds = of_target.get(r#"foretoken_round_seconds_count{source="ahead"}"#);
    assert!(rounds > 0.0);
    let time = |name: &str| {
        let name = format!("foretoken_round_{name}seconds_sum{{source=\"ahead\"}}");
        of_target.get(&name) / rounds
    };
    let verification = time("") - time("extra_");
    // The simulated step takes 3 ms; sleeping may only take longer.
    assert!(verification >= 0.003, "{verification} s");
    assert!(time("extra_") > 0.0);
    let bytes = of_target.get("foretoken_round_bytes_sum");
    let mean = bytes / of_target.get("foretoken_round_bytes_count");
    assert!((20.0..3000.0).contains(&mean), "{mean} bytes a round");
    // Answers tell the same; what comes before an output's first verdict is in no round.
    let told: u64 = stats.iter().map(|stats| stats.bytes).sum();
    assert!(
        told > 0
            && stats
                .iter()
                .all(|stats| stats.ahead.received >= stats.ahead.used)
    );
    let after_misses = |s: &GenerationStats| s.ahead.alone + s.ahead.local + s.ahead.remote;
    assert!(stats.iter().all(|s| after_misses(s) >= s.misses));

    // Acceptance by position adds up.
    let accepted = of_target.count("vllm:spec_decode_num_accepted_tokens_total");
    let by_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    assert_eq!(of_target.counts(by_position), accepted);
    let at = |position: u32| {
        let name = format!("{by_position}{{position=\"{position}\"}}");
        of_target.get(&name)
    };
    assert!(at(0) >= at(1) && at(1) > 0.0, "{} {}", at(0), at(1));

    let of_draft = Scrape::of(draft_port).await;
    let judged = of_draft.count("foretoken_verdicts_judged_total");
    let ranked = of_draft.count("foretoken_verdict_rank_count");
    let unranked = of_draft.count("foretoken_verdicts_unranked_total");
    assert!(ranked > 0);
    assert_eq!(judged, ranked + unranked);
    let builds = of_draft.get("foretoken_build_outcomes_count");
    assert!(builds > 0.0 && builds <= of_draft.get("foretoken_builds_total"));
    let spent = |purpose: &str| {
        let name = format!("foretoken_draft_time_seconds_total{{purpose=\"{purpose}\"}}");
        of_draft.get(&name)
    };
    assert!(spent("ahead") > 0.0);
    let steps = of_draft.get("foretoken_step_seconds_sum");
    let parts = of_draft.sum("foretoken_draft_time_seconds_total");
    assert!((steps - parts).abs() <= 1e-9 * steps, "{steps} {parts}");
    // What the target got and sent in rounds is part of what went over the link.
    assert!(of_draft.sum("foretoken_link_bytes_total") >= bytes);
    target.end().await;
    endpoint.end().await;
}

#[tokio::test]
async fn windows_that_are_waited_for_and_endpoints_that_fail_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (client, target, port) =
        observed_target(with_endpoint(&address), runner(sim(Role::Target)));
    output(&client, request(1, 20)).await;
    let failed = async |kind: &str| {
        let name = format!("foretoken_link_failures_total{{kind=\"{kind}\"}}");
        let waiting = async {
            while Scrape::of(port).await.get(&name) == 0.0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENT, waiting).await.expect(kind);
    };
    failed("unreachable").await;

    let (endpoint, draft_port) = observed(&address, runner(sim(Role::Draft { agreement: 0.9 })));
    warm(&client).await;
    let before = Scrape::of(port).await;
    let (_, stats) = output(&client, request(2, 60)).await;
    let after = Scrape::of(port).await;
    let rounds = r#"foretoken_round_seconds_count{source="remote"}"#;
    let counted = after.get(rounds) - before.get(rounds);
    // Not those that were asked for nothing near the end.
    assert!(counted > 0.0 && counted <= f64::from(stats.rounds));
    assert_eq!(after.counts("foretoken_hits_total"), 0);
    let of_draft = Scrape::of(draft_port).await;
    let awaited = r#"foretoken_draft_time_seconds_total{purpose="awaited"}"#;
    assert!(of_draft.get(awaited) > 0.0);
    endpoint.end().await;
    failed("lost").await;
    target.end().await;
}
