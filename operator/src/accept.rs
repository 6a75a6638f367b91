//! What is valid and not served by this version: an object that asks for it is not accepted, and
//! told so. Nothing is ever replaced by something else in silence.

use foretoken_crds::{
    AcceleratorProfile, SpecDecodeDeployment, SpeculationEndpoint,
    object::{Accelerator, ModelSource},
    policy::PolicyType,
    profile::Device,
};

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
    let parallelism = target.parallelism.unwrap_or_default();
    for (field, value) in [
        ("spec.target.parallelism.tensor", parallelism.tensor),
        ("spec.target.parallelism.pipeline", parallelism.pipeline),
    ] {
        if value > 1 {
            let message = format!("is {value}: this version serves 1 only");
            return Err(refusal("ParallelismNotServed", field, message));
        }
    }
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
