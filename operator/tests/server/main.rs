//! The operator against a real API server: etcd, kube-apiserver and the controllers that make pods of
//! Deployments and collect garbage. No node runs anything; the test says which pods are ready.
//!
//! The programs are those of `make cluster`. Without them nothing is tested, loudly; with
//! `FORETOKEN_TEST_CLUSTER=required` that is a failure.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

mod chance;
mod cluster;
mod control_plane;
mod cut;
mod grants;
mod groups;
mod lifecycle;
mod rolling;
mod service;
mod speaking;
mod troubles;

use std::time::Duration;

use foretoken_crds::status::condition::{ACCEPTED, ENDPOINTS_RESOLVED, READY};
use foretoken_operator::Made;
use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::json;
use tokio::sync::Mutex;

use cluster::{Cluster, Operator};
use control_plane::ControlPlane;

const EXAMPLE: &str = include_str!("../../../examples/shared-endpoint.yaml");

/// How long nothing may happen for it to count as silence.
const SILENCE: Duration = Duration::from_secs(6);

/// Whose control plane has the machine to itself, from its start until all that is written was counted: on a
/// busy machine watches may be later than an operator waits for them, and an object be written again.
static TURN: Mutex<()> = Mutex::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_becomes_what_its_objects_say_and_stays_so() {
    let turn = TURN.lock().await;
    let Some(control_plane) = ControlPlane::start() else {
        return;
    };
    let cluster = Cluster::connect(&control_plane).await;
    cluster.install_kinds().await;
    let operator = Operator::start_with_late_deployments(&cluster, "first");
    cluster.apply(EXAMPLE).await;

    everything_is_made(&cluster).await;
    cluster.settles(SILENCE).await;
    let mut written = cluster.object_writes_since(0);
    // What these say follows from objects that may come later.
    written.retain(|write| !write.ends_with("-registry") && !write.ends_with("-grants"));
    let twice = written.windows(2).filter(|pair| pair[0] == pair[1]);
    assert_eq!(
        twice.collect::<Vec<_>>(),
        [[""; 2]; 0],
        "each is written once, however late it is seen"
    );
    operator.stop().await;
    let before = cluster.writes();
    let operator = Operator::start(&cluster, "second");
    cluster.has_lease("second").await;
    tokio::time::sleep(SILENCE).await;
    assert_eq!(
        cluster.writes_since(before),
        [""; 0],
        "a second operator finds all done"
    );
    drop(turn);

    readiness_is_told(&cluster).await;
    lifecycle::an_edit_is_complete_when_its_pods_are_and_not_before(&cluster).await;
    speaking::what_services_say_is_told(&cluster).await;
    speaking::the_number_of_targets_follows_the_load(&cluster).await;
    troubles::each_has_its_reason_and_says_what_to_do(&cluster).await;
    troubles::a_pod_that_ends_again_and_again_makes_no_storm(&cluster).await;
    only_what_changed_is_written(&cluster).await;
    lifecycle::the_scale_subresource_scales(&cluster).await;
    let operator = rolling::a_draft_is_tried_beside_the_old_one(&cluster, operator).await;
    lifecycle::edits_by_hand_are_undone(&cluster).await;
    lifecycle::what_somebody_adds_is_undone_where_it_means_something_else(&cluster).await;
    a_policy_without_a_data_path_is_refused(&cluster).await;
    troubles::an_object_of_a_newer_definition_is_told_so_and_holds_nobody_up(&cluster).await;
    let operator = troubles::what_a_newer_definition_says_is_there_for_the_next_operator_too(
        &cluster, operator,
    )
    .await;
    troubles::a_model_of_the_same_name_is_told(&cluster).await;
    grants::are_needed(&cluster).await;
    groups::a_target_that_spans_pods_needs_sets_of_them(&cluster).await;
    services_have_certificates(&cluster).await;
    troubles::what_the_cluster_does_not_allow_is_told(&cluster).await;
    names_of_others_are_not_taken(&cluster).await;
    names_of_other_deployments_are_not_taken(&cluster).await;
    operator.stop().await;
    let operator = Operator::start(&cluster, "third");
    a_certificate_that_was_edited_is_issued_anew(&cluster).await;
    a_successor_that_was_asked_for_is_trusted_by_all(&cluster).await;
    what_is_deleted_takes_its_objects_along(&cluster).await;
    what_comes_again_has_a_certificate_of_its_own(&cluster).await;
    operator.stop().await;
    operators_take_turns(&cluster).await;
}

