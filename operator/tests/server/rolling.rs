//! A pool comes to another draft: it is tried beside the old one, and targets say which is better.

use std::{net::IpAddr, sync::Arc, time::Duration};

use foretoken_crds::{
    rollout::RolloutResult,
    status::{EndpointStatus, condition::ROLLED_OUT},
};
use foretoken_operator::{Made, object::TRACK};
use foretoken_service::report::{EndpointReport, LinkState, Report, Rounds, TargetReport};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::{
    SILENCE,
    cluster::{Cluster, Operator},
    service::Service,
};

const OLD: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 90, 0, 1));
const NEW: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 90, 0, 2));
const CANARY: (Made, &str, &str) = (Made::Deployment, "drafts", "story-draft-canary");

/// A target that drafts with both, and tells how often what they proposed was accepted.
struct Target {
    service: Arc<Service>,
    drafting: JoinHandle<()>,
}

impl Target {
    async fn start() -> Self {
        let service = Service::start(2, report(0, [LinkState::Up; 2], 2)).await;
        let (service, drafting) = (Arc::new(service), tokio::spawn(async {}));
        Self { service, drafting }
    }

    /// From now on so many tokens of each window of the new one are accepted, 2 of the old one's.
    fn drafts(&mut self, accepted: u64, links: [LinkState; 2]) {
        self.drafting.abort();
        let service = Arc::clone(&self.service);
        self.drafting = tokio::spawn(async move {
            for windows in 0.. {
                service.says(report(10 * windows, links, accepted));
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        });
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.drafting.abort();
    }
}

fn report(windows: u64, links: [LinkState; 2], accepted: u64) -> Report {
    let endpoint = |address: IpAddr, link, accepted| EndpointReport {
        name: format!("drafts/story@{address}"),
        link,
        trouble: (link == LinkState::Refused).then(|| "the tokenizers differ".to_owned()),
        rounds: Rounds {
            windows,
            accepted: windows * accepted,
            ..Rounds::default()
        },
        ..EndpointReport::default()
    };
    Report {
        version: 1,
        ready: true,
        target: Some(TargetReport {
            endpoints: vec![
                endpoint(OLD, links[0], 2),
                endpoint(NEW, links[1], accepted),
            ],
            ..TargetReport::default()
        }),
        ..Report::default()
    }
}

fn serves_at(address: IpAddr) -> Value {
    json!({"status": {
        "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
        "conditions": [{
            "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    }})
}

fn model(tag: &str) -> Value {
    json!({"spec": {
        "model": {"uri": format!("oci://story-draft:{tag}")},
        "rollout": {"canary": {"minVerdicts": 20}},
    }})
}

/// Waits until the canary of a model exists, and has its pods serve.
async fn tried(cluster: &Cluster, tag: &str) {
    let (kind, namespace, name) = CANARY;
    let has_model = |canary: &kube::api::DynamicObject| canary.data.to_string().contains(tag);
    cluster.becomes(kind, namespace, name, has_model).await;
    let serve = async || {
        let selector = format!("{TRACK}=canary");
        let status = serves_at(NEW);
        cluster
            .set_selected_pods(namespace, &selector, &status)
            .await;
        cluster
            .endpoint(namespace)
            .await
            .status
            .is_some_and(|status| {
                let canary = status.rollout.and_then(|rollout| rollout.canary);
                canary.is_some_and(|canary| canary.ready_at.is_some())
            })
    };
    cluster.wait("the canary", serve).await;
}

async fn serving_model(cluster: &Cluster) -> String {
    let made = cluster.get(Made::Deployment, "drafts", "story-draft").await;
    let spec = &made.expect("it serves").data["spec"]["template"]["spec"];
    let model = &spec["volumes"].as_array().expect("volumes");
    let reference = model
        .iter()
        .find_map(|volume| volume["image"]["reference"].as_str());
    reference.expect("an image").to_owned()
}

fn outcome(status: &EndpointStatus) -> Option<(RolloutResult, &str)> {
    let outcome = status.rollout.as_ref()?.outcome.as_ref()?;
    Some((outcome.result, &outcome.reason))
}

/// With an operator that is replaced in the middle.
pub(crate) async fn a_draft_is_tried_beside_the_old_one(
    cluster: &Cluster,
    operator: Operator,
) -> Operator {
    cluster.settles(SILENCE).await;
    cluster.set_pods("drafts", "draft", &serves_at(OLD)).await;
    let mut target = Target::start().await;
    let address = target.service.address;
    cluster
        .set_pods("chat", "target", &serves_at(address))
        .await;
    cluster.settles(SILENCE).await;
    let first = serving_model(cluster).await;

    // Worse: it goes, and is not tried again.
    let before = cluster.writes();
    cluster.patch_endpoint("drafts", &model("worse")).await;
    cluster
        .endpoint_is("drafts", ROLLED_OUT, "False Starting")
        .await;
    assert_eq!(serving_model(cluster).await, first);
    tried(cluster, "worse").await;
    cluster
        .endpoint_is("drafts", ROLLED_OUT, "False Comparing")
        .await;
    operator.stop().await;
    let operator = Operator::start(cluster, "next");
    target.drafts(1, [LinkState::Up; 2]);
    cluster
        .endpoint_is("drafts", ROLLED_OUT, "False RolledBack")
        .await;
    cluster.is_gone(CANARY.0, CANARY.1, CANARY.2).await;
    let status = cluster.endpoint("drafts").await.status.unwrap();
    let worse = Some((RolloutResult::RolledBack, "LowerAcceptance"));
    assert_eq!(outcome(&status), worse);
    let said = &status.rollout.unwrap().outcome.unwrap().message;
    for figure in [
        "had acceptance length 2.00 of",
        "had acceptance length 3.00 of",
    ] {
        assert!(said.contains(figure), "{said}");
    }
    cluster.has_event("drafts", "RolledBack").await;
    cluster.settles(SILENCE).await;
    let written = cluster.object_writes_since(before);
    let canary = "drafts/deployments/story-draft-canary";
    let expected = [format!("delete {canary}"), format!("patch {canary}")];
    assert_eq!(written, expected, "nothing else starts anew");
    others_are_tried_in_turn(cluster, &mut target, &first).await;
    operator
}

async fn others_are_tried_in_turn(cluster: &Cluster, target: &mut Target, first: &str) {
    // Incompatible: at once.
    target.drafts(2, [LinkState::Up, LinkState::Refused]);
    cluster.patch_endpoint("drafts", &model("foreign")).await;
    tried(cluster, "foreign").await;
    let foreign = Some((RolloutResult::RolledBack, "Incompatible"));
    cluster
        .endpoint_status("drafts", |status| outcome(status) == foreign)
        .await;
    assert_eq!(serving_model(cluster).await, first);

    // As good: it replaces the old one, and the canary goes when that has happened.
    target.drafts(2, [LinkState::Up; 2]);
    cluster.patch_endpoint("drafts", &model("equal")).await;
    tried(cluster, "equal").await;
    let equal = Some((RolloutResult::Promoted, "AsGood"));
    cluster
        .endpoint_status("drafts", |status| outcome(status) == equal)
        .await;
    let is_over = async || {
        cluster.set_pods("drafts", "draft", &serves_at(OLD)).await;
        let (kind, namespace, name) = CANARY;
        cluster.get(kind, namespace, name).await.is_none()
    };
    cluster.wait("the end of the canary", is_over).await;
    assert_eq!(serving_model(cluster).await, "story-draft:equal");
    cluster
        .endpoint_is("drafts", ROLLED_OUT, "True Promoted")
        .await;

    // As somebody says who does not want to know.
    let rolling = json!({"spec": {
        "model": {"uri": "oci://story-draft:next"}, "rollout": {"type": "Rolling", "canary": null},
    }});
    cluster.patch_endpoint("drafts", &rolling).await;
    let has_next = |made: &kube::api::DynamicObject| made.data.to_string().contains("draft:next");
    cluster
        .becomes(Made::Deployment, "drafts", "story-draft", has_next)
        .await;
    cluster
        .endpoint_is("drafts", ROLLED_OUT, "True UpToDate")
        .await;
}
