//! Verification by rejection, through real services: samples follow the target's law, whatever
//! becomes of the endpoint.
//!
//! The simulated language makes that a question of ranks: after every context the likeliest tokens
//! have the same four probabilities, so that the ranks of a sequence are independent draws.

mod again;
mod fallbacks;
mod refrains;
mod shipped;
mod trees;

use std::{ops::Range, time::Duration};

use foretoken_engine::sim::{Latency, Role, SimOptions};
use foretoken_protocol::generate::{
    GenerateClient, GenerateEvent, GenerateRequest, GenerationStats,
};
use foretoken_speculation::sampling::SamplingParams;
use foretoken_target::{
    FallbackName, FanOutName, LookaheadConfig, SsdConfig, TargetConfig, VerificationConfig,
};
use futures::StreamExt;

use super::{metrics::Scrape, rig::*};

/// The law of ranks among the four likeliest tokens.
const LAW: [f64; 4] = [0.70 / 0.95, 0.15 / 0.95, 0.07 / 0.95, 0.03 / 0.95];
const TOKENS: u32 = 100;
/// Requests under way.
const AT_ONCE: usize = 24;
/// Above this chi-square of 15 degrees of freedom comes once in a hundred million.
const MOST: f64 = 70.0;

/// Steps that take no time of their own.
fn instant(role: Role) -> SimOptions {
    SimOptions {
        latency: Latency {
            base: Duration::ZERO,
            ..Latency::default()
        },
        // A draft that is often wrong, but seldom far off.
        near: 1.0,
        // Enough for what is under way at once: every change to the pool has all of it checked.
        pages: 300,
        ..sim(role)
    }
}

fn sampled(seed: u64, policy: &str) -> GenerateRequest {
    let mut request = request(seed, TOKENS);
    request.sampling = SamplingParams {
        top_k: 4,
        ..SamplingParams::default()
    };
    request.logprobs = Some(0);
    request.policy = Some(policy.into());
    request
}

fn rejecting(config: TargetConfig) -> TargetConfig {
    TargetConfig {
        verification: VerificationConfig::Rejection { support: 6 },
        max_running: 32,
        ..config
    }
}

/// Ranks of the tokens of one output.
async fn ranks(client: &GenerateClient, request: GenerateRequest) -> (Vec<u32>, GenerationStats) {
    let mut stream = client.generate(request).await.expect("it is accepted");
    let mut ranks = Vec::new();
    while let Some(event) = stream.next().await {
        match event.expect("the target lives") {
            GenerateEvent::Started { .. } => {}
            GenerateEvent::Tokens(round) => {
                let pieces = round.tokens.iter();
                ranks.extend(pieces.map(|piece| piece.logprobs.as_ref().expect("asked for").rank));
            }
            GenerateEvent::Finished { stats, .. } => return (ranks, *stats),
        }
    }
    panic!("the stream ended without its last event");
}

/// What many outputs came to.
#[derive(Debug, Default)]
struct Tally {
    /// By rank of a token and of the one after it.
    pairs: [[f64; 4]; 4],
    drafted: u32,
    accepted: u32,
    hits: u32,
    /// What followed verdicts that nothing had been drafted for.
    alone: u32,
    local: u32,
    remote: u32,
}

impl Tally {
    fn add(&mut self, (ranks, stats): (Vec<u32>, GenerationStats)) {
        assert_eq!(ranks.len(), TOKENS as usize);
        for pair in ranks.as_chunks::<2>().0 {
            self.pairs[pair[0] as usize][pair[1] as usize] += 1.0;
        }
        self.drafted += stats.drafted;
        self.accepted += stats.accepted;
        self.hits += stats.hits;
        self.alone += stats.ahead.alone;
        self.local += stats.ahead.local;
        self.remote += stats.ahead.remote;
    }

    /// Adds the outputs of these requests.
    async fn fill(
        &mut self,
        client: &GenerateClient,
        requests: impl Iterator<Item = GenerateRequest>,
    ) {
        let mut outputs = futures::stream::iter(requests)
            .map(|request| ranks(client, request))
            .buffer_unordered(AT_ONCE);
        while let Some(output) = outputs.next().await {
            self.add(output);
        }
    }

    fn chi_square(&self) -> f64 {
        let total: f64 = self.pairs.iter().flatten().sum();
        let cells = (0..16).map(|cell| (cell / 4, cell % 4));
        cells
            .map(|(a, b)| {
                let expected = total * LAW[a] * LAW[b];
                (self.pairs[a][b] - expected).powi(2) / expected
            })
            .sum()
    }
}

async fn tally(client: &GenerateClient, policy: &str, requests: u64) -> Tally {
    let mut tally = Tally::default();
    let requests = (0..requests).map(|seed| sampled(seed, policy));
    tally.fill(client, requests).await;
    tally
}

