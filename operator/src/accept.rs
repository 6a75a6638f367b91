//! What is valid and not served by this version: an object that asks for it is not accepted, and
//! told so. Nothing is ever replaced by something else in silence.

use foretoken_crds::{
    AcceleratorProfile, SpecDecodeDeployment, SpeculationEndpoint,
    object::{Accelerator, ModelSource},
    policy::PolicyType,
    profile::Device,
};

use crate::{build::LONGEST_NAME, shape::Shape, world::Offer};

/// Why an object is not acted upon until it, or what it names, is edited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {message}")]
pub struct Refusal {
    /// In one word.
    pub reason: &'static str,
    /// The field.
    pub field: &'static str,
    /// What about it, and what to do.
    pub message: String,
}

fn refusal(reason: &'static str, field: &'static str, message: impl Into<String>) -> Refusal {
    Refusal {
        reason,
        field,
        message: message.into(),
    }
}

/// Whether `object` can be served; `profile` is the one that its target names, if there is one.
pub fn deployment(
    object: &SpecDecodeDeployment,
    profile: Option<&AcceleratorProfile>,
) -> Result<(), Refusal> {
    let spec = &object.spec;
    if let Some(speculation) = &spec.speculation
        && speculation.policy.policy().is_none()
    {
        let kind = speculation.policy.kind;
        let instead = match kind {
            PolicyType::Auto => "SSD and Speculative adapt to the load by themselves",
            _ => "every policy gives the same tokens",
        };
        let message = format!(
            "is {}, which has no data path in this version: set it to SSD, Speculative or \
             Autoregressive ({instead})",
            kind.name()
        );
        let field = "spec.speculation.policy.type";
        return Err(refusal("PolicyNotServed", field, message));
    }
    model("spec.model.uri", &spec.model)?;
    let target = &spec.target;
    let fewest = target.scaling.map(|scaling| scaling.min);
    fewest_replicas("spec.target.scaling.min", fewest)?;
    spread(object, profile)?;
    if spec
        .router
        .as_ref()
        .is_some_and(|router| router.gateway.is_some())
    {
        let message = "is not served by this version: use exposure, and route to the Service";
        return Err(refusal("GatewayNotServed", "spec.router.gateway", message));
    }
    accelerator(
        "spec.target.accelerator",
        target.accelerator.as_ref(),
        profile,
    )
}

/// Whether targets can be spread over devices as it is asked for.
fn spread(
    object: &SpecDecodeDeployment,
    profile: Option<&AcceleratorProfile>,
) -> Result<(), Refusal> {
    let target = &object.spec.target;
    let parallelism = target.parallelism.unwrap_or_default();
    let tensor = ("spec.target.parallelism.tensor", parallelism.tensor);
    let pipeline = ("spec.target.parallelism.pipeline", parallelism.pipeline);
    let spread = [tensor, pipeline].into_iter().find(|(_, count)| *count > 1);
    let Some((field, count)) = spread else {
        return Ok(());
    };
    let asked = target.accelerator.as_ref();
    let is_known = profile.is_some() || asked.and_then(|it| it.profile.as_ref()).is_none();
    if !is_known {
        return accelerator("spec.target.accelerator", asked, profile);
    }
    if !profile.is_some_and(AcceleratorProfile::is_simulated) {
        let message = format!(
            "is {count}: this version serves 1 only, or more of a simulated model (an \
             AcceleratorProfile with device: sim)"
        );
        return Err(refusal("ParallelismNotServed", field, message));
    }
    let shape = Shape::of(target, profile);
    let (field, tensor) = tensor;
    if tensor % shape.devices > 0 {
        let message = format!(
            "is {tensor}, and its nodes have {} devices each (devicesPerNode of its profile): \
             set it to a multiple of that",
            shape.devices
        );
        return Err(refusal("ParallelismNotServed", field, message));
    }
    let name = foretoken_crds::object::name(&object.metadata);
    if shape.spans_pods() && name.len() > LONGEST_NAME {
        let message = format!(
            "has {} characters: with targets that span pods it has at most {LONGEST_NAME}; create it \
             anew under a shorter one",
            name.len()
        );
        return Err(refusal("NameTooLong", "metadata.name", message));
    }
    Ok(())
}

