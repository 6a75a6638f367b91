//! A target and its endpoints, as services over real sockets.
#![expect(clippy::panic, reason = "helpers of tests may fail them")]

mod refusal;
mod ssd;
mod stopping;

use std::{path::Path, time::Duration};

use foretoken_draft::{DraftConfig, DraftService};
use foretoken_engine::{
    model::{CpuOptions, CpuRunner},
    runner::ModelRunner,
    sim::{Latency, Role, SimOptions, SimRunner},
};
use foretoken_protocol::{
    Address,
    generate::{
        GenerateClient, GenerateError, GenerateEvent, GenerateRequest, GenerateStream,
        GenerationStats,
    },
};
use foretoken_speculation::{Seed, TokenId, sampling::SamplingParams};
use foretoken_target::{EndpointConfig, LookaheadConfig, TargetConfig, TargetService};
use futures::StreamExt;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const PATIENT: Duration = Duration::from_secs(60);

struct Running<E> {
    stop: CancellationToken,
    task: JoinHandle<Result<(), E>>,
}

impl<E: std::fmt::Debug> Running<E> {
    async fn end(self) {
        self.stop.cancel();
        self.task
            .await
            .expect("it does not panic")
            .expect("it ends well");
    }
}

fn sim(role: Role) -> SimOptions {
    // Slow enough that whatever a test does happens in the middle of an output.
    let latency = Latency {
        base: Duration::from_micros(300),
        ..Latency::default()
    };
    SimOptions {
        language: 3,
        vocab_size: 128,
        role,
        latency,
        ..SimOptions::default()
    }
}

fn runner(options: SimOptions) -> Box<dyn ModelRunner> {
    Box::new(SimRunner::new(options))
}

fn draft(address: &Address, runner: Box<dyn ModelRunner>) -> Running<foretoken_draft::RunError> {
    let config = DraftConfig {
        listen: vec![address.clone()],
        ..DraftConfig::default()
    };
    draft_of(config, runner)
}

fn draft_of(
    config: DraftConfig,
    runner: Box<dyn ModelRunner>,
) -> Running<foretoken_draft::RunError> {
    let service = DraftService::bind(config, runner).expect("the socket is free");
    let stop = CancellationToken::new();
    Running {
        task: tokio::spawn(service.run(stop.clone())),
        stop,
    }
}

fn target(
    config: TargetConfig,
    runner: Box<dyn ModelRunner>,
) -> (GenerateClient, Running<foretoken_target::RunError>) {
    let service = TargetService::bind(config, runner).expect("the socket is free");
    let address = service
        .addresses()
        .next()
        .expect("it listens somewhere")
        .clone();
    let stop = CancellationToken::new();
    let running = Running {
        task: tokio::spawn(service.run(stop.clone())),
        stop,
    };
    (GenerateClient::new("target", address), running)
}

fn with_endpoint(address: &Address) -> TargetConfig {
    TargetConfig {
        listen: vec![Address::loopback(0)],
        lookahead: LookaheadConfig::Fixed(4),
        patience: Duration::from_millis(50),
        endpoints: vec![EndpointConfig {
            name: "draft".into(),
            address: address.clone(),
        }],
        ..TargetConfig::default()
    }
}

fn socket(folder: &tempfile::TempDir, name: &str) -> Address {
    Address::Unix(folder.path().join(name))
}

fn request(seed: u64, max_tokens: u32) -> GenerateRequest {
    let tokens: Vec<TokenId> = (0..24)
        .map(|i| TokenId((seed as u32 + 3 * i) % 128))
        .collect();
    GenerateRequest {
        request_id: format!("request {seed}"),
        prompt_len: tokens.len(),
        tokens,
        sampling: SamplingParams {
            temperature: 0.4 * (seed % 4) as f32,
            ..Default::default()
        },
        seed: Seed(seed),
        max_tokens,
        ignore_eos: true,
        stop_token_ids: Vec::new(),
        logprobs: None,
        prompt_logprobs: false,
        policy: None,
        lookahead: None,
        cache_prompt: true,
        cache_salt: None,
        endpoints: Vec::new(),
    }
}

