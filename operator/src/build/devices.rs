//! Devices of pods: extended resources of a node, or claims of dynamic resource allocation
//! (`resource.k8s.io/v1`, Kubernetes 1.34 and later).
//!
//! A claim is made for each pod from a `ResourceClaimTemplate` of its namespace: the user's own, or
//! one that is made here from what a profile says. These never change, so each is called after its
//! content.

use foretoken_crds::{
    AcceleratorProfile,
    memory::Memory,
    object::{Accelerator, DataType},
};
use serde_json::{Value, json};

use super::{Component, FILE, model::ModelVolume, pod::CONFIGURATIONS};
use crate::object::{Made, Object, digest};

/// What a claim is called in its pod, and what it asks for in its template.
const CLAIM: &str = "accelerator";

/// The devices of a pod.
#[derive(Clone, Copy, Default)]
pub(super) struct Devices<'a> {
    /// What the user asks for.
    pub(super) accelerator: Option<&'a Accelerator>,
    /// The profile it names.
    pub(super) profile: Option<&'a AcceleratorProfile>,
    /// How many devices a pod has.
    pub(super) count: u32,
    /// How many pods a replica is spread over.
    pub(super) pods: u32,
}

impl Devices<'_> {
    /// Whether models are only said to compute.
    pub(super) fn are_simulated(&self) -> bool {
        self.profile.is_some_and(AcceleratorProfile::is_simulated)
    }

    /// Arguments of a service that has `model` on these, with `kv` for keys and values; `simulated`:
    /// how it computes where they are only said to.
    pub(super) fn arguments(
        &self,
        model: &ModelVolume,
        dtype: DataType,
        kv: Option<Memory>,
        simulated: &str,
    ) -> Vec<String> {
        let mut arguments = vec![
            format!("--config={CONFIGURATIONS}/service/{FILE}"),
            format!("--model={}", model.folder),
            format!("--dtype={}", foretoken_configuration::dtype(dtype)),
            "--instance=$(POD_NAME)".to_owned(),
        ];
        arguments.extend(kv.map(|memory| format!("--kv-mib={}", memory.mebibytes())));
        if self.are_simulated() {
            arguments.push(format!("--simulated={simulated}"));
        }
        arguments
    }

    /// Whether there may be no spare ones for a pod beside those that it replaces.
    pub(super) fn are_scarce(&self) -> bool {
        let claims = self
            .accelerator
            .is_some_and(|accelerator| accelerator.claim_template.is_some());
        let spec = self.profile.map(|profile| &profile.spec);
        claims || spec.is_some_and(|spec| spec.resource.is_some() || spec.claim.is_some())
    }

    /// What claims of the profile are made from, for pods of `component`.
    pub(super) fn claim_template(&self, component: &Component<'_>) -> Option<Object> {
        let content = self.claimed()?;
        let name = made_name(&component.name(), &content);
        Some(component.owner.object(
            Made::ResourceClaimTemplate,
            component.component,
            &name,
            &content,
        ))
    }

    /// What a claim of the profile asks for, if it has devices by claims.
    fn claimed(&self) -> Option<Value> {
        let claim = self.profile?.spec.claim.as_ref()?;
        // The profile counts those of a replica.
        let given = claim.count.map(|count| count.div_ceil(self.pods.max(1)));
        let request = json!({
            "name": CLAIM,
            "exactly": {
                "deviceClassName": claim.device_class_name,
                "allocationMode": "ExactCount",
                "count": given.unwrap_or(self.count),
            },
        });
        Some(json!({"spec": {"spec": {"devices": {"requests": [request]}}}}))
    }

    /// Has pods with `spec`, of what is called `component`, run where the devices are and have them.
    pub(super) fn place(&self, component: &str, spec: &mut Value) {
        let own = self.claimed();
        let own = own.map(|content| made_name(component, &content));
        let named = self
            .accelerator
            .and_then(|asked| asked.claim_template.clone());
        let mut resources = json!({});
        if let Some(template) = named.or(own) {
            spec["resourceClaims"] =
                json!([{"name": CLAIM, "resourceClaimTemplateName": template}]);
            resources["claims"] = json!([{"name": CLAIM}]);
        }
        let profile = self.profile.map(|profile| &profile.spec);
        let devices = profile.and_then(|profile| profile.resource.as_ref());
        let devices = devices.map(|resource| (resource, self.count));
        // One pod has nobody to reach by it.
        let spans_pods = self.pods > 1;
        let network = profile.and_then(|profile| profile.rdma_resource.as_ref());
        let network = network.filter(|_| spans_pods).map(|resource| (resource, 1));
        for (resource, count) in devices.into_iter().chain(network) {
            // Of extended resources a pod cannot have more than it asks for.
            for bound in ["requests", "limits"] {
                resources[bound][resource] = count.to_string().into();
            }
        }
        if resources != json!({}) {
            spec["containers"][0]["resources"] = resources;
        }
        let Some(profile) = profile else { return };
        if !profile.node_selector.is_empty() {
            spec["nodeSelector"] = json!(profile.node_selector);
        }
        if !profile.tolerations.is_empty() {
            spec["tolerations"] = json!(profile.tolerations);
        }
        if let Some(class) = &profile.runtime_class_name {
            spec["runtimeClassName"] = class.as_str().into();
        }
    }
}

/// Name of the template with that `content` for what is called `component`.
fn made_name(component: &str, content: &Value) -> String {
    format!("{component}-{}", &digest(content)[..8])
}