/// Whether the cluster can run `object`, whose targets may span pods; `offer` is whether it has
/// `LeaderWorkerSets`.
pub(crate) fn group(
    object: &SpecDecodeDeployment,
    profile: Option<&AcceleratorProfile>,
    offer: Offer,
) -> Result<(), Refusal> {
    let shape = Shape::of(&object.spec.target, profile);
    if !shape.spans_pods() || offer == Offer::Present {
        return Ok(());
    }
    let field = "spec.target.parallelism";
    let pods = shape.pods;
    if offer == Offer::Forbidden {
        let message = format!(
            "makes each target a group of {pods} pods, and this operator may not have \
             LeaderWorkerSets: give it the rights of its present release (`helm upgrade`)"
        );
        return Err(refusal("LeaderWorkerSetForbidden", field, message));
    }
    let message = format!(
        "makes each target a group of {pods} pods, which needs LeaderWorkerSets \
         (leaderworkerset.x-k8s.io/v1), and this cluster has none: install them (`helm install lws \
         oci://registry.k8s.io/lws/charts/lws --version 0.9.0 --namespace lws-system \
         --create-namespace --wait`), or ask for no more than one pod"
    );
    Err(refusal("LeaderWorkerSetMissing", field, message))
}

/// Whether `object` can be served; `profile` is the one that it names, if there is one.
pub fn endpoint(
    object: &SpeculationEndpoint,
    profile: Option<&AcceleratorProfile>,
) -> Result<(), Refusal> {
    let spec = &object.spec;
    model("spec.model.uri", &spec.model)?;
    fewest_replicas("spec.scaling.min", spec.scaling.map(|scaling| scaling.min))?;
    let tracks = spec.parallelism.map_or(1, |parallelism| parallelism.tracks);
    if tracks > 1 {
        let message = format!("is {tracks}: this version serves 1 only");
        return Err(refusal(
            "ParallelismNotServed",
            "spec.parallelism.tracks",
            message,
        ));
    }
    accelerator("spec.accelerator", spec.accelerator.as_ref(), profile)
}

/// Whether somebody is left who notices that more are needed.
fn fewest_replicas(field: &'static str, fewest: Option<u32>) -> Result<(), Refusal> {
    if fewest != Some(0) {
        return Ok(());
    }
    let message = "is 0, and who is not there does not notice that it is needed: set it to 1";
    Err(refusal("ScalingNotServed", field, message))
}

fn model(field: &'static str, model: &ModelSource) -> Result<(), Refusal> {
    if model.is_local_path() {
        let message = format!(
            "is {:?}, a path of one machine: in a cluster use hf://, pvc://, oci:// or file:///",
            model.uri
        );
        return Err(refusal("LocalPath", field, message));
    }
    Ok(())
}