/// Objects of the example: kind, namespace and name.
fn made() -> Vec<(Made, &'static str, String)> {
    const OF_EACH: [Made; 6] = [
        Made::ServiceAccount,
        Made::ConfigMap,
        Made::Service,
        Made::NetworkPolicy,
        Made::PodDisruptionBudget,
        Made::Deployment,
    ];
    let mut all = Vec::new();
    let names = [
        ("drafts", "draft"),
        ("chat", "target"),
        ("chat", "router"),
        ("tales", "target"),
        ("tales", "router"),
    ];
    for (namespace, component) in names {
        all.extend(OF_EACH.map(|kind| (kind, namespace, format!("story-{component}"))));
    }
    for place in ["chat", "tales"] {
        all.extend(
            [Made::Role, Made::RoleBinding].map(|kind| (kind, place, "story-router".into())),
        );
    }
    all.push((Made::ConfigMap, "drafts", "story-grants".to_owned()));
    all.extend(
        ["chat", "tales"].map(|place| (Made::ConfigMap, place, "story-registry".to_owned())),
    );
    all
}

async fn everything_is_made(cluster: &Cluster) {
    for (kind, namespace, name) in made() {
        cluster.exists(kind, namespace, &name).await;
    }
    let count = cluster.count_made().await;
    assert_eq!(count, made().len(), "and nothing else");
    cluster
        .becomes(Made::ConfigMap, "chat", "story-registry", |registry| {
            let text = registry.data["data"]["registry.json"].as_str();
            text.unwrap().contains("http://story-draft.drafts.svc:7100")
        })
        .await;
    for place in ["chat", "tales"] {
        cluster
            .deployment_is(place, ACCEPTED, "True Accepted")
            .await;
        cluster
            .deployment_is(place, ENDPOINTS_RESOLVED, "True Resolved")
            .await;
        cluster
            .deployment_is(place, READY, "False NoTargetReady")
            .await;
    }
    cluster
        .endpoint_is("drafts", READY, "False NoDraftReady")
        .await;
    let endpoint = cluster.endpoint("drafts").await;
    assert_eq!(
        endpoint.metadata.finalizers.unwrap(),
        ["foretoken.io/drain"]
    );
}

async fn readiness_is_told(cluster: &Cluster) {
    cluster.make_pods_ready("drafts", 1).await;
    cluster.make_pods_ready("chat", 2).await;
    cluster
        .endpoint_is("drafts", READY, "True DraftReady")
        .await;
    cluster.deployment_is("chat", READY, "True Serving").await;
    cluster
        .deployment_is("chat", "Progressing", "False Complete")
        .await;
    cluster
        .deployment_is("tales", READY, "False NoTargetReady")
        .await;
    let status = cluster.deployment("chat").await.status.unwrap();
    assert_eq!(status.targets.as_deref(), Some("1/1"));
    assert_eq!(format!("{:?}", status.speculation.unwrap().state), "Active");
    let endpoint = cluster.endpoint("drafts").await.status.unwrap();
    assert_eq!(
        (endpoint.drafts.as_deref(), endpoint.slots),
        (Some("1/1"), Some(64))
    );
    cluster.has_event("chat", "Serving").await;
}

