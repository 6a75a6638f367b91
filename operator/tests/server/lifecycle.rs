//! What changes while others serve.

use foretoken_crds::status::condition::PROGRESSING;
use foretoken_operator::Made;
use kube::api::DynamicObject;
use serde_json::json;

use crate::{SILENCE, cluster::Cluster};

/// Whoever waits for the end of what he has just asked for must not be told that it is there already.
pub(crate) async fn an_edit_is_complete_when_its_pods_are_and_not_before(cluster: &Cluster) {
    cluster.settles(SILENCE).await;
    let before = cluster.deployment("chat").await.metadata.generation;
    let two = json!({"spec": {"target": {"replicas": 2}}});
    let edited = async {
        cluster.patch_deployment("chat", &two).await;
        cluster
            .deployment_is("chat", PROGRESSING, "True RollingOut")
            .await;
        cluster.settles(SILENCE).await;
    };
    let told = cluster.progress_while("chat", edited).await;
    let early = told
        .iter()
        .filter(|(generation, said)| Some(*generation) > before && said == "False Complete");
    assert_eq!(early.count(), 0, "one of two targets is ready: {told:?}");
    let one = json!({"spec": {"target": {"replicas": 1}}});
    cluster.patch_deployment("chat", &one).await;
    cluster
        .deployment_is("chat", PROGRESSING, "False Complete")
        .await;
}

pub(crate) async fn edits_by_hand_are_undone(cluster: &Cluster) {
    let edit = json!({"spec": {"selector": {"foretoken.io/deployment": "nobody"}}});
    cluster
        .edit(Made::Service, "tales", "story-target", &edit)
        .await;
    cluster
        .becomes(Made::Service, "tales", "story-target", |service| {
            service.data["spec"]["selector"]["foretoken.io/deployment"] == "story"
        })
        .await;
    cluster
        .delete_made(Made::ConfigMap, "tales", "story-registry")
        .await;
    cluster
        .exists(Made::ConfigMap, "tales", "story-registry")
        .await;
    cluster.has_event("tales", "EditUndone").await;
}

/// An entry more selects no pods, lets others in, opens a port or is another container.
pub(crate) async fn what_somebody_adds_is_undone_where_it_means_something_else(cluster: &Cluster) {
    let (place, name) = ("tales", "story-target");
    let spec = async |kind| {
        let object = cluster.get(kind, place, name).await.unwrap();
        object.data["spec"].clone()
    };
    let label = json!({"metadata": {"labels": {"team": "x"}}});
    cluster.edit(Made::Service, place, name, &label).await;
    let service = spec(Made::Service).await;
    let mut more = service.clone();
    more["selector"]["pod"] = "none".into();
    let port = json!({"name": "more", "port": 9, "targetPort": 9, "protocol": "TCP"});
    let mut opened = service.clone();
    opened["ports"].as_array_mut().unwrap().push(port);
    let policy = spec(Made::NetworkPolicy).await;
    let mut open = policy.clone();
    open["ingress"][0]["from"][0]["namespaceSelector"] = json!({});
    let pods = spec(Made::Deployment).await;
    let mut other = pods.clone();
    let variables = other["template"]["spec"]["containers"][0]
        .as_object_mut()
        .unwrap();
    let variables = variables.entry("env").or_insert_with(|| json!([]));
    let variables = variables.as_array_mut().unwrap();
    variables.push(json!({"name": "FORETOKEN_ISA", "value": "scalar"}));
    for (kind, edited, wanted, field) in [
        (Made::Service, more, &service, "spec.selector.pod"),
        (Made::Service, opened, &service, "spec.ports"),
        (
            Made::NetworkPolicy,
            open,
            &policy,
            "spec.ingress[0].from[0].namespaceSelector",
        ),
        (
            Made::Deployment,
            other,
            &pods,
            "spec.template.spec.containers[0].env",
        ),
    ] {
        let edit = json!({"spec": edited});
        cluster.edit(kind, place, name, &edit).await;
        let is_put_back = |object: &DynamicObject| object.data["spec"] == *wanted;
        cluster.becomes(kind, place, name, is_put_back).await;
        // Each is told by itself.
        let said = format!("{kind:?} {name} at {field} was changed");
        cluster.has_note(place, "EditUndone", &said).await;
    }
    cluster.settles(SILENCE).await;
    let service = cluster.get(Made::Service, place, name).await.unwrap();
    let labels = service.metadata.labels.unwrap_or_default();
    assert_eq!(labels.get("team").map(String::as_str), Some("x"));
}

pub(crate) async fn the_scale_subresource_scales(cluster: &Cluster) {
    for (plural, namespace, made) in [
        ("specdecodedeployments", "chat", "story-target"),
        ("speculationendpoints", "drafts", "story-draft"),
    ] {
        for replicas in [3, 1] {
            cluster.scale(plural, namespace, replicas).await;
            cluster
                .becomes(Made::Deployment, namespace, made, |deployment| {
                    deployment.data["spec"]["replicas"] == replicas
                })
                .await;
        }
    }
}