fn accelerator(
    field: &'static str,
    asked: Option<&Accelerator>,
    profile: Option<&AcceleratorProfile>,
) -> Result<(), Refusal> {
    let Some(asked) = asked else { return Ok(()) };
    let Some(name) = &asked.profile else {
        let message = "asks for devices by a claim: this version computes on CPU cores; name an \
                       AcceleratorProfile with device: cpu, or leave it out";
        return Err(refusal("DeviceNotServed", field, message));
    };
    let Some(profile) = profile else {
        let message = format!(
            "names the AcceleratorProfile {name}, which does not exist: create it, or name one of \
             `kubectl get acceleratorprofiles`"
        );
        return Err(refusal("ProfileNotFound", field, message));
    };
    match profile.spec.device {
        Device::Cpu | Device::Sim => Ok(()),
        Device::Cuda | Device::Npu => {
            let message = format!(
                "names the AcceleratorProfile {name}, whose device this version has no runner for: \
                 it computes on CPU cores; name a profile with device: cpu, or leave it out"
            );
            Err(refusal("DeviceNotServed", field, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn refused(spec: &Value) -> Option<(&'static str, String)> {
        let mut object = json!({
            "apiVersion": "foretoken.io/v1alpha1",
            "kind": "SpecDecodeDeployment",
            "metadata": {"name": "story", "namespace": "chat"},
            "spec": {"model": {"uri": "hf://a/b"}},
        });
        crate::merge::merge(&mut object["spec"], spec);
        let object = serde_json::from_value(object).expect("valid");
        let profile: AcceleratorProfile = serde_json::from_value(json!({
            "apiVersion": "foretoken.io/v1alpha1",
            "kind": "AcceleratorProfile",
            "metadata": {"name": "h100"},
            "spec": {"device": "cuda", "resource": "nvidia.com/gpu"},
        }))
        .expect("valid");
        let known = ["h100"];
        let named = spec["target"]["accelerator"]["profile"].as_str();
        let found = named.filter(|name| known.contains(name)).map(|_| &profile);
        let refusal = deployment(&object, found).err()?;
        Some((refusal.reason, refusal.to_string()))
    }

    #[test]
    fn policies_without_a_data_path_are_refused_and_never_replaced() {
        for kind in ["MirrorSD", "SpecPipe", "Auto"] {
            let spec = json!({"speculation": {"policy": {"type": kind}, "onLoss": "Local"}});
            let (reason, message) = refused(&spec).expect("not served");
            assert_eq!(reason, "PolicyNotServed");
            let start = format!(
                "spec.speculation.policy.type is {kind}, which has no data path in this version: \
                 set it to SSD, Speculative or Autoregressive"
            );
            assert!(message.starts_with(&start), "{message}");
        }
        for kind in ["SSD", "Speculative", "Autoregressive"] {
            let spec = json!({"speculation": {"policy": {"type": kind}, "onLoss": "Local"}});
            assert_eq!(refused(&spec), None, "{kind}");
        }
    }

    #[test]
    fn cores_and_simulated_models_are_served() {
        for device in ["cpu", "sim"] {
            let profile = serde_json::from_value(json!({
                "apiVersion": "foretoken.io/v1alpha1",
                "kind": "AcceleratorProfile",
                "metadata": {"name": "p"},
                "spec": {"device": device},
            }));
            let object = serde_json::from_value(json!({
                "apiVersion": "foretoken.io/v1alpha1",
                "kind": "SpeculationEndpoint",
                "metadata": {"name": "tiny", "namespace": "drafts"},
                "spec": {"model": {"uri": "hf://a/b"}, "accelerator": {"profile": "p"}},
            }));
            let accepted = endpoint(&object.expect("valid"), Some(&profile.expect("valid")));
            assert_eq!(accepted, Ok(()), "{device}");
        }
    }

    fn group_of(name: &str, parallelism: &Value, offer: Offer) -> Option<(&'static str, String)> {
        let profile = serde_json::from_value(json!({
            "apiVersion": "foretoken.io/v1alpha1",
            "kind": "AcceleratorProfile",
            "metadata": {"name": "p"},
            "spec": {"device": "sim", "devicesPerNode": 4},
        }));
        let profile = profile.expect("valid");
        let object = serde_json::from_value(json!({
            "apiVersion": "foretoken.io/v1alpha1",
            "kind": "SpecDecodeDeployment",
            "metadata": {"name": name, "namespace": "chat"},
            "spec": {
                "model": {"uri": "hf://a/b"},
                "target": {"parallelism": parallelism, "accelerator": {"profile": "p"}},
            },
        }));
        let object = object.expect("valid");
        let verdict = deployment(&object, Some(&profile))
            .and_then(|()| group(&object, Some(&profile), offer));
        verdict.err().map(|it| (it.reason, it.to_string()))
    }

    #[test]
    fn simulated_targets_span_pods_where_there_are_sets_of_them() {
        let two = json!({"pipeline": 2});
        assert_eq!(group_of("story", &two, Offer::Present), None);
        let (reason, message) = group_of("story", &two, Offer::Absent).expect("refused");
        assert_eq!(reason, "LeaderWorkerSetMissing");
        assert!(message.contains("a group of 2 pods"), "{message}");
        assert!(message.contains("helm install lws"), "{message}");
        let (reason, _) = group_of("story", &two, Offer::Forbidden).expect("refused");
        assert_eq!(reason, "LeaderWorkerSetForbidden");
        // One pod needs none.
        assert_eq!(
            group_of("story", &json!({"tensor": 4}), Offer::Absent),
            None
        );
    }

    #[test]
    fn groups_that_cannot_be_made_are_refused() {
        let (reason, message) =
            group_of("story", &json!({"tensor": 6}), Offer::Present).expect("refused");
        assert_eq!(reason, "ParallelismNotServed");
        assert!(message.contains("a multiple of that"), "{message}");
        let long = "a".repeat(LONGEST_NAME + 1);
        let (reason, _) =
            group_of(&long, &json!({"pipeline": 2}), Offer::Present).expect("refused");
        assert_eq!(reason, "NameTooLong");
        assert_eq!(group_of(&long, &json!({"tensor": 4}), Offer::Present), None);
    }

    #[test]
    fn whatever_else_is_not_served_is_said_with_what_to_do() {
        for (spec, reason) in [
            (json!({"model": {"uri": "../models/a"}}), "LocalPath"),
            (
                json!({"target": {"scaling": {"min": 0, "max": 2}}}),
                "ScalingNotServed",
            ),
            (
                json!({"target": {"parallelism": {"tensor": 2}}}),
                "ParallelismNotServed",
            ),
            (
                json!({"router": {"gateway": {"parentRefs": [{"name": "g"}]}}}),
                "GatewayNotServed",
            ),
            (
                json!({"target": {"accelerator": {"profile": "h200"}}}),
                "ProfileNotFound",
            ),
            (
                json!({"target": {"accelerator": {"profile": "h100"}}}),
                "DeviceNotServed",
            ),
            (
                json!({"target": {"accelerator": {"claimTemplate": "c"}}}),
                "DeviceNotServed",
            ),
        ] {
            let (found, message) = refused(&spec).expect("not served");
            assert_eq!(found, reason);
            let advises = [": ", "; "].iter().any(|mark| message.contains(mark));
            assert!(advises, "{message}");
        }
    }
}