async fn only_what_changed_is_written(cluster: &Cluster) {
    cluster.settles(SILENCE).await;
    let before = cluster.writes();
    cluster
        .patch_deployment("chat", &json!({"spec": {"target": {"replicas": 2}}}))
        .await;
    cluster
        .status_of("chat", |status| status.targets.as_deref() == Some("1/2"))
        .await;
    cluster.settles(SILENCE).await;
    let written = cluster.object_writes_since(before);
    assert_eq!(written, ["patch chat/deployments/story-target"]);

    let before = cluster.writes();
    let policy = json!({"spec": {"speculation": {"policy": {"type": "Speculative"}}}});
    cluster.patch_deployment("chat", &policy).await;
    cluster
        .becomes(Made::ConfigMap, "chat", "story-target", |map| {
            map.data
                .to_string()
                .contains(r#"\"policy\": \"Speculative\""#)
        })
        .await;
    cluster.settles(SILENCE).await;
    let written = cluster.object_writes_since(before);
    let expected = [
        "patch chat/configmaps/story-target",
        "patch chat/deployments/story-target",
    ];
    assert_eq!(
        written, expected,
        "pods start anew with what they read at their start"
    );
    what_is_spelt_otherwise_is_not_written_again(cluster).await;
}

/// The API server keeps `cpu: 2` as "2", and what is false as nothing.
async fn what_is_spelt_otherwise_is_not_written_again(cluster: &Cluster) {
    let template = json!({"spec": {"hostNetwork": false, "containers": [
        {"name": "target", "resources": {"limits": {"cpu": 2, "memory": "1024Mi"}}},
    ]}});
    let with = json!({"spec": {"target": {"template": template}}});
    cluster.patch_deployment("chat", &with).await;
    cluster
        .becomes(Made::Deployment, "chat", "story-target", |deployment| {
            deployment.data.to_string().contains(r#""memory":"1Gi""#)
        })
        .await;
    cluster.settles(SILENCE).await;
    let told = cluster.events("chat").await;
    // A look at all of it.
    let replicas = json!({"spec": {"target": {"replicas": 3}}});
    cluster.patch_deployment("chat", &replicas).await;
    cluster
        .status_of("chat", |status| status.targets.as_deref() == Some("1/3"))
        .await;
    cluster.settles(SILENCE).await;
    assert_eq!(
        cluster.events("chat").await.get("EditUndone"),
        told.get("EditUndone")
    );
    let replicas = json!({"spec": {"target": {"replicas": 2, "template": null}}});
    cluster.patch_deployment("chat", &replicas).await;
    cluster
        .status_of("chat", |status| status.targets.as_deref() == Some("1/2"))
        .await;
}

async fn a_policy_without_a_data_path_is_refused(cluster: &Cluster) {
    let before = cluster
        .get(Made::Deployment, "chat", "story-target")
        .await
        .unwrap();
    let policy = json!({"spec": {"speculation": {"policy": {"type": "MirrorSD"}}}});
    cluster.patch_deployment("chat", &policy).await;
    cluster
        .deployment_is("chat", ACCEPTED, "False PolicyNotServed")
        .await;
    cluster.deployment_is("chat", READY, "True Serving").await;
    cluster.has_event("chat", "PolicyNotServed").await;
    let after = cluster
        .get(Made::Deployment, "chat", "story-target")
        .await
        .unwrap();
    assert_eq!(
        before.data["spec"], after.data["spec"],
        "what ran before goes on"
    );
    let policy = json!({"spec": {"speculation": {"policy": {"type": "SSD"}}}});
    cluster.patch_deployment("chat", &policy).await;
    cluster
        .deployment_is("chat", ACCEPTED, "True Accepted")
        .await;
}

async fn services_have_certificates(cluster: &Cluster) {
    let text = |secret: &DynamicObject, entry: &str| secret.data["data"][entry].to_string();
    let authority = cluster.get(Made::Secret, "default", "foretoken-ca").await;
    let bundle = text(&authority.unwrap(), "ca.crt");
    for (namespace, component) in [
        ("drafts", "draft"),
        ("chat", "target"),
        ("chat", "router"),
        ("tales", "target"),
        ("tales", "router"),
    ] {
        let name = format!("story-{component}-tls");
        let secret = cluster.get(Made::Secret, namespace, &name).await.unwrap();
        assert_eq!(secret.data["type"], "kubernetes.io/tls");
        assert_eq!(text(&secret, "ca.crt"), bundle, "{namespace}/{name}");
        let pods = cluster
            .get(Made::Deployment, namespace, &format!("story-{component}"))
            .await
            .unwrap();
        let volumes = pods.data["spec"]["template"]["spec"]["volumes"].to_string();
        assert!(volumes.contains(&name), "{volumes}");
    }
    // Somebody who edits one has it back when the operator looks again, which a new one does at once.
    let edit = json!({"data": {"tls.key": "bm8ga2V5"}});
    cluster
        .edit(Made::Secret, "chat", "story-target-tls", &edit)
        .await;
    let ask = json!({"metadata": {"annotations": {"foretoken.io/succeed": "now"}}});
    cluster
        .edit(Made::Secret, "default", "foretoken-ca", &ask)
        .await;
}

async fn a_successor_that_was_asked_for_is_trusted_by_all(cluster: &Cluster) {
    let is_done = |secret: &DynamicObject| {
        let entries = secret.data["data"].as_object().unwrap();
        let asked = secret.metadata.annotations.clone().unwrap_or_default();
        let keys = entries.keys().filter(|name| name.contains(".key"));
        keys.count() == 2 && !asked.contains_key("foretoken.io/succeed")
    };
    cluster
        .becomes(Made::Secret, "default", "foretoken-ca", is_done)
        .await;
    let authority = cluster.get(Made::Secret, "default", "foretoken-ca").await;
    let bundle = authority.unwrap().data["data"]["ca.crt"].clone();
    for (namespace, component) in [("drafts", "draft"), ("chat", "target"), ("tales", "router")] {
        let name = format!("story-{component}-tls");
        let trusts = |secret: &DynamicObject| secret.data["data"]["ca.crt"] == bundle;
        cluster
            .becomes(Made::Secret, namespace, &name, trusts)
            .await;
    }
}

async fn a_certificate_that_was_edited_is_issued_anew(cluster: &Cluster) {
    cluster
        .becomes(Made::Secret, "chat", "story-target-tls", |secret| {
            secret.data["data"]["tls.key"] != "bm8ga2V5"
        })
        .await;
}

/// Applies a deployment of `chat` that is to be refused a name that is somebody else's; whose that is, as
/// it is then.
async fn is_refused_a_name(
    cluster: &Cluster,
    text: &str,
    name: &str,
    (kind, theirs): (Made, &str),
) -> DynamicObject {
    cluster.apply(text).await;
    cluster
        .condition_is("chat", name, ACCEPTED, "False NameTaken")
        .await;
    cluster.get(kind, "chat", theirs).await.unwrap()
}

async fn names_of_others_are_not_taken(cluster: &Cluster) {
    cluster
        .apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: mine-target, namespace: chat}\ndata: {a: b}\n")
        .await;
    let text = EXAMPLE
        .split("---\n")
        .find(|text| text.contains("SpecDecodeDeployment") && text.contains("namespace: chat"))
        .unwrap();
    let text = text.replace("name: story\n", "name: mine\n");
    let theirs = (Made::ConfigMap, "mine-target");
    let theirs = is_refused_a_name(cluster, &text, "mine", theirs).await;
    assert_eq!(theirs.data["data"], json!({"a": "b"}));
    cluster.delete_deployment("chat", "mine").await;
    // Of Secrets too, which are never listed.
    cluster
        .apply("apiVersion: v1\nkind: Secret\nmetadata: {name: ours-router-tls, namespace: chat}\nstringData: {a: b}\n")
        .await;
    let text = text.replace("name: mine\n", "name: ours\n");
    let theirs = (Made::Secret, "ours-router-tls");
    let theirs = is_refused_a_name(cluster, &text, "ours", theirs).await;
    assert_eq!(theirs.data["data"], json!({"a": "Yg=="}));
    cluster.delete_deployment("chat", "ours").await;
}

/// Two deployments may come to the same name for an endpoint of theirs.
async fn names_of_other_deployments_are_not_taken(cluster: &Cluster) {
    let deployment = |name: &str, templates: usize| {
        let template = "{template: {model: {uri: 'oci://story-draft:dev'}, replicas: 0}}";
        let endpoints = [template].repeat(templates).join(", ");
        format!(
            "apiVersion: foretoken.io/v1alpha1\nkind: SpecDecodeDeployment\nmetadata: {{name: {name}, namespace: chat}}\n\
             spec: {{model: {{uri: 'oci://story-target:dev'}}, target: {{replicas: 0}}, router: {{replicas: 0}},\n  \
             speculation: {{policy: {{type: SSD}}, endpoints: [{endpoints}]}}}}\n"
        )
    };
    cluster.apply(&deployment("twin", 2)).await;
    cluster
        .exists(Made::SpeculationEndpoint, "chat", "twin-2")
        .await;
    let theirs = (Made::SpeculationEndpoint, "twin-2");
    let theirs = is_refused_a_name(cluster, &deployment("twin-2", 1), "twin-2", theirs).await;
    let owners = theirs.metadata.owner_references.unwrap_or_default();
    assert_eq!(owners[0].name, "twin");
    for name in ["twin-2", "twin"] {
        cluster.delete_deployment("chat", name).await;
    }
}

async fn what_is_deleted_takes_its_objects_along(cluster: &Cluster) {
    // Two deployments use the endpoint: it stays until their targets have heard.
    cluster.delete_endpoint("drafts").await;
    cluster
        .deployment_is("tales", ENDPOINTS_RESOLVED, "False EndpointDeleting")
        .await;
    cluster
        .exists(Made::Deployment, "drafts", "story-draft")
        .await;
    for place in ["chat", "tales"] {
        cluster.delete_deployment(place, "story").await;
    }
    // Nobody is left who would have to hear.
    for (kind, namespace, name) in made() {
        cluster.is_gone(kind, namespace, &name).await;
    }
}

async fn what_comes_again_has_a_certificate_of_its_own(cluster: &Cluster) {
    let text = EXAMPLE
        .split("---\n")
        .find(|text| text.contains("kind: SpeculationEndpoint"))
        .unwrap();
    let owner = |secret: &DynamicObject| secret.owner_references()[0].uid.clone();
    cluster.apply(text).await;
    let secret = (Made::Secret, "drafts", "story-draft-tls");
    cluster.exists(secret.0, secret.1, secret.2).await;
    let first = cluster.get(secret.0, secret.1, secret.2).await.unwrap();
    cluster.delete_endpoint("drafts").await;
    cluster
        .is_gone(Made::Deployment, "drafts", "story-draft")
        .await;
    cluster.apply(text).await;
    cluster
        .becomes(secret.0, secret.1, secret.2, |secret| {
            owner(secret) != owner(&first)
        })
        .await;
    cluster.delete_endpoint("drafts").await;
    for (kind, namespace, name) in made() {
        cluster.is_gone(kind, namespace, &name).await;
    }
}

async fn operators_take_turns(cluster: &Cluster) {
    let first = Operator::start(cluster, "a");
    cluster.has_lease("a").await;
    let second = Operator::start(cluster, "b");
    tokio::time::sleep(SILENCE).await;
    cluster.has_lease("a").await;
    cluster.steal_lease("c").await;
    let lost = first.ended().await.unwrap_err().to_string();
    assert!(lost.contains("c holds it"), "{lost}");
    cluster.steal_lease("").await;
    cluster.has_lease("b").await;
    second.stop().await;
}
