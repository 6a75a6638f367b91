//! What a target and its endpoint count moves when it should, and adds up.

use std::{collections::BTreeMap, time::Duration};

use foretoken_engine::sim::Role;
use foretoken_protocol::{
    Address,
    generate::GenerationStats,
    link::{Consumer, LinkEvent},
};
use foretoken_speculation::{
    Epoch, SessionId, TokenId,
    fanout::FanOut,
    message::{Branching, Delivery, Open, Outcome, ToDraft, ToTarget},
};

use super::{
    dialled::Dialled,
    rig::*,
    ssd::{ahead, idle, quick, slow},
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
    let before = Scrape::of(port).await;
    let mut stats = Vec::new();
    let hits_often = async |seed| {
        stats.push(output(&client, ahead(request(seed, 60))).await.1);
        let hits: u32 = stats.iter().map(|stats| stats.hits).sum();
        (seed >= 3 && hits > 20).then_some(())
    };
    eventually("20 hits", hits_often).await;
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
    let placed = of_target.count("foretoken_hit_place_count");
    assert!(placed > 0 && placed <= hits, "{placed} of {hits}");
    assert!(
        of_target.count("foretoken_hit_place_sum") >= placed,
        "the first is 1"
    );
    assert_told(&stats, |name| of_target.get(name) - before.get(name));
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

    assert_positions(&of_target);
    // Until then it may still count.
    idle(&client, draft_port).await;
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

/// Acceptance by position adds up.
fn assert_positions(of_target: &Scrape) {
    let accepted = of_target.count("vllm:spec_decode_num_accepted_tokens_total");
    let by_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total";
    assert_eq!(of_target.counts(by_position), accepted);
    let at = |position: u32| {
        let name = format!("{by_position}{{position=\"{position}\"}}");
        of_target.get(&name)
    };
    assert!(at(0) >= at(1) && at(1) > 0.0, "{} {}", at(0), at(1));
}

/// What answers tell of their rounds is what was counted of them.
fn assert_told(stats: &[GenerationStats], counted: impl Fn(&str) -> f64) {
    let all = |field: fn(&GenerationStats) -> f64| stats.iter().map(field).sum::<f64>();
    let ahead = |name: &str| {
        counted(&format!(
            "foretoken_round_{name}seconds_sum{{source=\"ahead\"}}"
        ))
    };
    for (name, told, counted) in [
        (
            "bytes",
            all(|s| s.measured.bytes as f64),
            counted("foretoken_round_bytes_sum"),
        ),
        (
            "rounds with bytes",
            all(|s| s.measured.weighed.into()),
            counted("foretoken_round_bytes_count"),
        ),
        (
            "hits among outcomes",
            all(|s| s.ahead.placed.into()),
            counted("foretoken_hit_place_count"),
        ),
        (
            "their places",
            all(|s| s.ahead.places as f64),
            counted("foretoken_hit_place_sum"),
        ),
        ("hits", all(|s| s.measured.hit.as_secs_f64()), ahead("")),
        (
            "verification of hits",
            all(|s| s.measured.hit_verification.as_secs_f64()),
            ahead("") - ahead("extra_"),
        ),
        (
            "awaited",
            all(|s| s.measured.awaited.as_secs_f64()),
            counted("foretoken_round_extra_seconds_sum{source=\"remote\"}"),
        ),
        (
            "late",
            all(|s| s.ahead.late as f64),
            counted("foretoken_entry_tokens_total{fate=\"late\"}"),
        ),
    ] {
        let near = (told - counted).abs() <= 1e-9 * counted.abs().max(1.0);
        assert!(near, "{name}: {told} told, {counted} counted");
    }
}

/// Rounds of a session on the endpoint at `address`, whose first verdict is what was drafted for; the
/// next window is what was drafted, or is empty because that came too late.
fn play(address: &Address, session: u64, in_time: bool) -> Dialled {
    let target = Dialled::new(address, Consumer::default());
    let (session, epoch) = (SessionId(session), Epoch(1));
    let open = Open {
        session,
        epoch,
        prompt_len: 20,
        tokens: (0..20).map(TokenId).collect(),
        branching: Some(Branching {
            lookahead: 2,
            branches: 2,
            fan_out: FanOut::Learned,
            delivery: Delivery::Push,
        }),
        ..Open::default()
    };
    let sent = target.link.send(vec![ToDraft::Open(open)]);
    sent.expect("it is up");
    let (decided, drafted) = target.wait("entries", |event| {
        let LinkEvent::Messages(messages) = event else {
            return None;
        };
        messages.into_iter().find_map(|message| match message {
            ToTarget::Entries(part) => Some((part.keys.first()?.token, *part.tokens.first()?)),
            _ => None,
        })
    });
    let window = if in_time { &[drafted][..] } else { &[] };
    let outcome = Outcome {
        session,
        epoch,
        base_len: 20,
        tokens: vec![decided],
        lookahead: 2,
        verifying: Some(window.into()),
        branches: 2,
        ..Outcome::default()
    };
    let last = vec![ToDraft::Outcome(outcome), ToDraft::Close { session, epoch }];
    target.link.send(last).expect("it is up");
    target
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_drafted_for_what_comes_about_are_timely_if_they_are_verified_and_late_if_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, port) = observed(&address, runner(quick(0.8)));
    let counts = async || {
        let scrape = Scrape::of(port).await;
        ["timely", "late"].map(|name| scrape.count(&format!("foretoken_entry_tokens_{name}_total")))
    };
    assert_eq!(counts().await, [0, 0]);
    for (session, in_time) in [(1, true), (2, false)] {
        let [timely, late] = counts().await;
        let address = address.clone();
        let played = tokio::task::spawn_blocking(move || play(&address, session, in_time));
        let target = played.await.expect("it drafts ahead");
        let counted = async |_| {
            tokio::time::sleep(Duration::from_millis(10)).await;
            (counts().await != [timely, late]).then_some(())
        };
        eventually("counted", counted).await;
        let [timely_now, late_now] = counts().await;
        let seen = format!("{timely} then {timely_now} timely, {late} then {late_now} late");
        if in_time {
            assert_eq!(timely_now, 1, "{seen}");
        } else {
            assert!(timely_now == timely && late_now > late, "{seen}");
        }
        drop(target);
    }
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
        let counted = async |_| {
            tokio::time::sleep(Duration::from_millis(10)).await;
            (Scrape::of(port).await.get(&name) > 0.0).then_some(())
        };
        eventually(kind, counted).await;
    };
    failed("unreachable").await;

    let (endpoint, draft_port) = observed(&address, runner(sim(Role::Draft { agreement: 0.9 })));
    warm(&client).await;
    let waited = async |seed| {
        let before = Scrape::of(port).await;
        let (_, stats) = output(&client, request(seed, 60)).await;
        let after = Scrape::of(port).await;
        let rounds = r#"foretoken_round_seconds_count{source="remote"}"#;
        let counted = after.get(rounds) - before.get(rounds);
        // Not those that were asked for nothing near the end.
        assert!(counted <= f64::from(stats.rounds));
        assert_eq!(after.counts("foretoken_hits_total"), 0);
        (counted > 0.0).then_some(())
    };
    eventually("a round that waits", waited).await;
    let of_draft = Scrape::of(draft_port).await;
    let awaited = r#"foretoken_draft_time_seconds_total{purpose="awaited"}"#;
    assert!(of_draft.get(awaited) > 0.0);
    endpoint.end().await;
    failed("lost").await;
    target.end().await;
}
