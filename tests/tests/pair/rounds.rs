//! Rounds as they happen, told to whoever listens.

use std::time::Duration;

use foretoken_engine::sim::Role;
use foretoken_protocol::generate::GenerationStats;
use foretoken_target::{FallbackName, SsdConfig, TargetConfig, VerificationConfig};
use reqwest::{Response, StatusCode};
use serde_json::Value;

use super::{
    rig::*,
    ssd::{ahead, quick, slow},
};

/// Lines of a feed, as they come.
struct Lines {
    answer: Response,
    rest: String,
}

async fn ask(port: u16, query: &str) -> Response {
    let answer = reqwest::get(format!("http://127.0.0.1:{port}/rounds{query}")).await;
    answer.expect("it answers")
}

impl Lines {
    /// Listens; the first line says who speaks.
    async fn of(port: u16, query: &str) -> (Self, Value) {
        let answer = ask(port, query).await;
        assert_eq!(answer.status(), StatusCode::OK);
        let mut lines = Self {
            answer,
            rest: String::new(),
        };
        let hello = lines.next().await["hello"].clone();
        (lines, hello)
    }

    async fn next(&mut self) -> Value {
        loop {
            if let Some(end) = self.rest.find('\n') {
                let line: String = self.rest.drain(..=end).collect();
                return serde_json::from_str(&line).expect("a line is JSON");
            }
            let chunk = tokio::time::timeout(PATIENT, self.answer.chunk()).await;
            let chunk = chunk.expect("a line comes").expect("it goes on");
            let chunk = chunk.expect("the feed lives");
            self.rest
                .push_str(std::str::from_utf8(&chunk).expect("text"));
        }
    }

    /// The next build for this session, but for those that a verdict ended before anything was drafted,
    /// as it may on a busy machine.
    async fn build_for(&mut self, session: &Value) -> Value {
        loop {
            let build = self.next().await["build"].clone();
            let is_empty = build["cut"] == true && build["drafted"] == 0;
            if build["session"] == *session && !is_empty {
                return build;
            }
        }
    }

    /// The rounds of the next request that ends.
    async fn request(&mut self) -> Vec<Value> {
        let mut rounds: Vec<Value> = Vec::new();
        loop {
            let round = self.next().await["round"].clone();
            assert!(round.is_object());
            let ended = !round["ended"].is_null();
            rounds.push(round);
            if ended {
                return rounds;
            }
        }
    }
}

fn sum(rounds: &[Value], field: &str) -> u64 {
    rounds
        .iter()
        .filter_map(|round| round[field].as_u64())
        .sum()
}

/// The rounds of a request for 60 tokens say what its answer says, and no tokens.
fn check_rounds(rounds: &[Value], stats: &GenerationStats) {
    assert_eq!(sum(rounds, "emitted"), 60);
    assert_eq!(sum(rounds, "accepted"), u64::from(stats.accepted));
    assert_eq!(sum(rounds, "window"), u64::from(stats.drafted));
    // The first is the verdict on the prompt.
    assert_eq!(rounds.len() as u64, 1 + u64::from(stats.rounds));
    let numbers: Vec<u64> = rounds
        .iter()
        .filter_map(|round| round["round"].as_u64())
        .collect();
    assert_eq!(numbers, (1..=rounds.len() as u64).collect::<Vec<_>>());
    let hits = rounds
        .iter()
        .filter(|round| round["source"] == "ahead")
        .count();
    assert_eq!(hits as u64, u64::from(stats.hits));
    for round in rounds {
        assert_eq!(round["policy"], "SSD");
        assert_eq!(round["session"], rounds[0]["session"]);
        assert!(round["tokens"].is_null(), "{round}");
        assert!(round["c"].is_null(), "nothing was drawn: {round}");
        let took = round["took_us"].as_u64().unwrap_or(u64::MAX);
        // The step is part of the round; both are rounded down.
        assert!(
            took >= round["verification_us"].as_u64().expect("a time"),
            "{round}"
        );
    }
    assert_eq!(rounds.last().expect("a round")["ended"], "length");
    let verdicts = |hit: bool, first: bool| -> u32 {
        let mut all = rounds.iter().filter(|round| round["hit"] == hit);
        all.by_ref()
            .filter(|round| !first || round["first"] == true)
            .count() as u32
    };
    assert_eq!(verdicts(true, false), stats.hits);
    assert_eq!(verdicts(false, false), stats.misses);
    assert_eq!(verdicts(true, true), stats.ahead.first_hits);
    assert_eq!(verdicts(false, true), stats.ahead.first_misses);
    assert_eq!(sum(rounds, "received"), stats.ahead.received);
    assert_eq!(sum(rounds, "used"), stats.ahead.used);
    assert_eq!(sum(rounds, "late_tokens"), stats.ahead.late);
    assert!(
        rounds.iter().all(|round| round["limit"].is_null()),
        "its lookahead is given"
    );
}

