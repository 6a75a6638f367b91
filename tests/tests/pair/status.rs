//! What a target and its endpoint say of themselves to whoever looks after a cluster.

use std::time::Duration;

use foretoken_draft::DraftConfig;
use foretoken_engine::sim::Role;
use foretoken_service::report::{DraftReport, EndpointReport, LinkState, Report};

use super::{
    rig::*,
    ssd::{ahead, quick, slow},
};

async fn ask(port: u16) -> Report {
    let page = reqwest::get(format!("http://127.0.0.1:{port}/status")).await;
    let text = page.expect("it answers").text().await.expect("text");
    serde_json::from_str(&text).expect("a report")
}

async fn becomes(port: u16, so: impl Fn(&Report) -> bool) -> Report {
    let says_so = async |_| {
        tokio::time::sleep(Duration::from_millis(20)).await;
        Some(ask(port).await).filter(&so)
    };
    eventually("does it say so", says_so).await
}

/// Its endpoints; none before it is warm.
fn endpoints(report: &Report) -> &[EndpointReport] {
    let target = report.target.as_ref();
    target.map_or(&[], |target| &target.endpoints)
}

fn as_draft(report: &Report) -> DraftReport {
    report.draft.clone().unwrap_or_default()
}

#[tokio::test]
async fn both_tell_who_is_connected_and_what_came_of_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let (endpoint, draft_port) = observed(&address, runner(quick(0.8)));
    let mut config = with_endpoint(&address);
    config.namespace = "chat".into();
    config.deployment = "story".into();
    let (client, target, port) = observed_target(config, runner(slow()));
    warm(&client).await;
    let (mut accepted, mut hits, mut misses) = (0, 0, 0);
    for seed in 0..3 {
        let stats = output(&client, ahead(request(seed, 60))).await.1;
        accepted += u64::from(stats.accepted);
        hits += u64::from(stats.hits);
        misses += u64::from(stats.misses);
    }
    let told = becomes(port, |report| {
        let endpoint = endpoints(report).first();
        endpoint.is_some_and(|EndpointReport { rounds, .. }| {
            rounds.accepted >= accepted && rounds.hits >= hits && rounds.misses >= misses
        })
    })
    .await;
    let endpoint_told = &endpoints(&told)[0];
    assert_eq!(
        (endpoint_told.name.as_str(), endpoint_told.link),
        ("draft", LinkState::Up)
    );
    assert_eq!(endpoint_told.trouble, None);
    let length = endpoint_told.rounds.acceptance_length();
    assert!(length.expect("windows") > 1.0);

    let told = becomes(draft_port, |report| {
        let draft = as_draft(report);
        draft.busy_seconds > 0.0 && draft.slots_in_use == 0
    })
    .await;
    let draft = as_draft(&told);
    assert_eq!(told.model.digest, endpoint_told.model);
    assert_eq!(draft.slots, 64);
    assert!(draft.busy_seconds <= draft.up_seconds);
    let consumer = &draft.consumers[0];
    assert_eq!(
        (consumer.namespace.as_str(), consumer.deployment.as_str()),
        ("chat", "story")
    );
    assert_eq!((consumer.links, draft.consumers.len()), (1, 1));

    endpoint.end().await;
    let told = becomes(port, |report| endpoints(report)[0].link == LinkState::Down).await;
    assert!(endpoints(&told)[0].trouble.is_some());
    target.end().await;
}

#[tokio::test]
async fn both_tell_that_they_do_not_go_together() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let config = DraftConfig {
        listen: vec![address.clone()],
        metrics_listen: Some("127.0.0.1:0".into()),
        tokenizer_digest: "theirs".into(),
        ..DraftConfig::default()
    };
    let (endpoint, draft_port) =
        observed_draft(config, runner(sim(Role::Draft { agreement: 1.0 })));
    let mut config = with_endpoint(&address);
    config.tokenizer_digest = "ours".into();
    config.instance = "target-7".into();
    let (_, target, port) = observed_target(config, runner(sim(Role::Target)));
    let told = becomes(port, |report| {
        let endpoint = endpoints(report).first();
        endpoint.is_some_and(|endpoint| endpoint.link == LinkState::Refused)
    })
    .await;
    let trouble = endpoints(&told)[0].trouble.as_deref();
    assert!(trouble.is_some_and(|trouble| trouble.contains("theirs")));
    let told = becomes(draft_port, |report| !as_draft(report).refused.is_empty()).await;
    let refused = &as_draft(&told).refused[0];
    assert_eq!(refused.instance, "target-7");
    assert!(refused.reason.contains("ours"), "{}", refused.reason);
    endpoint.end().await;
    target.end().await;
}
