//! Drafting ahead of verdicts: hits are counted, and no token changes.

use std::time::Duration;

use foretoken_engine::sim::{Latency, Role, SimOptions};
use foretoken_protocol::{
    Address,
    generate::{GenerateClient, GenerateRequest, GenerationStats},
};
use foretoken_speculation::TokenId;
use foretoken_target::{
    DeliveryName, FallbackName, FanOutName, LookaheadConfig, SsdConfig, TargetConfig, TreesName,
};

use super::{metrics::Scrape, rig::*};

/// A draft that makes many steps while its target makes one.
pub(super) fn quick(agreement: f64) -> SimOptions {
    let latency = Latency {
        base: Duration::from_micros(50),
        ..Latency::default()
    };
    SimOptions {
        latency,
        ..sim(Role::Draft { agreement })
    }
}

pub(super) fn slow() -> SimOptions {
    let latency = Latency {
        base: Duration::from_millis(3),
        ..Latency::default()
    };
    SimOptions {
        latency,
        ..sim(Role::Target)
    }
}

pub(super) fn ahead(mut request: GenerateRequest) -> GenerateRequest {
    request.policy = Some("SSD".into());
    request.lookahead = Some(4);
    request
}

/// Both sides hold nothing any more.
pub(super) async fn idle(client: &GenerateClient, port: u16) {
    let both = async {
        loop {
            let draft = Scrape::of(port).await.shown("vllm:kv_cache_usage_perc");
            if is_idle(client).await && draft == 0.0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENT, both)
        .await
        .expect("all pages are given back");
}

#[tokio::test]
async fn several_sessions_drafted_ahead_at_once_get_the_tokens_of_plain_decoding() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, port) = observed(&address, runner(quick(0.8)));
    let (client, target) = target(with_endpoint(&address), runner(slow()));
    warm(&client).await;
    let some_hit = async |number| {
        let seeds = 6 * number..6 * number + 6;
        let requests: Vec<_> = seeds.map(|seed| request(seed, 60)).collect();
        let outputs = requests
            .iter()
            .map(|request| output(&client, ahead(request.clone())));
        let outputs = futures::future::join_all(outputs).await;
        let mut hits = 0;
        for (request, (tokens, stats)) in requests.iter().zip(outputs) {
            assert_eq!(tokens, plain(&client, request.clone()).await);
            assert_eq!(stats.policy, "SSD");
            hits += stats.hits;
        }
        (hits > 0).then_some(())
    };
    eventually("a hit", some_hit).await;
    assert!(Scrape::of(port).await.shown("foretoken_entry_tokens_total") > 0.0);
    idle(&client, port).await;
    target.end().await;
    endpoint.end().await;
}

#[tokio::test]
async fn verdicts_wait_for_tokens_that_are_nearly_there_and_get_those_of_plain_decoding() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    // When a verification ends, an endpoint that needs five steps has made three of them.
    let taking = |millis, options| {
        let latency = Latency {
            base: Duration::from_millis(millis),
            ..Latency::default()
        };
        runner(SimOptions { latency, ..options })
    };
    let endpoint = draft(&address, taking(12, sim(Role::Draft { agreement: 0.9 })));
    let of_target = taking(40, sim(Role::Target));
    let (client, target, port) = observed_target(with_endpoint(&address), of_target);
    warm(&client).await;
    let waits = r#"foretoken_round_lingered_seconds_count{source="ahead"}"#;
    let some_wait = async |seed| {
        let (tokens, _) = output(&client, ahead(request(seed, 60))).await;
        assert_eq!(tokens, plain(&client, request(seed, 60)).await);
        (Scrape::of(port).await.get(waits) > 0.0).then_some(())
    };
    eventually("does one wait", some_wait).await;
    target.end().await;
    endpoint.end().await;
}

/// Every way to fall back and to deliver that goes together: with `Pull` only the endpoint knows what
/// it has, so that nothing else can follow.
pub(super) const WAYS: [(FallbackName, DeliveryName); 7] = [
    (FallbackName::Nothing, DeliveryName::Push),
    (FallbackName::Local, DeliveryName::Push),
    (FallbackName::Remote, DeliveryName::Push),
    (FallbackName::Auto, DeliveryName::Push),
    (FallbackName::LockStep, DeliveryName::Push),
    (FallbackName::Remote, DeliveryName::Pull),
    (FallbackName::Auto, DeliveryName::Pull),
];

/// An endpoint, and where it tells its metrics.
type Observed = (Running<foretoken_draft::RunError>, u16);

