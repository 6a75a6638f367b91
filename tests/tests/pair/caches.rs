//! What is kept of a request for others, on both sides.

use foretoken_engine::sim::Role;
use foretoken_protocol::generate::GenerateRequest;

use super::{metrics::Scrape, rig::*};

#[tokio::test]
async fn a_request_that_keeps_nothing_leaves_nothing_at_its_endpoint_either() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, draft_port) = observed(&address, runner(sim(Role::Draft { agreement: 0.9 })));
    let (client, target, target_port) =
        observed_target(with_endpoint(&address), runner(sim(Role::Target)));
    let hits = async || {
        let hits = async |port| Scrape::of(port).await.count("vllm:prefix_cache_hits_total");
        [hits(target_port).await, hits(draft_port).await]
    };
    warm(&client).await;
    let asked = |cache_prompt| GenerateRequest {
        cache_prompt,
        ..request(99, 60)
    };
    for _ in 0..2 {
        let (_, stats) = output(&client, asked(false)).await;
        assert!(stats.accepted > 0, "its endpoint has read it");
    }
    output(&client, asked(true)).await;
    assert_eq!(hits().await, [0, 0], "nothing was there");
    // What keeps something finds nothing of others, and is not found by them.
    output(&client, asked(false)).await;
    assert_eq!(hits().await, [0, 0]);
    output(&client, asked(true)).await;
    let found = hits().await;
    assert!(found.iter().all(|&found| found >= 16), "{found:?}");
    target.end().await;
    endpoint.end().await;
}
