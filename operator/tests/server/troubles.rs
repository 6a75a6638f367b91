//! Whatever keeps something from being served is told with its cause and what to do.

use foretoken_crds::{
    Kind,
    status::condition::{ACCEPTED, READY, TARGET_READY},
};
use serde_json::{Value, json};

use crate::{EXAMPLE, cluster::Cluster};

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

pub(crate) async fn an_object_of_a_newer_definition_is_told_so_and_holds_nobody_up(
    cluster: &Cluster,
) {
    let definition = Kind::SpecDecodeDeployment.yaml();
    let line = definition.lines().find(|line| line.trim() == "- SpecPipe");
    let line = line.unwrap();
    let newer = definition.replacen(
        line,
        &format!("{line}\n{}", line.replace("SpecPipe", "Hydra")),
        1,
    );
    cluster.apply(&newer).await;
    let hydra = json!({"spec": {"speculation": {"policy": {"type": "Hydra"}}}});
    cluster.patch_deployment_when_valid("tales", &hydra).await;
    let message = cluster.message_unread("tales", "NotUnderstood").await;
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
    cluster.apply(&definition).await;
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
