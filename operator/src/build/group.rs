//! Targets that span pods: a `LeaderWorkerSet`, whose groups are made, replaced and rolled whole.
//!
//! Leaders are what routers find: they have the component's own labels. Workers have other ones, so
//! that no Service means them, and serve nobody.

use serde_json::{Value, json};

use super::{Component, METRICS, TARGET, WORKER};
use crate::{
    object::{COMPONENT, Made, Object, Owner},
    shape::Shape,
};

/// Longest name of a deployment whose targets span pods: the `LeaderWorkerSet` is called after it, its
/// `StatefulSets` after that, and their revisions are labels.
pub(crate) const LONGEST_NAME: usize = 40;

/// Name of the `LeaderWorkerSet` of `owner`; and, made by its controller, of the Service by whose name
/// pods of a group find each other.
pub(crate) fn name(owner: &Owner) -> String {
    format!("{}-group", owner.name)
}

/// Arguments by which a pod knows its place in its group. The variables are set by the controller of
/// `LeaderWorkerSets`.
pub(super) fn arguments(shape: Shape) -> [String; 3] {
    [
        format!("--group-size={}", shape.pods),
        "--group-rank=$(LWS_WORKER_INDEX)".to_owned(),
        "--group-leader=$(LWS_LEADER_ADDRESS)".to_owned(),
    ]
}

/// `replicas` groups of pods of `template`; `scarce`: there may be no devices for one more.
pub(super) fn set(
    target: &Component<'_>,
    replicas: u32,
    shape: Shape,
    template: &Value,
    scarce: bool,
) -> Object {
    let (surge, unavailable) = if scarce { (0, 1) } else { (1, 0) };
    let content = json!({"spec": {
        "replicas": replicas,
        "startupPolicy": "LeaderCreated",
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {"maxSurge": surge, "maxUnavailable": unavailable},
        },
        "leaderWorkerTemplate": {
            "size": shape.pods,
            // A group without one of its pods cannot compute.
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": template,
            "workerTemplate": of_workers(template),
        },
    }});
    let owner = target.owner;
    owner.object(Made::LeaderWorkerSet, TARGET, &name(owner), &content)
}

/// The template of leaders, with the labels of workers.
fn of_workers(template: &Value) -> Value {
    let mut template = template.clone();
    template["metadata"]["labels"][COMPONENT] = WORKER.into();
    let spread =
        template.pointer_mut("/spec/topologySpreadConstraints/0/labelSelector/matchLabels");
    if let Some(labels) = spread {
        labels[COMPONENT] = WORKER.into();
    }
    template
}

/// Nobody dials workers, but for metrics and health.
pub(super) fn network_policy(owner: &Owner) -> Object {
    let content = json!({"spec": {
        "podSelector": {"matchLabels": owner.selector(WORKER)},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [{"protocol": "TCP", "port": METRICS}]}],
    }});
    let name = format!("{}-{WORKER}", owner.name);
    owner.object(Made::NetworkPolicy, WORKER, &name, &content)
}

/// One pod at a time may be evicted, whatever it is in its group: each takes its group along; and any that
/// serves nobody.
pub(super) fn disruption_budget(target: &Component<'_>) -> Object {
    let mut labels = target.owner.selector(TARGET);
    labels.remove(COMPONENT);
    let content = json!({"spec": {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {
            "matchLabels": labels,
            "matchExpressions": [{"key": COMPONENT, "operator": "In", "values": [TARGET, WORKER]}],
        },
    }});
    target.object(Made::PodDisruptionBudget, &content)
}
