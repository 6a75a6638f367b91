//! Whatever keeps something from being served is told with its cause and what to do.

use std::collections::BTreeMap;

use foretoken_crds::{
    Kind,
    status::condition::{ACCEPTED, ENDPOINTS_RESOLVED, PROGRESSING, READY, TARGET_READY},
};
use foretoken_operator::Made;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use crate::{
    EXAMPLE, SILENCE,
    cluster::{Cluster, Operator},
};

/// A profile that changes nothing about pods.
const CORES: &str = "\
apiVersion: foretoken.io/v1alpha1
kind: AcceleratorProfile
metadata: {name: cores}
spec: {device: cpu}
";

/// An endpoint that only a newer release understands, and that was used.
const LEAVING: &str = "\
apiVersion: foretoken.io/v1alpha1
kind: SpeculationEndpoint
metadata: {name: leaving, namespace: chat, finalizers: [foretoken.io/drain]}
spec: {model: {uri: 'file:///models/tiny'}, dtype: int2}
";

/// Secrets of a deployment that is not understood, of an endpoint that is not, and of one whose profile
/// is not: namespace and name.
const CERTIFICATES: [(&str, &str); 3] = [
    ("tales", "story-target-tls"),
    ("drafts", "story-draft-tls"),
    ("chat", "story-router-tls"),
];

/// Status of a pod that is not ready, with these containers.
fn status(init: &Value, main: &Value) -> Value {
    json!({"status": {
        "phase": "Pending",
        "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        "initContainerStatuses": init,
        "containerStatuses": main,
    }})
}

fn container(name: &str, state: &Value, last: &Value) -> Value {
    json!([{
        "name": name, "image": "foretoken:1", "imageID": "", "ready": false, "restartCount": 2,
        "state": state, "lastState": last,
    }])
}

fn ended(name: &str, said: &str) -> Value {
    let end = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": said}});
    container(
        name,
        &json!({"waiting": {"reason": "CrashLoopBackOff"}}),
        &end,
    )
}

