//! The same with the models that are shipped: real logits, and proposals that a real draft draws. What
//! their law is nobody has written down, so samples are held against others that nobody proposed for.

use std::collections::BTreeMap;

use foretoken_speculation::TokenId;
use foretoken_target::{FallbackName, SsdConfig, TreesName};

use super::*;

/// Outputs of a sample, and again as many if too few proposals were accepted, or too few trees made.
const MANY: u64 = 1_200;
/// Requests under way, few: as short as they are, a quick target ends many at once before the draft has read
/// them.
const FEW: usize = 4;
/// Standard deviations above its mean that a chi-square of some thirty degrees of freedom reaches once in
/// tens of millions.
const FAR: f64 = 8.0;
/// " If she has 20 apples,"
const PROMPT: [u32; 8] = [497, 420, 399, 223, 20, 18, 1003, 14];

/// How often each output came.
type Counts = BTreeMap<Vec<TokenId>, f64>;

fn short(seed: u64, policy: &str, temperature: f32) -> GenerateRequest {
    let tokens = PROMPT.map(TokenId).to_vec();
    GenerateRequest {
        prompt_len: tokens.len(),
        tokens,
        sampling: SamplingParams {
            temperature,
            top_k: 2,
            ..SamplingParams::default()
        },
        policy: Some(policy.into()),
        ..request(seed, 5)
    }
}

/// Adds the outputs of these seeds to `counts`; how many proposals were accepted.
async fn fill(
    counts: &mut Counts,
    client: &GenerateClient,
    seeds: Range<u64>,
    (policy, temperature): (&str, f32),
) -> u32 {
    let mut outputs = futures::stream::iter(seeds)
        .map(|seed| output(client, short(seed, policy, temperature)))
        .buffer_unordered(FEW);
    let mut accepted = 0;
    while let Some((tokens, stats)) = outputs.next().await {
        assert_eq!(tokens.len(), 5);
        *counts.entry(tokens).or_default() += 1.0;
        accepted += stats.accepted;
    }
    accepted
}

/// By how many standard deviations the chi-square of two samples is above what it is in the mean if both
/// have the same law. Rare outputs count together.
fn distance(one: &Counts, other: &Counts) -> f64 {
    let [of_one, of_other] = [one, other].map(|counts| counts.values().sum::<f64>());
    let ratio = (of_one / of_other).sqrt();
    let mut rare = [0.0; 2];
    let (mut sum, mut cells) = (0.0, 0.0);
    let mut add = |[a, b]: [f64; 2]| {
        sum += (a / ratio - b * ratio).powi(2) / (a + b);
        cells += 1.0;
    };
    let mut outputs: Vec<_> = one.keys().chain(other.keys()).collect();
    outputs.sort();
    outputs.dedup();
    for output in outputs {
        let pair = [one, other].map(|counts| counts.get(output).copied().unwrap_or(0.0));
        if pair[0] + pair[1] >= 20.0 {
            add(pair);
        } else {
            rare[0] += pair[0];
            rare[1] += pair[1];
        }
    }
    if rare[0] + rare[1] > 0.0 {
        add(rare);
    }
    let degrees: f64 = cells - 1.0;
    (sum - degrees) / (2.0 * degrees).sqrt()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn samples_of_the_shipped_pair_have_the_law_of_those_without_a_draft() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let endpoint = draft(&address, shipped("draft"));
    let config = rejecting(with_endpoint(&address));
    let (client, target) = target(config, shipped("target"));
    let mut plain = Counts::new();
    let alone = ("Autoregressive", 1.0);
    assert_eq!(fill(&mut plain, &client, 0..MANY, alone).await, 0);
    // Others of the same law are near, and those of another one are far.
    for (temperature, is_near) in [(1.0, true), (0.5, false)] {
        let mut others = Counts::new();
        let alone = ("Autoregressive", temperature);
        fill(&mut others, &client, MANY..2 * MANY, alone).await;
        let found = distance(&plain, &others);
        assert_eq!(found < FAR, is_near, "{found} at {temperature}");
    }
    let policies = ["Speculative", "SSD"];
    for policy in policies {
        assert_near(&plain, &client, policy, None).await;
    }
    target.end().await;
    // The same of windows that are trees. None has more tokens than the output has left, so chains are
    // short, to leave room for others beside them, and misses ask for one each.
    let config = rejecting(TargetConfig {
        trees: TreesName::Auto,
        lookahead: LookaheadConfig::Fixed(2),
        ssd: SsdConfig {
            lookahead: LookaheadConfig::Fixed(2),
            fallback: FallbackName::Remote,
            ..SsdConfig::default()
        },
        // Without measured costs rows are thought to be free, so that trees are made.
        warm_up: false,
        ..with_endpoint(&address)
    });
    let (client, target, port) = observed_target(config, shipped("target"));
    for policy in policies {
        assert_near(&plain, &client, policy, Some(port)).await;
    }
    target.end().await;
    endpoint.end().await;
}

/// Outputs with a draft have the law of those without one. If a port is given, which shows what the
/// target counts, there are trees among the windows.
async fn assert_near(plain: &Counts, client: &GenerateClient, policy: &str, port: Option<u16>) {
    let (mut drafted, mut accepted, mut trees) = (Counts::new(), 0, 0.0);
    let before = tree_windows(port).await;
    for seeds in draws(MANY) {
        // None of those before, which would be the same draws in part.
        let seeds = seeds.start + 2 * MANY..seeds.end + 2 * MANY;
        accepted += fill(&mut drafted, client, seeds, (policy, 1.0)).await;
        trees = tree_windows(port).await - before;
        if accepted > 150 && (trees > 100.0 || port.is_none()) {
            break;
        }
    }
    let found = distance(plain, &drafted);
    assert!(found < FAR, "{found} with {policy}");
    assert!(accepted > 150, "{accepted} with {policy}");
    assert!(trees > 100.0 || port.is_none(), "{trees} with {policy}");
}

/// How many windows that were trees the target has counted that shows it there.
async fn tree_windows(port: Option<u16>) -> f64 {
    match port {
        Some(port) => Scrape::of(port).await.shown("foretoken_tree_windows_total"),
        None => 0.0,
    }
}