/// What a build says of itself can be.
fn check_build(build: &Value) {
    assert_eq!(
        build["target"], "target",
        "by the name that it gives itself"
    );
    assert!(
        ["budget", "time"].contains(&build["limit"].as_str().unwrap_or("none")),
        "{build}"
    );
    let spent = ["ahead_us", "awaited_us"].map(|which| build[which].as_u64());
    assert!(spent.iter().flatten().sum::<u64>() > 0, "{build}");
    assert!(build["outcomes"].as_u64() > Some(0), "{build}");
    assert!(
        build["drafted"].as_u64() >= build["pushed"].as_u64(),
        "{build}"
    );
}

#[tokio::test]
async fn a_listener_hears_every_round_and_every_build_and_no_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, draft_port) = observed(&address, runner(quick(0.8)));
    let (client, target, port) = observed_target(with_endpoint(&address), runner(slow()));
    warm(&client).await;
    let (mut of_target, hello) = Lines::of(port, "").await;
    assert_eq!(
        (&hello["service"], &hello["tokens"]),
        (&"target".into(), &false.into())
    );
    let (mut of_draft, hello) = Lines::of(draft_port, "").await;
    assert_eq!(hello["service"], "draft");
    let hits = async |seed| {
        let (_, stats) = output(&client, ahead(request(seed, 60))).await;
        let rounds = of_target.request().await;
        check_rounds(&rounds, &stats);
        let first = rounds.iter().any(|round| round["place"] == 1);
        first.then_some(rounds)
    };
    let rounds = eventually("a hit at the first place", hits).await;
    check_build(&of_draft.build_for(&rounds[0]["session"]).await);
    let refused = ask(port, "?tokens=true").await;
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
    // Both end although somebody listens.
    target.end().await;
    endpoint.end().await;
}

#[tokio::test]
async fn tokens_are_told_to_who_asks_for_them_where_that_is_allowed() {
    let config = TargetConfig {
        observe_tokens: true,
        ..TargetConfig::default()
    };
    let (client, target, port) = observed_target(config, runner(sim(Role::Target)));
    let (mut reader, hello) = Lines::of(port, "?tokens=true").await;
    assert_eq!(hello["tokens"], true);
    let (mut other, hello) = Lines::of(port, "").await;
    assert_eq!(hello["tokens"], false);
    let (tokens, _) = output(&client, request(3, 20)).await;
    let told: Vec<u64> = reader
        .request()
        .await
        .iter()
        .flat_map(|round| round["tokens"].as_array().cloned().unwrap_or_default())
        .filter_map(|token| token.as_u64())
        .collect();
    let expected: Vec<u64> = tokens.iter().map(|token| token.0.into()).collect();
    assert_eq!(told, expected);
    let rounds = other.request().await;
    assert!(rounds.iter().all(|round| round["tokens"].is_null()));
    // A listener that has gone is forgotten, and one that stays does not hold up the end.
    drop(reader);
    tokio::time::timeout(Duration::from_secs(20), target.end())
        .await
        .expect("it ends");
}

#[tokio::test]
async fn rounds_of_windows_that_were_drawn_tell_their_factor() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let endpoint = draft(&address, runner(quick(0.8)));
    let config = TargetConfig {
        verification: VerificationConfig::Rejection { support: 6 },
        ssd: SsdConfig {
            fallback: FallbackName::Remote,
            ..SsdConfig::default()
        },
        ..with_endpoint(&address)
    };
    let (client, target, port) = observed_target(config, runner(slow()));
    warm(&client).await;
    let (mut lines, _) = Lines::of(port, "").await;
    for (temperature, drawn) in [(1.0, true), (0.0, false)] {
        let has_windows = async |seed| {
            let mut request = ahead(request(seed, 40));
            request.sampling.temperature = temperature;
            let (_, stats) = output(&client, request).await;
            let rounds = lines.request().await;
            for round in &rounds {
                let told = round["c"].as_f64();
                let expected = (drawn && round["window"] != 0).then_some(1.0);
                assert_eq!(told, expected, "{round}");
            }
            if rounds.iter().all(|round| round["window"] == 0) {
                return None;
            }
            assert_eq!(stats.saguaro_c.is_some(), drawn);
            Some(())
        };
        eventually("a window", has_windows).await;
    }
    target.end().await;
    endpoint.end().await;
}
