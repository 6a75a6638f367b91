//! What keeps pods from serving, from what nodes say of them and cert-manager of their certificates,
//! with what to do about it.
//!
//! States of containers go back and forth (a pull fails, waits, fails again; a container ends, waits,
//! runs, ends), so what is told is made of what stays the same, and holds until the pod is ready.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod};
use serde_json::Value;

/// Init container that brings the model.
pub(crate) const MODEL: &str = "model";
/// Longest part of what a container said that is told.
const MAX_SAID: usize = 600;

/// What keeps pods from serving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// In one word.
    pub reason: &'static str,
    /// What is wrong, and what to do.
    pub message: String,
}

/// What keeps one pod from serving, and how early in its life that is.
pub fn of_pod(pod: &Pod) -> Option<(u32, Trouble)> {
    let status = pod.status.as_ref()?;
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let conditions = status.conditions.as_deref().unwrap_or_default();
    if conditions
        .iter()
        .any(|one| one.type_ == "Ready" && one.status == "True")
    {
        return None;
    }
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let unplaced = conditions.iter().find(|one| {
        one.type_ == "PodScheduled"
            && one.status == "False"
            && one.reason.as_deref() == Some("Unschedulable")
    });
    if let Some(unplaced) = unplaced {
        return Some((
            0,
            unschedulable(name, unplaced.message.as_deref().unwrap_or_default()),
        ));
    }
    if status.phase.as_deref() == Some("Failed") && status.reason.as_deref() == Some("Evicted") {
        return Some((
            1,
            evicted(name, status.message.as_deref().unwrap_or_default()),
        ));
    }
    let init = status
        .init_container_statuses
        .as_deref()
        .unwrap_or_default();
    let main = status.container_statuses.as_deref().unwrap_or_default();
    let models = image_volumes(pod);
    let of_init = init
        .iter()
        .filter_map(|one| of_container((name, &models), one));
    let of_main = main
        .iter()
        .filter_map(|one| of_container((name, &models), one));
    let of_init = of_init.map(|trouble| (2, trouble));
    of_init.chain(of_main.map(|trouble| (3, trouble))).next()
}

/// Images that are mounted as volumes: models of `oci://`.
fn image_volumes(pod: &Pod) -> Vec<&str> {
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
    let images = volumes
        .into_iter()
        .flatten()
        .filter_map(|volume| volume.image.as_ref());
    images
        .filter_map(|image| image.reference.as_deref())
        .collect()
}

/// What the `Certificate` called `name` in `object`, its metadata left aside, keeps from serving: pods
/// wait for its Secret. None if it is issued.
pub fn of_certificate(name: &str, object: &Value) -> Option<Trouble> {
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let condition = |kind: &str| {
        let mut conditions = conditions.into_iter().flatten();
        conditions.find(|one| one["type"] == kind)
    };
    let ready = condition("Ready");
    if ready.is_some_and(|ready| ready["status"] == "True") {
        return None;
    }
    // What went wrong says more than that there is none.
    let failed = condition("Issuing").filter(|issuing| issuing["reason"] == "Failed");
    let said = failed.or(ready).and_then(|one| one["message"].as_str());
    let text = |path: &str| object.pointer(path).and_then(Value::as_str);
    let kind = text("/spec/issuerRef/kind").unwrap_or("Issuer");
    let issuer = text("/spec/issuerRef/name").unwrap_or_default();
    let message = match said {
        Some(said) => {
            let said = shortened(said);
            format!(
                "certificate {name} is not issued: {}: see that there is a {kind} {issuer} and what it \
                 says (`kubectl describe {} {issuer}`), and what became of the request (`kubectl \
                 describe certificaterequests`)",
                said.trim_end_matches('.'),
                kind.to_lowercase(),
            )
        }
        None => format!(
            "certificate {name} is not issued, and cert-manager says nothing of it: see that its \
             controller runs (`kubectl get pods -A -l app.kubernetes.io/name=cert-manager`)"
        ),
    };
    Some(trouble("CertificateNotIssued", message))
}

fn trouble(reason: &'static str, message: impl Into<String>) -> Trouble {
    Trouble {
        reason,
        message: message.into(),
    }
}

fn unschedulable(pod: &str, said: &str) -> Trouble {
    let said = shortened(said);
    if said.contains("persistentvolumeclaim") && said.contains("not found") {
        let message = format!(
            "pod {pod} waits for a volume: {said}: create the PersistentVolumeClaim, or correct the \
             claim in spec.model.uri"
        );
        return trouble("ClaimNotFound", message);
    }
    let message = format!(
        "pod {pod} cannot be placed: {said}: add or free nodes, or ask for less in the accelerator \
         profile or in template"
    );
    trouble("Unschedulable", message)
}

fn evicted(pod: &str, said: &str) -> Trouble {
    let said = shortened(said);
    if said.contains("ephemeral") || said.contains("disk") {
        return volume_full(pod, &said);
    }
    let message = format!("pod {pod} was evicted: {said}: see `kubectl describe pod {pod}`");
    trouble("Evicted", message)
}

fn volume_full(pod: &str, said: &str) -> Trouble {
    let message = format!(
        "pod {pod} has no room for the model: {said}: give nodes more ephemeral storage, or keep the \
         model on a volume of its own (pvc://claim/path)"
    );
    trouble("VolumeFull", message)
}

