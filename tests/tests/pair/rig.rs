//! Targets and endpoints in this process, over real sockets, and what is asked of them.

use std::{future::Future, time::Duration};

use foretoken_draft::{DraftConfig, DraftService};
use foretoken_engine::{
    model::{CpuOptions, CpuRunner},
    runner::{Logits, ModelRunner, PageCopy, RunnerError, RunnerInfo, SlotMove, StepPlan},
    sim::{Latency, Role, SimOptions, SimRunner},
};
use foretoken_protocol::{
    Address,
    generate::{GenerateClient, GenerateEvent, GenerateRequest, GenerateStream, GenerationStats},
};
use foretoken_speculation::{Seed, TokenId, sampling::SamplingParams};
use foretoken_target::{EndpointConfig, LookaheadConfig, TargetConfig, TargetService};
use foretoken_tests::shipped_model;
pub(super) use foretoken_tests::{PATIENT, eventually};
use futures::StreamExt;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(super) struct Running<E> {
    pub(super) stop: CancellationToken,
    pub(super) task: JoinHandle<Result<(), E>>,
}

impl<E: std::fmt::Debug + Send + 'static> Running<E> {
    /// Runs a service until it is told to stop.
    pub(super) fn start<F>(run: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
    {
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(stop.clone()));
        Self { stop, task }
    }

    /// Ends it at once, as a crash does; its sockets are free then.
    pub(super) async fn kill(self) {
        self.task.abort();
        let ended = self.task.await.expect_err("it was aborted");
        assert!(ended.is_cancelled());
    }

    pub(super) async fn end(self) {
        self.stop.cancel();
        self.task
            .await
            .expect("it does not panic")
            .expect("it ends well");
    }
}