async fn collect(mut stream: GenerateStream, tokens: &mut Vec<TokenId>) -> GenerationStats {
    while let Some(event) = stream.next().await {
        match event.expect("the target lives") {
            GenerateEvent::Started { .. } => {}
            GenerateEvent::Tokens(round) => {
                tokens.extend(round.tokens.iter().map(|piece| piece.token));
            }
            GenerateEvent::Finished { stats, .. } => return stats,
        }
    }
    panic!("the stream ended without its last event");
}

async fn output(
    client: &GenerateClient,
    request: GenerateRequest,
) -> (Vec<TokenId>, GenerationStats) {
    let mut tokens = Vec::new();
    let stream = client.generate(request).await.expect("it is accepted");
    let stats = tokio::time::timeout(PATIENT, collect(stream, &mut tokens)).await;
    (tokens, stats.expect("it does not hang"))
}

async fn plain(client: &GenerateClient, mut request: GenerateRequest) -> Vec<TokenId> {
    request.policy = Some("Autoregressive".into());
    let (tokens, stats) = output(client, request).await;
    assert_eq!(stats.drafted, 0);
    tokens
}

async fn reads_ten(stream: &mut GenerateStream, tokens: &mut Vec<TokenId>) {
    let enough = tokens.len() + 10;
    while tokens.len() < enough {
        match stream
            .next()
            .await
            .expect("it goes on")
            .expect("the target lives")
        {
            GenerateEvent::Tokens(round) => {
                tokens.extend(round.tokens.iter().map(|piece| piece.token));
            }
            GenerateEvent::Started { .. } => {}
            GenerateEvent::Finished { .. } => panic!("too early"),
        }
    }
}

/// Waits until an endpoint is used, by asking for short outputs.
async fn warm(client: &GenerateClient) {
    for seed in 0..1000 {
        if output(client, request(seed, 8)).await.1.accepted > 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the endpoint is never used");
}

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
        let stop = CancellationToken::new();
        let endpoint = Running {
            task: tokio::spawn(service.run(stop.clone())),
            stop,
        };
        let (client, target) = target(with_endpoint(&address), runner(sim(Role::Target)));
        warm(&client).await;
        let requests: Vec<_> = (0..8).map(|seed| request(seed, 60)).collect();
        let outputs = requests
            .iter()
            .map(|request| output(&client, request.clone()));
        let outputs = futures::future::join_all(outputs).await;
        for (request, (tokens, stats)) in requests.iter().zip(outputs) {
            assert_eq!(tokens, plain(&client, request.clone()).await);
            assert!(stats.accepted > 0, "{stats:?}");
        }
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
    endpoint.task.abort();
    // Its socket is free once the aborted task has been dropped.
    assert!(
        endpoint
            .task
            .await
            .expect_err("it was aborted")
            .is_cancelled()
    );
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
        loop {
            let load = client.info().await.expect("it lives").load;
            if (load.running, load.kv_used_permille) == (0, 0) {
                return;
            }
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
    let config = TargetConfig {
        metrics_listen: Some("127.0.0.1:0".into()),
        ..TargetConfig::default()
    };
    let service = TargetService::bind(config, runner(sim(Role::Target))).expect("free ports");
    let port = service.metrics_address().expect("asked for").port();
    let address = service.addresses().next().expect("it listens").clone();
    let stop = CancellationToken::new();
    let target = Running {
        task: tokio::spawn(service.run(stop.clone())),
        stop,
    };
    let client = GenerateClient::new("target", address);
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
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models");
    let load = |name: &str| -> Box<dyn ModelRunner> {
        let options = CpuOptions {
            threads: Some(1),
            ..CpuOptions::default()
        };
        Box::new(CpuRunner::load(&models.join(name), &options).expect("the model is shipped"))
    };
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let endpoint = draft(&address, load("draft"));
    let config = TargetConfig {
        lookahead: LookaheadConfig::Adaptive { max: 8 },
        ..with_endpoint(&address)
    };
    let (client, target) = target(config, load("target"));
    warm(&client).await;
    let mut accepted = 0;
    for seed in 0..4 {
        let mut asked = request(seed, 40);
        // On a busy machine the controller may find that nothing pays; it is not asked every time.
        asked.lookahead = (seed % 2 == 0).then_some(4);
        let (tokens, stats) = output(&client, asked).await;
        assert_eq!(tokens, plain(&client, request(seed, 40)).await);
        accepted += stats.accepted;
    }
    assert!(accepted > 0);
    target.end().await;
    endpoint.end().await;
}