/// An output whose endpoint is killed and comes back meanwhile as `draft`; the new one.
async fn output_over_a_kill(
    client: &GenerateClient,
    asked: GenerateRequest,
    ((endpoint, _), address): (Observed, &Address),
    draft: SimOptions,
) -> (Vec<TokenId>, GenerationStats, Observed) {
    let stream = client.generate(asked).await;
    let mut stream = stream.expect("it is accepted");
    let mut tokens = Vec::new();
    reads_ten(&mut stream, &mut tokens).await;
    endpoint.kill().await;
    reads_ten(&mut stream, &mut tokens).await;
    let again = observed(address, runner(draft));
    let stats = collect(stream, &mut tokens).await;
    (tokens, stats, again)
}

#[tokio::test]
async fn every_way_to_spend_fall_back_and_deliver_gives_the_same_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let mut endpoint = observed(&address, runner(quick(0.7)));
    let short = (0..3).map(|seed| request(seed, 60));
    let asked: Vec<_> = short.chain([request(3, 250)]).collect();
    let mut expected = Vec::new();
    for fan_out in [
        FanOutName::Learned,
        FanOutName::Uniform,
        FanOutName::Geometric,
    ] {
        for (fallback, delivery) in WAYS {
            let mut config = with_endpoint(&address);
            config.ssd = SsdConfig {
                lookahead: LookaheadConfig::Fixed(3),
                budget: 6,
                fan_out,
                fallback,
                delivery,
            };
            let (client, target) = target(config, runner(slow()));
            if expected.is_empty() {
                let plain = asked.iter().map(|asked| plain(&client, asked.clone()));
                expected = futures::future::join_all(plain).await;
            }
            warm(&client).await;
            let way = format!("{fan_out:?} {fallback:?} {delivery:?}");
            let some_hit = async |_| {
                let short = asked[..3].iter().cloned();
                let outputs = short.map(|asked| output(&client, ahead(asked)));
                let outputs = futures::future::join_all(outputs).await;
                let (tokens, all): (Vec<_>, Vec<_>) = outputs.into_iter().unzip();
                assert_eq!(tokens, expected[..3], "{way}");
                let in_hits: Duration = all.iter().map(|stats| stats.measured.hit).sum();
                let mut hits = all.iter().filter(|stats| stats.hits > 0);
                let accepted = hits.any(|stats| stats.accepted > 0);
                (accepted && !in_hits.is_zero()).then_some(())
            };
            eventually(&format!("a hit: {way}"), some_hit).await;
            let mut killed = Some(endpoint);
            let comes_back = async |_| {
                let last = ahead(asked[3].clone());
                let endpoint = (killed.take().expect("each try has one"), &address);
                let (tokens, _, again) =
                    output_over_a_kill(&client, last, endpoint, quick(0.7)).await;
                let port = again.1;
                killed = Some(again);
                assert_eq!(tokens, expected[3], "{way}");
                let builds = Scrape::of(port).await.shown("foretoken_builds_total");
                (builds > 0.0).then_some(())
            };
            let what = format!("back before the output ends: {way}");
            eventually(&what, comes_back).await;
            endpoint = killed.take().expect("the last try left one");
            idle(&client, endpoint.1).await;
            target.end().await;
        }
    }
    endpoint.0.end().await;
}

#[tokio::test]
async fn trees_of_both_policies_get_the_tokens_of_plain_decoding_and_give_all_pages_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, port) = observed(&address, runner(quick(0.6)));
    let mut config = with_endpoint(&address);
    config.trees = TreesName::Auto;
    let (client, target) = target(config, runner(slow()));
    warm(&client).await;
    let some_tree = async |seed| {
        let mut more = 0;
        for asked in [ahead(request(seed, 60)), request(seed, 60)] {
            let (tokens, stats) = output(&client, asked).await;
            assert_eq!(tokens, plain(&client, request(seed, 60)).await);
            // Trees have more tokens than windows of four.
            more += stats.drafted.saturating_sub(4 * stats.rounds);
        }
        (more > 0).then_some(())
    };
    eventually("a tree", some_tree).await;
    idle(&client, port).await;
    target.end().await;
    endpoint.end().await;
}