/// The seeds of so many requests, and of as many again as long as too little has happened: a machine
/// with other work has fewer hits.
fn draws(requests: u64) -> impl Iterator<Item = Range<u64>> {
    (0..8).map(move |more| more * requests..(more + 1) * requests)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_samples_follow_the_targets_law() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let endpoint = draft(&address, runner(instant(Role::Draft { agreement: 0.4 })));
    let (client, target) = target(
        rejecting(with_endpoint(&address)),
        runner(instant(Role::Target)),
    );
    warm(&client).await;
    let mut tally = Tally::default();
    for seeds in draws(1000) {
        let asked = seeds.map(|seed| sampled(seed, "Speculative"));
        tally.fill(&client, asked).await;
        if tally.accepted > 10_000 {
            break;
        }
    }
    let found = tally.chi_square();
    assert!(found < MOST, "{found} {:?}", tally.pairs);
    // The draft did propose, was often accepted and often not.
    let share = f64::from(tally.accepted) / f64::from(tally.drafted);
    assert!(tally.accepted > 10_000, "{}", tally.accepted);
    assert!((0.2..0.95).contains(&share), "{share}");
    target.end().await;
    endpoint.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c_is_lowered_where_that_pays_and_samples_follow_the_law_meanwhile() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let slow = |role, latency| {
        let mut options = instant(role);
        options.latency.base = latency;
        runner(options)
    };
    // What it finds likeliest never is: with C = 1 by Theorem 7 a fifth of the speed is lost. A
    // window that is waited for takes about as long as a verification.
    let step = Duration::from_micros(900);
    let endpoint = draft(&address, slow(Role::Draft { agreement: 0.0 }, step));
    let config = rejecting(TargetConfig {
        ssd: SsdConfig {
            lookahead: LookaheadConfig::Fixed(3),
            budget: 4,
            fan_out: FanOutName::Uniform,
            fallback: FallbackName::Remote,
            ..SsdConfig::default()
        },
        ..with_endpoint(&address)
    });
    let base = Duration::from_millis(4);
    let (client, target, port) = observed_target(config, slow(Role::Target, base));
    warm(&client).await;
    let c = async || {
        let figures = Scrape::of(port).await;
        figures.get(r#"foretoken_saguaro_c{endpoint="draft"}"#)
    };
    assert!((c().await - 1.0).abs() < 1e-9, "nothing is known");
    // One output alone, then many, while C comes down.
    let (first, _) = ranks(&client, sampled(7, "SSD")).await;
    assert_eq!(first.len(), TOKENS as usize);
    let (mut tally, mut now) = (Tally::default(), 1.0);
    for seeds in draws(150) {
        let asked = seeds.map(|seed| sampled(seed, "SSD"));
        tally.fill(&client, asked).await;
        now = c().await;
        if now < 0.99 && tally.hits > 50 {
            break;
        }
    }
    let found = tally.chi_square();
    assert!(found < MOST, "{found} {:?}", tally.pairs);
    assert!(now < 0.99, "{now}");
    // Answers tell the same.
    let (_, stats) = ranks(&client, sampled(8, "SSD")).await;
    let told = stats.saguaro_c.expect("it was drawn ahead");
    assert!((f64::from(told) - now).abs() < 0.21, "{told} and {now}");
    let figures = Scrape::of(port).await;
    let drawn = figures.count("foretoken_windows_drawn_total");
    let verified = figures.count("vllm:spec_decode_num_drafts_total");
    assert!(drawn > 1000 && drawn <= verified, "{drawn} of {verified}");
    assert!(tally.hits > 50, "{}", tally.hits);
    target.end().await;
    endpoint.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_that_are_killed_again_and_again_change_no_law_and_cause_no_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let start = || draft(&address, runner(instant(Role::Draft { agreement: 0.4 })));
    let mut endpoint = start();
    let (client, target) = target(
        rejecting(with_endpoint(&address)),
        runner(instant(Role::Target)),
    );
    warm(&client).await;
    let tally = tally(&client, "Speculative", 500);
    tokio::pin!(tally);
    let mut kills = 0;
    let tally = loop {
        tokio::select! {
            tally = &mut tally => break tally,
            () = tokio::time::sleep(Duration::from_millis(300)) => {
                endpoint.kill().await;
                endpoint = start();
                kills += 1;
            }
        }
    };
    let found = tally.chi_square();
    assert!(found < MOST, "{found} {:?}", tally.pairs);
    assert!(
        kills > 0 && tally.accepted > 100,
        "{kills} {}",
        tally.accepted
    );
    target.end().await;
    endpoint.end().await;
}

#[tokio::test]
async fn greedy_requests_are_the_same_under_both_rules() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let endpoint = draft(&address, runner(instant(Role::Draft { agreement: 0.7 })));
    let mut options = instant(Role::Target);
    options.latency.base = Duration::from_millis(2);
    let (client, target) = target(rejecting(with_endpoint(&address)), runner(options));
    warm(&client).await;
    for policy in ["Speculative", "SSD"] {
        let is_drafted_for = async |number| {
            let mut greedy = request(4 * number, 80);
            assert!(greedy.sampling.is_greedy());
            greedy.policy = Some(policy.into());
            let (tokens, stats) = output(&client, greedy.clone()).await;
            assert_eq!(tokens, plain(&client, greedy).await);
            (stats.accepted > 3).then_some(())
        };
        eventually(policy, is_drafted_for).await;
    }
    target.end().await;
    endpoint.end().await;
}
