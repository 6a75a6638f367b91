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

#[tokio::test]
async fn a_request_moves_from_an_endpoint_that_is_killed_to_another_and_changes_no_token() {
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
    let asked = request(11, 600);
    let stream = client.generate(ahead(asked.clone())).await;
    let mut stream = stream.expect("it is accepted");
    let mut tokens = Vec::new();
    reads_ten(&mut stream, &mut tokens).await;
    // Both live, and the request is at the first, since that was there when it began.
    let (other, port) = observed(&second, runner(quick(0.9)));
    let entries = async || {
        let scrape = Scrape::of(port).await;
        scrape.shown("foretoken_entry_tokens_total")
    };
    let mut connected = 0.0;
    while connected < 1.0 {
        reads_ten(&mut stream, &mut tokens).await;
        connected = Scrape::of(port).await.shown("foretoken_links");
    }
    assert!(
        entries().await < 1.0,
        "nothing is drafted by the second yet"
    );
    used.kill().await;
    let stats = collect(stream, &mut tokens).await;
    assert!(entries().await > 0.0 && stats.hits > 0, "{stats:?}");
    assert_eq!(tokens, plain(&client, asked).await);
    target.end().await;
    other.end().await;
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
    let requests: Vec<_> = (0..5).map(|seed| request(seed, 100)).collect();
    let outputs = requests.iter().cloned().map(ahead);
    let outputs = outputs.map(|request| output(&client, request));
    let outputs = futures::future::join_all(outputs).await;
    let preempted = Scrape::of(port).await.shown("vllm:num_preemptions_total");
    assert!(preempted > 0.0, "nobody was preempted");
    let hits: u32 = outputs.iter().map(|(_, stats)| stats.hits).sum();
    assert!(hits > 0, "nothing was drafted ahead");
    for (request, (tokens, _)) in requests.into_iter().zip(outputs) {
        assert_eq!(tokens, plain(&client, request).await);
    }
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
    let requests: Vec<_> = (0..4).map(|seed| request(seed, 60)).collect();
    let asked = |client| {
        let outputs = requests.iter().cloned().map(ahead);
        futures::future::join_all(outputs.map(|request| output(client, request)))
    };
    let (likely, unlikely) = futures::future::join(asked(&own), asked(&other)).await;
    let accepted = |outputs: &[(Vec<_>, GenerationStats)]| {
        outputs.iter().map(|(_, stats)| stats.accepted).sum::<u32>()
    };
    assert!(
        accepted(&likely) > 4 * accepted(&unlikely),
        "{} and {}",
        accepted(&likely),
        accepted(&unlikely)
    );
    for (client, outputs) in [(&own, likely), (&other, unlikely)] {
        for (request, (tokens, _)) in requests.iter().zip(outputs) {
            assert_eq!(tokens, plain(client, request.clone()).await);
        }
    }
    first.end().await;
    second.end().await;
    endpoint.end().await;
}
