//! Requests drafted ahead that lose their endpoint for another, their pages, or share an endpoint with
//! targets of another model.

use foretoken_engine::sim::{Role, SimOptions};
use foretoken_protocol::generate::GenerationStats;
use foretoken_target::{EndpointConfig, TargetConfig};

use super::{
    metrics::Scrape,
    rig::*,
    ssd::{ahead, quick, slow},
};

/// Kills the endpoint of a request; whether another drafted ahead for the rest of it.
async fn moves() -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let [first, second] = ["first", "second"].map(|name| socket(&folder, name));
    let used = draft(&first, runner(quick(0.9)));
    let config = TargetConfig {
        endpoints: [("first", &first), ("second", &second)]
            .map(|(name, address)| EndpointConfig {
                name: name.into(),
                address: address.clone(),
            })
            .to_vec(),
        ..with_endpoint(&first)
    };
    let (client, target) = target(config, runner(slow()));
    warm(&client).await;
    let (other, port) = observed(&second, runner(quick(0.9)));
    let shown = async |name| Scrape::of(port).await.shown(name);
    let connected = async |_| (shown("foretoken_links").await >= 1.0).then_some(());
    eventually("connected", connected).await;
    let entries = || shown("foretoken_entry_tokens_total");
    let asked = request(11, 600);
    let stream = client.generate(ahead(asked.clone())).await;
    let mut stream = stream.expect("it is accepted");
    let mut tokens = Vec::new();
    reads_ten(&mut stream, &mut tokens).await;
    // Both live, and the request is at the first, which is named first, unless that was silent for too long.
    let is_at_first = entries().await < 1.0;
    used.kill().await;
    let stats = collect(stream, &mut tokens).await;
    let has_moved = is_at_first && entries().await > 0.0 && stats.hits > 0;
    assert_eq!(tokens, plain(&client, asked).await);
    target.end().await;
    other.end().await;
    has_moved
}

#[tokio::test]
async fn a_request_moves_from_an_endpoint_that_is_killed_to_another_and_changes_no_token() {
    eventually("moved", async |_| moves().await.then_some(())).await;
}

#[tokio::test]
async fn requests_that_are_preempted_while_they_are_drafted_ahead_lose_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let endpoint = draft(&address, runner(quick(0.9)));
    // Each needs eight pages in the end.
    let tight = SimOptions {
        pages: 20,
        ..slow()
    };
    let (client, target, port) = observed_target(with_endpoint(&address), runner(tight));
    warm(&client).await;
    let preempted_ahead = async |number| {
        let preempted = async || Scrape::of(port).await.shown("vllm:num_preemptions_total");
        let before = preempted().await;
        let seeds = 5 * number..5 * number + 5;
        let requests: Vec<_> = seeds.map(|seed| request(seed, 100)).collect();
        let outputs = requests.iter().cloned().map(ahead);
        let outputs = outputs.map(|request| output(&client, request));
        let outputs = futures::future::join_all(outputs).await;
        let preempted = preempted().await - before;
        let hits: u32 = outputs.iter().map(|(_, stats)| stats.hits).sum();
        for (request, (tokens, _)) in requests.into_iter().zip(outputs) {
            assert_eq!(tokens, plain(&client, request).await);
        }
        (preempted > 0.0 && hits > 0).then_some(())
    };
    eventually("preempted while drafted ahead", preempted_ahead).await;
    target.end().await;
    endpoint.end().await;
}

#[tokio::test]
async fn targets_of_two_models_share_an_endpoint_and_each_gets_its_own_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let endpoint = draft(&address, runner(quick(0.9)));
    // The draft is right about one of them nine times in ten, and about the other by chance.
    let (own, first) = target(with_endpoint(&address), runner(slow()));
    let foreign = SimOptions {
        language: 8,
        role: Role::Target,
        ..slow()
    };
    let (other, second) = target(with_endpoint(&address), runner(foreign));
    warm(&own).await;
    let accepted = |outputs: &[(Vec<_>, GenerationStats)]| {
        outputs.iter().map(|(_, stats)| stats.accepted).sum::<u32>()
    };
    let each_its_own = async |number| {
        let seeds = 4 * number..4 * number + 4;
        let requests: Vec<_> = seeds.map(|seed| request(seed, 60)).collect();
        let asked = |client| {
            let outputs = requests.iter().cloned().map(ahead);
            futures::future::join_all(outputs.map(|request| output(client, request)))
        };
        let (likely, unlikely) = futures::future::join(asked(&own), asked(&other)).await;
        let is_likely = accepted(&likely) > 60.max(4 * accepted(&unlikely));
        for (client, outputs) in [(&own, likely), (&other, unlikely)] {
            for (request, (tokens, _)) in requests.iter().zip(outputs) {
                assert_eq!(tokens, plain(client, request.clone()).await);
            }
        }
        is_likely.then_some(())
    };
    eventually("is the draft right about its own", each_its_own).await;
    first.end().await;
    second.end().await;
    endpoint.end().await;
}
