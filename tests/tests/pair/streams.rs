//! One policy after the other, many streams, clients that go away, services that end.

use std::time::Duration;

use foretoken_draft::{DraftConfig, DraftService};
use foretoken_engine::sim::Role;
use foretoken_protocol::{Address, generate::GenerateError};
use foretoken_speculation::TokenId;
use foretoken_target::{LookaheadConfig, TargetConfig};
use futures::StreamExt;

use super::rig::*;

#[tokio::test]
async fn many_streams_over_one_link_get_the_tokens_of_plain_decoding() {
    let folder = tempfile::tempdir().expect("a folder");
    for address in [socket(&folder, "draft"), Address::loopback(0)] {
        let config = DraftConfig {
            listen: vec![address],
            ..DraftConfig::default()
        };
        let service = DraftService::bind(config, runner(sim(Role::Draft { agreement: 0.8 })));
        let service = service.expect("the socket is free");
        let address = service.addresses().next().expect("it listens").clone();
        let endpoint = Running::start(|stop| service.run(stop));
        let (client, target) = target(with_endpoint(&address), runner(sim(Role::Target)));
        warm(&client).await;
        let all_speculate = async |number| {
            let seeds = 8 * number..8 * number + 8;
            let requests: Vec<_> = seeds.map(|seed| request(seed, 60)).collect();
            let outputs = requests
                .iter()
                .map(|request| output(&client, request.clone()));
            let outputs = futures::future::join_all(outputs).await;
            let mut idle = 0;
            for (request, (tokens, stats)) in requests.iter().zip(outputs) {
                assert_eq!(tokens, plain(&client, request.clone()).await);
                idle += u32::from(stats.accepted == 0);
            }
            (idle == 0).then_some(())
        };
        eventually("do all of them speculate", all_speculate).await;
        target.end().await;
        endpoint.end().await;
    }
}

#[tokio::test]
async fn an_endpoint_killed_and_started_again_changes_nothing_but_the_pace() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let endpoint = draft(&address, runner(sim(Role::Draft { agreement: 0.9 })));
    let (client, target) = target(with_endpoint(&address), runner(sim(Role::Target)));
    warm(&client).await;
    let asked = request(11, 1200);
    let mut stream = client
        .generate(asked.clone())
        .await
        .expect("it is accepted");
    let mut tokens = Vec::new();
    reads_ten(&mut stream, &mut tokens).await;
    endpoint.kill().await;
    reads_ten(&mut stream, &mut tokens).await;
    let endpoint = draft(&address, runner(sim(Role::Draft { agreement: 0.9 })));
    collect(stream, &mut tokens).await;
    assert_eq!(tokens, plain(&client, asked).await);
    warm(&client).await;
    target.end().await;
    endpoint.end().await;
}

#[tokio::test]
async fn a_client_that_never_reads_or_goes_away_holds_nobody_up() {
    let (client, target) = target(TargetConfig::default(), runner(sim(Role::Target)));
    let silent = client
        .generate(request(1, 2000))
        .await
        .expect("it is accepted");
    let (tokens, _) = output(&client, request(2, 50)).await;
    assert_eq!(tokens.len(), 50);
    drop(silent);
    let idle = async {
        while !is_idle(&client).await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENT, idle)
        .await
        .expect("pages and place are given back");
    target.end().await;
}

#[tokio::test]
async fn a_draining_target_finishes_what_runs_and_takes_nothing_new() {
    let (client, target) = target(TargetConfig::default(), runner(sim(Role::Target)));
    let mut stream = client
        .generate(request(1, 300))
        .await
        .expect("it is accepted");
    let mut tokens = Vec::new();
    reads_ten(&mut stream, &mut tokens).await;
    target.stop.cancel();
    collect(stream, &mut tokens).await;
    assert_eq!(tokens.len(), 300);
    target.end().await;
    let refused = match client.generate(request(2, 5)).await {
        Err(error) => error,
        Ok(mut stream) => stream
            .next()
            .await
            .expect("an answer")
            .expect_err("nobody is there to serve it"),
    };
    assert!(refused.replayable(), "{refused:?}");
}

#[tokio::test]
async fn what_a_target_does_can_be_observed() {
    let (client, target, port) =
        observed_target(TargetConfig::default(), runner(sim(Role::Target)));
    output(&client, request(1, 30)).await;
    let get = async |path: &str| {
        let answer = reqwest::get(format!("http://127.0.0.1:{port}{path}")).await;
        answer.expect("it answers").text().await.expect("text")
    };
    assert_eq!(
        (get("/health").await, get("/ready").await),
        ("ok".into(), "ready".into())
    );
    let metrics = get("/metrics").await;
    let line = metrics
        .lines()
        .find(|line| line.starts_with("vllm:generation_tokens_total"));
    let line = line.expect("tokens are counted");
    assert!(
        line.ends_with(" 30") && line.contains("path=\"sim\""),
        "{line}"
    );
    target.end().await;
}

#[tokio::test]
async fn a_request_nobody_can_serve_is_refused_with_its_reason() {
    let (client, target) = target(TargetConfig::default(), runner(sim(Role::Target)));
    let mut asked = request(1, 5);
    asked.tokens[2] = TokenId(128);
    let refused = match client.generate(asked).await {
        Err(error) => error,
        Ok(mut stream) => stream
            .next()
            .await
            .expect("an answer")
            .expect_err("it is invalid"),
    };
    let expected = "token 128 is outside the vocabulary of 128";
    assert_eq!(refused, GenerateError::Invalid(expected.into()));
    target.end().await;
}

#[tokio::test]
async fn the_shipped_pair_speculates_without_changing_a_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let endpoint = draft(&address, shipped("draft"));
    let config = TargetConfig {
        lookahead: LookaheadConfig::Adaptive { max: 8 },
        ..with_endpoint(&address)
    };
    let (client, target) = target(config, shipped("target"));
    warm(&client).await;
    let mut accepted = 0;
    let speculates = async |seed| {
        let mut asked = request(seed, 40);
        // On a busy machine the controller may find that nothing pays; it is not asked every time.
        asked.lookahead = (seed % 2 == 0).then_some(4);
        let (tokens, stats) = output(&client, asked).await;
        assert_eq!(tokens, plain(&client, request(seed, 40)).await);
        accepted += stats.accepted;
        (seed >= 3 && accepted > 0).then_some(())
    };
    eventually("accepted", speculates).await;
    target.end().await;
    endpoint.end().await;
}
