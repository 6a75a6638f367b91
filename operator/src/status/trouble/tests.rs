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
fn a_model_whose_image_is_not_there_is_told_from_the_image_that_serves_it() {
    let told = |reason: &str, said: &str| {
        let status =
            json!({"phase": "Pending", "containerStatuses": waiting("target", reason, said)});
        let mut pod = pod(&status);
        let volumes = json!([
            {"name": "service", "configMap": {"name": "story-target"}},
            {"name": "model", "image": {"reference": "story-draft:next"}},
        ]);
        pod.spec =
            serde_json::from_value(json!({"containers": [], "volumes": volumes})).expect("a spec");
        of_pod(&pod).expect("a trouble").1
    };
    // What nodes say of volumes is said of the container that mounts them.
    for (reason, said) in [
        (
            "ErrImageNeverPull",
            "Container image \"story-draft:next\" is not present with pull policy of Never",
        ),
        (
            "ErrImagePull",
            "failed to pull and unpack image \"docker.io/library/story-draft:next\": not found",
        ),
        (
            "ImagePullBackOff",
            "Back-off pulling image \"story-draft:next\": ErrImagePull: not found",
        ),
    ] {
        let Trouble { reason, message } = told(reason, said);
        assert_eq!(reason, "ImagePullFailed");
        let start = "pod story-target-1 cannot have the model's image story-draft:next: ";
        assert!(message.starts_with(start), "{message}");
        assert!(message.contains("correct it (spec.model.uri)"), "{message}");
    }
    let said = "Container image \"foretoken:1\" is not present with pull policy of Never";
    let message = told("ErrImageNeverPull", said).message;
    assert!(
        message.contains("cannot have image foretoken:1: "),
        "{message}"
    );
    assert!(!message.contains("spec.model"), "{message}");
    // A name that only ends alike is another one.
    let other = "Back-off pulling image \"another-story-draft:next\"";
    let message = told("ImagePullBackOff", other).message;
    assert!(
        message.contains("cannot have image foretoken:1: "),
        "{message}"
    );
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
fn a_process_that_cannot_be_started_is_told_in_one_way() {
    let said = "exec: \"foretoken\": executable file not found in $PATH";
    for reason in ["StartError", "ContainerCannotRun"] {
        let end = json!({"terminated": {"exitCode": 128, "reason": reason, "message": said}});
        let fails = json!({"waiting": {"reason": "RunContainerError", "message": said}});
        let waits = json!({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}});
        let states = [
            (&fails, &json!({})),
            (&fails, &end),
            (&waits, &end),
            (&end, &json!({})),
        ];
        let told = states.map(|(state, last)| {
            told(&json!({"containerStatuses": container("target", state, last)}))
        });
        let (first, message) = &told[0];
        assert_eq!(*first, "ContainerNotCreated");
        assert!(message.contains("executable file not found"), "{message}");
        assert!(told.iter().all(|one| *one == told[0]), "{told:?}");
    }
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

#[test]
fn a_certificate_that_is_not_issued_names_whom_to_ask() {
    let said = |conditions: Value| {
        let certificate = json!({
            "spec": {"issuerRef": {"group": "cert-manager.io", "kind": "ClusterIssuer", "name": "internal"}},
            "status": {"conditions": conditions},
        });
        of_certificate("story-target", &certificate)
    };
    let message = |conditions| said(conditions).expect("a trouble").message;
    let ready = |status: &str| json!({"type": "Ready", "status": status, "reason": "DoesNotExist", "message": "Secret does not exist"});
    assert_eq!(said(json!([ready("True")])), None);
    let waiting = said(json!([ready("False")])).expect("a trouble");
    assert_eq!(waiting.reason, "CertificateNotIssued");
    for part in [
        "story-target",
        "Secret does not exist: see that there is a ClusterIssuer internal",
        "`kubectl describe clusterissuer internal`",
    ] {
        assert!(waiting.message.contains(part), "{}", waiting.message);
    }
    let failed =
        json!({"type": "Issuing", "status": "False", "reason": "Failed", "message": "denied."});
    let both = message(json!([ready("False"), failed]));
    assert!(both.contains("not issued: denied: see"), "{both}");
    let silent = message(json!([]));
    assert!(silent.contains("its controller runs"), "{silent}");
}