pub(super) fn sim(role: Role) -> SimOptions {
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

/// A model of the pair that the project ships, on one thread.
pub(super) fn shipped(name: &str) -> Box<dyn ModelRunner> {
    let options = CpuOptions {
        threads: Some(1),
        ..CpuOptions::default()
    };
    Box::new(CpuRunner::load(&shipped_model(name), &options).expect("the model is shipped"))
}

/// A runner whose steps take longer by a set time, so that what happens meanwhile does not depend on
/// the machine.
struct Slowed {
    inner: Box<dyn ModelRunner>,
    by: Duration,
}

impl ModelRunner for Slowed {
    fn info(&self) -> &RunnerInfo {
        self.inner.info()
    }

    fn forward(&mut self, plan: &StepPlan, logits: &mut Logits) -> Result<(), RunnerError> {
        std::thread::sleep(self.by);
        self.inner.forward(plan, logits)
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) {
        self.inner.copy_pages(copies);
    }

    fn move_slots(&mut self, moves: &[SlotMove]) {
        self.inner.move_slots(moves);
    }
}

/// The shipped target, with time for a draft to work ahead in each of its steps.
pub(super) fn slowed_target() -> Box<dyn ModelRunner> {
    Box::new(Slowed {
        inner: shipped("target"),
        by: Duration::from_millis(5),
    })
}

pub(super) fn runner(options: SimOptions) -> Box<dyn ModelRunner> {
    Box::new(SimRunner::new(options))
}

pub(super) fn draft(
    address: &Address,
    runner: Box<dyn ModelRunner>,
) -> Running<foretoken_draft::RunError> {
    let config = DraftConfig {
        listen: vec![address.clone()],
        ..DraftConfig::default()
    };
    draft_of(config, runner)
}

pub(super) fn draft_of(
    config: DraftConfig,
    runner: Box<dyn ModelRunner>,
) -> Running<foretoken_draft::RunError> {
    let service = DraftService::bind(config, runner).expect("the socket is free");
    Running::start(|stop| service.run(stop))
}

/// An endpoint that tells its metrics, and at which port.
pub(super) fn observed(
    address: &Address,
    runner: Box<dyn ModelRunner>,
) -> (Running<foretoken_draft::RunError>, u16) {
    let config = DraftConfig {
        listen: vec![address.clone()],
        metrics_listen: Some("127.0.0.1:0".into()),
        ..DraftConfig::default()
    };
    observed_draft(config, runner)
}

/// The same of an endpoint of `config`, which says where it tells them.
pub(super) fn observed_draft(
    config: DraftConfig,
    runner: Box<dyn ModelRunner>,
) -> (Running<foretoken_draft::RunError>, u16) {
    let service = DraftService::bind(config, runner).expect("free ports");
    let port = service.metrics_address().expect("asked for").port();
    (Running::start(|stop| service.run(stop)), port)
}

pub(super) fn target(
    config: TargetConfig,
    runner: Box<dyn ModelRunner>,
) -> (GenerateClient, Running<foretoken_target::RunError>) {
    let service = TargetService::bind(config, runner).expect("the socket is free");
    let mut addresses = service.addresses();
    let address = addresses.next().expect("it listens somewhere").clone();
    drop(addresses);
    let client = GenerateClient::new("target", address);
    (client, Running::start(|stop| service.run(stop)))
}

/// A target that tells its metrics, and at which port.
pub(super) fn observed_target(
    mut config: TargetConfig,
    runner: Box<dyn ModelRunner>,
) -> (GenerateClient, Running<foretoken_target::RunError>, u16) {
    config.metrics_listen = Some("127.0.0.1:0".into());
    let service = TargetService::bind(config, runner).expect("free ports");
    let port = service.metrics_address().expect("asked for").port();
    let address = service.addresses().next().expect("it listens").clone();
    let client = GenerateClient::new("target", address);
    (client, Running::start(|stop| service.run(stop)), port)
}

pub(super) fn with_endpoint(address: &Address) -> TargetConfig {
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

pub(super) fn socket(folder: &tempfile::TempDir, name: &str) -> Address {
    Address::Unix(folder.path().join(name))
}

pub(super) fn request(seed: u64, max_tokens: u32) -> GenerateRequest {
    let tokens: Vec<TokenId> = (0..24)
        .map(|i| TokenId((seed as u32 + 3 * i) % 128))
        .collect();
    GenerateRequest {
        request_id: format!("request {seed}"),
        owner: 0,
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
        tell_stats: false,
        hold: Duration::ZERO,
        trace: None,
    }
}

pub(super) async fn collect(
    mut stream: GenerateStream,
    tokens: &mut Vec<TokenId>,
) -> GenerationStats {
    while let Some(event) = stream.next().await {
        match event.expect("the target lives") {
            GenerateEvent::Started { .. } => {}
            GenerateEvent::Tokens(round) => {
                tokens.extend(round.tokens.iter().map(|piece| piece.token));
            }
            GenerateEvent::Finished { stats, .. } => return *stats,
        }
    }
    panic!("the stream ended without its last event");
}

pub(super) async fn output(
    client: &GenerateClient,
    request: GenerateRequest,
) -> (Vec<TokenId>, GenerationStats) {
    let mut tokens = Vec::new();
    let stream = client.generate(request).await.expect("it is accepted");
    let stats = tokio::time::timeout(PATIENT, collect(stream, &mut tokens)).await;
    (tokens, stats.expect("it does not hang"))
}

pub(super) async fn plain(client: &GenerateClient, mut request: GenerateRequest) -> Vec<TokenId> {
    request.policy = Some("Autoregressive".into());
    let (tokens, stats) = output(client, request).await;
    assert_eq!(stats.drafted, 0);
    tokens
}

pub(super) async fn reads_ten(stream: &mut GenerateStream, tokens: &mut Vec<TokenId>) {
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
pub(super) async fn warm(client: &GenerateClient) {
    let used = async |seed| {
        let (_, stats) = output(client, request(seed, 8)).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        (stats.accepted > 0).then_some(())
    };
    eventually("used", used).await;
}

/// Whether the target holds nothing.
pub(super) async fn is_idle(client: &GenerateClient) -> bool {
    let load = client.info().await.expect("it lives").load;
    (load.running, load.kv_used_permille) == (0, 0)
}
