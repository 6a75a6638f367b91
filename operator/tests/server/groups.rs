//! Targets that span pods, on an API server: nobody makes pods of their sets.

use foretoken_crds::status::condition::{ACCEPTED, PROGRESSING, TARGET_READY};
use foretoken_operator::Made;
use serde_json::json;

use crate::cluster::Cluster;

/// A device that is pretended, and then the definition of `LeaderWorkerSets` without its schema.
const PROFILE: &str = "apiVersion: foretoken.io/v1alpha1
kind: AcceleratorProfile
metadata: {name: pretended}
spec: {device: sim}
";
const SETS: &str = "apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: leaderworkersets.leaderworkerset.x-k8s.io}
spec:
  group: leaderworkerset.x-k8s.io
  names: {kind: LeaderWorkerSet, plural: leaderworkersets, singular: leaderworkerset}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
      subresources: {status: {}}
";
const SET: &str = "story-group";

pub(crate) async fn a_target_that_spans_pods_needs_sets_of_them(cluster: &Cluster) {
    let place = "tales";
    cluster.apply(PROFILE).await;
    let spread = json!({"parallelism": {"pipeline": 2}, "accelerator": {"profile": "pretended"}});
    let change = json!({"spec": {"target": spread}});
    cluster.patch_deployment(place, &change).await;
    let message = cluster
        .message_unread("deployment", place, "LeaderWorkerSetMissing")
        .await;
    assert!(message.contains("helm install lws"), "{message}");
    // What ran goes on.
    cluster
        .exists(Made::Deployment, place, "story-target")
        .await;

    // Once they are there it goes on by itself.
    cluster.apply(SETS).await;
    cluster.exists(Made::LeaderWorkerSet, place, SET).await;
    cluster
        .is_gone(Made::Deployment, place, "story-target")
        .await;
    cluster
        .deployment_is(place, ACCEPTED, "True Simulated")
        .await;
    let ready = json!({
        "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1,
        "conditions": [{
            "type": "Available", "status": "True", "reason": "AllGroupsReady",
            "message": "All replicas are ready", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }],
    });
    cluster
        .set_status(Made::LeaderWorkerSet, place, SET, &ready)
        .await;
    cluster
        .deployment_is(place, TARGET_READY, "True PodsReady")
        .await;
    let told = |status: &foretoken_crds::status::DeploymentStatus| {
        status.targets.as_deref() == Some("1/1") && status.replicas == Some(1)
    };
    cluster.status_of(place, told).await;
    // Its router has no pod.
    cluster
        .deployment_is(place, PROGRESSING, "True RollingOut")
        .await;

    let edited = json!({"spec": {"replicas": 5}});
    cluster
        .edit(Made::LeaderWorkerSet, place, SET, &edited)
        .await;
    let is_put_back = |set: &kube::api::DynamicObject| set.data["spec"]["replicas"] == 1;
    cluster
        .becomes(Made::LeaderWorkerSet, place, SET, is_put_back)
        .await;

    let whole = json!({"spec": {"target": {"parallelism": null, "accelerator": null}}});
    cluster.patch_deployment(place, &whole).await;
    cluster.is_gone(Made::LeaderWorkerSet, place, SET).await;
    cluster
        .exists(Made::Deployment, place, "story-target")
        .await;
    cluster
        .deployment_is(place, ACCEPTED, "True Accepted")
        .await;
}