pub(crate) async fn each_has_its_reason_and_says_what_to_do(cluster: &Cluster) {
    let none = json!([]);
    let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
    let mut unplaced = status(&none, &none);
    unplaced["status"]["conditions"] = json!([{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/1 nodes are available: 1 Insufficient cpu.",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]);
    for (status, reason, says) in [
        (unplaced, "Unschedulable", "add or free nodes"),
        (
            status(&none, &container("target", &waiting, &json!({}))),
            "ImagePullFailed",
            "imagePullSecrets",
        ),
        (
            status(
                &ended(
                    "model",
                    "error: the disk of /models/hub is full: 9 more bytes are needed",
                ),
                &none,
            ),
            "VolumeFull",
            "ephemeral storage",
        ),
        (
            status(
                &ended(
                    "model",
                    "error: the hub at h has no a/b; check owner, name and revision",
                ),
                &none,
            ),
            "ModelNotFound",
            "correct spec.model",
        ),
        (
            status(&none, &ended("target", "error: no such flag")),
            "CrashLooping",
            "-c target --previous",
        ),
    ] {
        cluster.set_pods("chat", "target", &status).await;
        let expected = format!("False {reason}");
        cluster.deployment_is("chat", TARGET_READY, &expected).await;
        cluster
            .deployment_is("chat", READY, "False NoTargetReady")
            .await;
        let message = cluster.message("chat", TARGET_READY).await;
        assert!(message.contains(says), "{reason}: {message}");
        assert!(cluster.message("chat", READY).await.contains(says));
        cluster.has_event("chat", reason).await;
    }
    let fine = status(&none, &none);
    cluster.set_pods("chat", "target", &fine).await;
    cluster.make_pods_ready("chat", 2).await;
    cluster.deployment_is("chat", READY, "True Serving").await;
}

/// A pod that ends again and again is told of once, however often it is looked at and whatever it says;
/// one that serves in between, in one Event for each of the things that are told by turns.
pub(crate) async fn a_pod_that_ends_again_and_again_makes_no_storm(cluster: &Cluster) {
    const CRASHES: u32 = 30;
    const TURNS: usize = 8;
    let none = json!([]);
    let reason = "CrashLooping";
    cluster.settles(SILENCE).await;
    let before = cluster.events("chat").await;
    for crash in 1..=CRASHES {
        let end = json!({"terminated": {
            "exitCode": 1, "reason": "Error", "message": format!("error: crash number {crash}"),
        }});
        let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        for (state, last) in [(&running, &end), (&end, &end), (&waiting, &end)] {
            let status = status(&none, &container("target", state, last));
            cluster.set_pods("chat", "target", &status).await;
        }
    }
    cluster.settles(SILENCE).await;
    let expected = "False CrashLooping";
    cluster.deployment_is("chat", TARGET_READY, expected).await;
    let message = cluster.message("chat", TARGET_READY).await;
    assert!(
        message.contains(&format!("crash number {CRASHES}")),
        "{message}"
    );
    let after = cluster.events("chat").await;
    let told =
        |events: &BTreeMap<String, Vec<i32>>| events.get(reason).map_or(0, |all| all.iter().sum());
    assert_eq!(
        told(&after) - told(&before),
        1,
        "{after:?}, before {before:?}"
    );

    let ended = status(&none, &ended("target", "error: no such flag"));
    let (mut before, mut writes) = (after, cluster.writes());
    for turn in 0..=TURNS {
        cluster
            .set_pods("chat", "target", &status(&none, &none))
            .await;
        cluster.make_pods_ready("chat", 2).await;
        cluster.deployment_is("chat", READY, "True Serving").await;
        cluster.set_pods("chat", "target", &ended).await;
        cluster.deployment_is("chat", TARGET_READY, expected).await;
        if turn == 0 {
            cluster.settles(SILENCE).await;
            (before, writes) = (cluster.events("chat").await, cluster.writes());
        }
    }
    let events = cluster.events("chat").await;
    for (reason, all) in &events {
        let known = before.get(reason).map_or(0, Vec::len);
        assert!(
            all.len() <= known.max(1),
            "{reason} is told anew each time: {events:?}"
        );
    }
    let mut written = cluster.writes_since(writes);
    written.retain(|write| write.contains("/events/"));
    // That it serves, that it does not, why, and the same of speculation.
    assert!(written.len() <= TURNS * 5, "{written:?}");
    cluster
        .set_pods("chat", "target", &status(&none, &none))
        .await;
    cluster.make_pods_ready("chat", 2).await;
    cluster.deployment_is("chat", READY, "True Serving").await;
}

/// A quota that is no mistake of the object's is told all the same, and when it is gone all is well.
pub(crate) async fn what_the_cluster_does_not_allow_is_told(cluster: &Cluster) {
    let deployment = |served: &str| {
        format!(
            "apiVersion: foretoken.io/v1alpha1\nkind: SpecDecodeDeployment\nmetadata: {{name: short, namespace: tales}}\n\
             spec: {{model: {{uri: 'oci://story-target:dev', servedName: {served}}}, target: {{replicas: 0}},\n  \
             router: {{replicas: 0}}, speculation: {{policy: {{type: Autoregressive}}}}}}\n"
        )
    };
    let says = async |condition: &str, expected: &str| {
        cluster
            .condition_is("tales", "short", condition, expected)
            .await;
    };
    cluster.allow_services("tales", false).await;
    cluster.apply(&deployment("one")).await;
    says(PROGRESSING, "True ApplyFailed").await;
    cluster.allow_services("tales", true).await;
    // A look at it.
    cluster.apply(&deployment("two")).await;
    says(PROGRESSING, "False Complete").await;
    says(ACCEPTED, "True Accepted").await;
    cluster.delete_deployment("tales", "short").await;
}

pub(crate) async fn an_object_of_a_newer_definition_is_told_so_and_holds_nobody_up(
    cluster: &Cluster,
) {
    let newer = newer(Kind::SpecDecodeDeployment, "SpecPipe", "Hydra");
    cluster.apply(&newer).await;
    let hydra = json!({"spec": {"speculation": {"policy": {"type": "Hydra"}}}});
    cluster.patch_deployment_when_valid("tales", &hydra).await;
    let message = cluster
        .message_unread("deployment", "tales", "NotUnderstood")
        .await;
    assert!(
        message.contains("Hydra") && message.contains("run the operator of the release"),
        "{message}"
    );
    // Others are looked at as ever.
    let scale = json!({"spec": {"target": {"replicas": 3}}});
    cluster.patch_deployment("chat", &scale).await;
    cluster
        .status_of("chat", |status| status.targets.as_deref() == Some("1/3"))
        .await;
    let known = json!({"spec": {"speculation": {"policy": {"type": "Speculative"}}}});
    cluster.patch_deployment("tales", &known).await;
    cluster
        .deployment_is("tales", ACCEPTED, "True Accepted")
        .await;
    cluster.apply(&Kind::SpecDecodeDeployment.yaml()).await;
}

/// A definition of `kind` that allows `new` where this release knows `old` alone.
fn newer(kind: Kind, old: &str, new: &str) -> String {
    let definition = kind.yaml();
    let known = format!("- {old}");
    let line = definition.lines().find(|line| line.trim() == known);
    let line = line.unwrap();
    let both = format!("{line}\n{}", line.replace(old, new));
    definition.replacen(line, &both, 1)
}

/// Kinds, with what they say now and what a newer release says.
const KINDS: [(Kind, &str, &str); 3] = [
    (Kind::SpecDecodeDeployment, "SpecPipe", "Hydra"),
    (Kind::SpeculationEndpoint, "int8", "int2"),
    (Kind::AcceleratorProfile, "sim", "tpu"),
];

/// An endpoint, a deployment and a profile become what only a newer release understands, and the
/// operator is replaced meanwhile: nobody is told that they are not there, and all that was made stays.
pub(crate) async fn what_a_newer_definition_says_is_there_for_the_next_operator_too(
    cluster: &Cluster,
    operator: Operator,
) -> Operator {
    uses_profile(cluster, &json!({"profile": "cores"})).await;
    cluster.settles(SILENCE).await;
    let before = cluster.writes();
    becomes_newer(cluster).await;
    is_told(cluster).await;
    cluster
        .deployment_is("chat", ACCEPTED, "True Accepted")
        .await;
    cluster.settles(SILENCE).await;
    operator.stop().await;

    let edit = json!({"data": {"tls.key": "bm8ga2V5"}});
    for (namespace, secret) in CERTIFICATES {
        cluster.edit(Made::Secret, namespace, secret, &edit).await;
    }
    // Nobody is there to let it go.
    cluster.apply_when_valid(LEAVING).await;
    let endpoint = Made::SpeculationEndpoint;
    cluster.delete_made(endpoint, "chat", "leaving").await;
    cluster.exists(endpoint, "chat", "leaving").await;

    let operator = Operator::start(cluster, "older");
    cluster.has_lease("older").await;
    cluster.is_gone(endpoint, "chat", "leaving").await;
    for (namespace, secret) in CERTIFICATES {
        let is_new = |secret: &DynamicObject| secret.data["data"]["tls.key"] != "bm8ga2V5";
        cluster
            .becomes(Made::Secret, namespace, secret, is_new)
            .await;
    }
    cluster
        .deployment_is("chat", ACCEPTED, "False ProfileNotUnderstood")
        .await;
    let message = cluster.message("chat", ACCEPTED).await;
    assert!(
        message.contains("cores") && message.contains("tpu"),
        "{message}"
    );
    is_told(cluster).await;
    cluster.settles(SILENCE).await;
    let mut written = cluster.object_writes_since(before);
    // Certificates that were renewed, and pods that are told so.
    let is_other = |write: &String| {
        ["/secrets/", "/pods/", "/leaving"]
            .iter()
            .all(|part| !write.contains(part))
    };
    written.retain(is_other);
    assert_eq!(written, [""; 0], "what was made is not changed or removed");
    let used = cluster.get(endpoint, "drafts", "story").await.unwrap();
    assert_eq!(used.metadata.finalizers.unwrap(), ["foretoken.io/drain"]);
    is_understood_again(cluster).await;
    operator
}

async fn uses_profile(cluster: &Cluster, accelerator: &Value) {
    cluster.apply(CORES).await;
    let change = json!({"spec": {"target": {"accelerator": accelerator}}});
    cluster.patch_deployment("chat", &change).await;
    cluster
        .deployment_is("chat", ACCEPTED, "True Accepted")
        .await;
}

async fn becomes_newer(cluster: &Cluster) {
    for (kind, old, new) in KINDS {
        cluster.apply(&newer(kind, old, new)).await;
    }
    let hydra = json!({"spec": {"speculation": {"policy": {"type": "Hydra"}}}});
    cluster.patch_deployment_when_valid("tales", &hydra).await;
    let int2 = json!({"spec": {"dtype": "int2"}});
    cluster.patch_endpoint_when_valid("drafts", &int2).await;
    let tpu = CORES.replace("device: cpu", "device: tpu");
    cluster.apply_when_valid(&tpu).await;
}

/// Whoever is not understood is told so, and nobody else notices.
async fn is_told(cluster: &Cluster) {
    for (kind, namespace) in [("deployment", "tales"), ("endpoint", "drafts")] {
        let message = cluster.message_unread(kind, namespace, "NotUnderstood");
        let message = message.await;
        assert!(
            message.contains("run the operator of the release"),
            "{message}"
        );
    }
    cluster
        .deployment_is("chat", ENDPOINTS_RESOLVED, "True Resolved")
        .await;
}

async fn is_understood_again(cluster: &Cluster) {
    let known = json!({"spec": {"speculation": {"policy": {"type": "Speculative"}}}});
    cluster.patch_deployment_when_valid("tales", &known).await;
    let known = json!({"spec": {"dtype": "int8"}});
    cluster.patch_endpoint_when_valid("drafts", &known).await;
    uses_profile(cluster, &Value::Null).await;
    cluster
        .deployment_is("tales", ACCEPTED, "True Accepted")
        .await;
    cluster
        .endpoint_is("drafts", ACCEPTED, "True Accepted")
        .await;
    for (kind, ..) in KINDS {
        cluster.apply(&kind.yaml()).await;
    }
}

pub(crate) async fn a_model_of_the_same_name_is_told(cluster: &Cluster) {
    let text = EXAMPLE
        .split("---\n")
        .find(|text| text.contains("SpecDecodeDeployment") && text.contains("namespace: tales"))
        .unwrap();
    let twin = text.replace("name: story\n  namespace", "name: twin\n  namespace");
    cluster.apply(&twin).await;
    let shared = "True ServedNameShared";
    cluster
        .condition_is("tales", "twin", ACCEPTED, shared)
        .await;
    cluster.deployment_is("tales", ACCEPTED, shared).await;
    let message = cluster.message("tales", ACCEPTED).await;
    assert!(message.contains("twin of this namespace"), "{message}");
    cluster.delete_deployment("tales", "twin").await;
    cluster
        .deployment_is("tales", ACCEPTED, "True Accepted")
        .await;
}