#[tokio::test]
async fn an_endpoint_killed_amid_branches_changes_nothing_but_the_pace() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let mut killed = Some(observed(&address, runner(quick(0.9))));
    let (client, target) = target(with_endpoint(&address), runner(slow()));
    warm(&client).await;
    let asked = request(11, 600);
    let expected = plain(&client, asked.clone()).await;
    let hits = async |_| {
        let endpoint = (killed.take().expect("each try has one"), &address);
        let (tokens, stats, again) =
            output_over_a_kill(&client, ahead(asked.clone()), endpoint, quick(0.9)).await;
        killed = Some(again);
        assert_eq!(tokens, expected);
        (stats.hits > 0).then_some(())
    };
    eventually("a hit", hits).await;
    let (endpoint, port) = killed.expect("the last try left one");
    idle(&client, port).await;
    target.end().await;
    endpoint.end().await;
}

#[tokio::test]
async fn the_shipped_pair_drafts_ahead_without_changing_a_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, port) = observed(&address, shipped("draft"));
    let (client, target) = target(with_endpoint(&address), slowed_target());
    warm(&client).await;
    let mut hits = 0;
    let some_hit = async |seed| {
        let temperature = [0.0, 0.7, 1.0][(seed / 2 % 3) as usize];
        let mut asked = request(seed, 48);
        asked.sampling.temperature = temperature;
        if seed % 2 == 1 {
            asked.sampling.repetition_penalty = 1.1;
            asked.sampling.presence_penalty = 0.3;
            asked.sampling.frequency_penalty = 0.2;
        }
        let (tokens, stats) = output(&client, ahead(asked.clone())).await;
        assert_eq!(tokens, plain(&client, asked).await, "at {temperature}");
        hits += stats.hits;
        (seed >= 5 && hits > 0).then_some(())
    };
    eventually("a hit", some_hit).await;
    idle(&client, port).await;
    target.end().await;
    endpoint.end().await;
}

#[tokio::test]
async fn the_shipped_pair_verifies_trees_without_changing_a_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, port) = observed(&address, shipped("draft"));
    let config = TargetConfig {
        trees: TreesName::Auto,
        // Without measured costs rows are thought to be free, so that trees are made.
        warm_up: false,
        patience: Duration::from_secs(5),
        ..with_endpoint(&address)
    };
    let (client, target, target_port) = observed_target(config, shipped("target"));
    warm(&client).await;
    let trees = async || {
        let figures = Scrape::of(target_port).await;
        figures.shown("foretoken_tree_windows_total")
    };
    for ssd in [false, true] {
        let are_verified = async |number: u64| {
            let (before, mut accepted) = (trees().await, 0);
            for (seed, temperature) in [(0, 0.0), (1, 0.7), (2, 1.0), (3, 1.0)] {
                let mut asked = request(4 * number + seed, 60);
                asked.sampling.temperature = temperature;
                asked.sampling.frequency_penalty = 0.3;
                asked.sampling.repetition_penalty = 1.1;
                let expected = plain(&client, asked.clone()).await;
                let asked = if ssd { ahead(asked) } else { asked };
                let (tokens, stats) = output(&client, asked).await;
                assert_eq!(tokens, expected, "SSD: {ssd}, temperature {temperature}");
                accepted += stats.accepted;
            }
            (trees().await > before && accepted > 0).then_some(())
        };
        eventually("are trees verified", are_verified).await;
    }
    idle(&client, port).await;
    target.end().await;
    endpoint.end().await;
}

#[tokio::test]
async fn an_adaptive_lookahead_drafts_ahead_where_that_pays_and_not_where_it_does_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, port) = observed(&address, runner(quick(0.5)));
    // Rows that cost as much as steps: whatever is verified besides the next token is time lost.
    let dear = SimOptions {
        latency: Latency {
            per_row: Duration::from_millis(2),
            ..Latency::default()
        },
        ..sim(Role::Target)
    };
    for (options, pays) in [(slow(), true), (dear, false)] {
        let (client, target) = target(with_endpoint(&address), runner(options));
        warm(&client).await;
        let found_out = async |number| {
            let mut drafted = 0;
            for seed in 3 * number..3 * number + 3 {
                let mut asked = request(seed, 80);
                asked.policy = Some("SSD".into());
                let (tokens, stats) = output(&client, asked).await;
                assert_eq!(tokens, plain(&client, request(seed, 80)).await);
                drafted += stats.drafted;
            }
            // What comes first is to find out.
            (number > 0 && (drafted > 100) == pays).then_some(())
        };
        eventually(&format!("found out, pays: {pays}"), found_out).await;
        idle(&client, port).await;
        target.end().await;
    }
    endpoint.end().await;
}