/// What keeps `container` of `pod` from running; the pod has volumes of the images `models`.
fn of_container((pod, models): (&str, &[&str]), container: &ContainerStatus) -> Option<Trouble> {
    let waiting = container
        .state
        .as_ref()
        .and_then(|state| state.waiting.as_ref());
    let why = waiting.and_then(|waiting| waiting.reason.as_deref());
    let said = waiting.and_then(|waiting| waiting.message.as_deref());
    let said = said.unwrap_or_default();
    match why {
        Some("ErrImagePull" | "ImagePullBackOff" | "ErrImageNeverPull" | "InvalidImageName") => {
            Some(not_pulled((pod, models), container, said))
        }
        Some("CreateContainerConfigError" | "CreateContainerError") => {
            Some(not_created(pod, container, said))
        }
        // Between two tries it is said of the last one alone, and then in other words.
        _ => match ended(container) {
            Some(end) => Some(of_end(pod, container, end)),
            None if why == Some("RunContainerError") => Some(not_created(pod, container, said)),
            None => None,
        },
    }
}

fn not_created(pod: &str, container: &ContainerStatus, said: &str) -> Trouble {
    let (name, said) = (&container.name, shortened(said));
    let message = format!(
        "container {name} of pod {pod} cannot be made: {said}: correct what is named, in template or in \
         the namespace"
    );
    trouble("ContainerNotCreated", message)
}

/// How a container that should not have ended did, last time.
fn ended(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let has_failed = |end: &ContainerStateTerminated| end.exit_code != 0;
    let now = container
        .state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    let before = container
        .last_state
        .as_ref()
        .and_then(|state| state.terminated.as_ref());
    // One that went well is done.
    if now.is_some_and(|end| end.exit_code == 0) {
        return None;
    }
    now.or(before).filter(|end| has_failed(end))
}

fn not_pulled((pod, models): (&str, &[&str]), container: &ContainerStatus, said: &str) -> Trouble {
    // Of a volume nodes say so at the container that mounts it.
    let model = models.iter().find(|model| is_about(said, model));
    // Between two tries the same is said with a word before it.
    let said = said
        .rsplit_once("ErrImagePull: ")
        .map_or(said, |(_, said)| said);
    let said = shortened(said);
    let of_ours = "the image of the operator, or of the container in template";
    let (what, image, correct) = match model {
        Some(model) => ("the model's image", *model, "spec.model.uri"),
        None => ("image", container.image.as_str(), of_ours),
    };
    let message = format!(
        "pod {pod} cannot have {what} {image}: {said}: correct it ({correct}), or let nodes pull it \
         (imagePullSecrets in template)"
    );
    trouble("ImagePullFailed", message)
}

/// Whether what a node said is about `image`: in quotes, as it is or as runtimes complete it.
fn is_about(said: &str, image: &str) -> bool {
    let quoted = said.split('"').skip(1).step_by(2);
    let mut names = quoted.map(|name| name.strip_suffix(":latest").unwrap_or(name));
    let image = image.strip_suffix(":latest").unwrap_or(image);
    names.any(|name| {
        let rest = name.strip_suffix(image);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
    })
}

fn of_end(pod: &str, container: &ContainerStatus, end: &ContainerStateTerminated) -> Trouble {
    let name = &container.name;
    if end.reason.as_deref() == Some("OOMKilled") {
        let message = format!(
            "container {name} of pod {pod} ran out of memory: raise its limit in template, keep \
             weights in fewer bits (dtype), or less for keys and values (kvCacheMemory)"
        );
        return trouble("OutOfMemory", message);
    }
    // What the runtime says of a process that it could not start.
    if let Some("StartError" | "ContainerCannotRun") = end.reason.as_deref() {
        return not_created(pod, container, end.message.as_deref().unwrap_or_default());
    }
    let said = last_line(end.message.as_deref().unwrap_or_default());
    let reason = cause(name, &said);
    let message = match reason {
        "VolumeFull" => return volume_full(pod, &said),
        "ModelNotFound" => format!("{said}: correct spec.model, or put the model there"),
        "ModelForbidden" => format!(
            "{said}: put a token that may read it into the Secret foretoken-hub-token (key token) of \
             this namespace"
        ),
        "HubUnreachable" => format!(
            "{said}: it is tried again; let pods reach the hub, or use a pvc:// or oci:// model"
        ),
        _ => format!(
            "container {name} of pod {pod} ended with exit code {}: {said}: see `kubectl logs {pod} \
             -c {name} --previous`",
            end.exit_code
        ),
    };
    trouble(reason, message)
}

/// Why one of our containers ended, by the last that it said.
pub fn cause(container: &str, said: &str) -> &'static str {
    let has = |part: &str| said.contains(part);
    if has("is full:") || has("No space left on device") {
        "VolumeFull"
    } else if has("check owner, name and revision")
        || has("does not exist or is not a folder")
        || has("has no *.safetensors weights")
    {
        "ModelNotFound"
    } else if has("refuses access to") {
        "ModelForbidden"
    } else if container == MODEL && has("cannot fetch") {
        "HubUnreachable"
    } else if container == MODEL {
        "ModelNotFetched"
    } else {
        "CrashLooping"
    }
}

/// The last line that says something, without what every error begins with.
fn last_line(said: &str) -> String {
    let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let last = lines.next_back().unwrap_or("it said nothing");
    shortened(last.strip_prefix("error: ").unwrap_or(last))
}

fn shortened(text: &str) -> String {
    let mut text = text.trim().to_owned();
    while text.len() > MAX_SAID {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests;
