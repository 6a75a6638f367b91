use serde_json::{Value, json};

use super::*;

fn pod(status: &Value) -> Pod {
    let pod =
        json!({"metadata": {"name": "story-target-1", "namespace": "chat"}, "status": status});
    serde_json::from_value(pod).expect("a pod")
}

fn container(name: &str, state: &Value, last: &Value) -> Value {
    json!([{
        "name": name, "image": "foretoken:1", "imageID": "", "ready": false, "restartCount": 3,
        "state": state, "lastState": last,
    }])
}

fn waiting(name: &str, reason: &str, message: &str) -> Value {
    let state = json!({"waiting": {"reason": reason, "message": message}});
    container(name, &state, &json!({}))
}

fn ended(name: &str, reason: &str, message: &str) -> Value {
    let last = json!({"terminated": {"exitCode": 1, "reason": reason, "message": message}});
    container(
        name,
        &json!({"waiting": {"reason": "CrashLoopBackOff"}}),
        &last,
    )
}

/// Reason and message of a pod in this status.
fn told(status: &Value) -> (&'static str, String) {
    let (_, trouble) = of_pod(&pod(status)).expect("a trouble");
    (trouble.reason, trouble.message)
}

/// A pod that cannot be placed.
fn unplaced(message: &str) -> Value {
    json!({"phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
    }]})
}

fn evicted(message: &str) -> Value {
    json!({"phase": "Failed", "reason": "Evicted", "message": message})
}

/// A pod whose model did not come.
fn not_fetched(said: &str) -> Value {
    json!({"phase": "Pending", "initContainerStatuses": ended("model", "Error", said)})
}

fn serving(container: &Value) -> Value {
    json!({"phase": "Running", "containerStatuses": container})
}

/// Asserts that a pod in this status has this reason, and that the message says this.
fn check(status: &Value, reason: &str, says: &str) {
    let (found, message) = told(status);
    assert_eq!(found, reason, "{message}");
    assert!(message.contains(says), "{reason}: {message}");
}

#[test]
fn a_pod_without_a_place_says_what_is_short() {
    let gpus = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.";
    check(&unplaced(gpus), "Unschedulable", "add or free nodes");
    let claim = "persistentvolumeclaim \"weights\" not found";
    check(
        &unplaced(claim),
        "ClaimNotFound",
        "create the PersistentVolumeClaim",
    );
    let disk = "Pod ephemeral local storage usage exceeds the total limit";
    check(&evicted(disk), "VolumeFull", "pvc://");
    check(
        &evicted("The node was low on resource: memory"),
        "Evicted",
        "memory",
    );
}

#[test]
fn a_container_that_is_not_made_says_of_what() {
    let pull = serving(&waiting("target", "ErrImagePull", "no such image"));
    check(&pull, "ImagePullFailed", "foretoken:1: no such image");
    let secret = serving(&waiting(
        "target",
        "CreateContainerConfigError",
        "secret \"x\" not found",
    ));
    check(&secret, "ContainerNotCreated", "secret \"x\" not found");
}

#[test]
fn a_container_that_ends_says_why() {
    for (said, reason, says) in [
        (
            "the hub at h has no a/b; check owner, name and revision",
            "ModelNotFound",
            "correct spec.model",
        ),
        (
            "the hub at h refuses access to a/b",
            "ModelForbidden",
            "foretoken-hub-token",
        ),
        (
            "the disk of /models/x is full: 12 more bytes are needed",
            "VolumeFull",
            "ephemeral storage",
        ),
        (
            "cannot fetch a/b from h: timed out",
            "HubUnreachable",
            "tried again",
        ),
        ("damaged", "ModelNotFetched", "exit code 1: damaged"),
    ] {
        check(
            &not_fetched(&format!("a log\nerror: {said}\n")),
            reason,
            says,
        );
    }
    let folder = "error: model folder /models/x does not exist or is not a folder";
    check(
        &serving(&ended("target", "Error", folder)),
        "ModelNotFound",
        "correct spec.model",
    );
    check(
        &serving(&ended("target", "OOMKilled", "")),
        "OutOfMemory",
        "raise its limit",
    );
    let logs = "`kubectl logs story-target-1 -c target --previous`";
    check(
        &serving(&ended("target", "Error", "error: cannot listen")),
        "CrashLooping",
        logs,
    );
}

#[test]
fn what_goes_back_and_forth_is_told_in_one_way() {
    let detail = "rpc error: not found";
    let first = told(&json!({"containerStatuses": waiting("target", "ErrImagePull", detail)}));
    let text = format!("Back-off pulling image \"x\": ErrImagePull: {detail}");
    let second = told(&json!({"containerStatuses": waiting("target", "ImagePullBackOff", &text)}));
    assert_eq!(first, second);
    let end = json!({"terminated": {"exitCode": 1, "message": "error: no"}});
    let states = [
        (end.clone(), json!({})),
        (
            json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}),
            end.clone(),
        ),
        (json!({"running": {}}), end),
    ];
    let told = states.map(|(state, last)| {
        told(&json!({"containerStatuses": container("target", &state, &last)}))
    });
    assert!(
        told.iter()
            .all(|one| one.0 == "CrashLooping" && *one == told[0])
    );
}

#[test]
fn pods_that_serve_start_or_go_have_no_trouble() {
    let crashed = ended("target", "Error", "error: once");
    for status in [
        json!({"phase": "Running", "containerStatuses": crashed, "conditions": [{"type": "Ready", "status": "True"}]}),
        json!({"phase": "Pending", "containerStatuses": waiting("target", "ContainerCreating", "")}),
        json!({"phase": "Pending", "initContainerStatuses": container("model", &json!({"terminated": {"exitCode": 0}}), &json!({}))}),
        json!({}),
    ] {
        assert_eq!(of_pod(&pod(&status)), None, "{status}");
    }
    let mut going = pod(&json!({"containerStatuses": crashed}));
    going.metadata.deletion_timestamp =
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).expect("a time");
    assert_eq!(of_pod(&going), None);
}
