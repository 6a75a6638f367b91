//! `AcceleratorProfile`: what an accelerator is in this cluster, so that users never type names of
//! devices.
#![expect(
    clippy::duplicated_attributes,
    reason = "columns of one type repeat it, which the lint takes for one attribute said twice"
)]

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Toleration;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    bounds::{DOMAIN, MAX_ITEMS, MAX_LABEL, MAX_PREFIXED, QUALIFIED, rule},
    object::labels,
};

/// What a profile says of an accelerator.
#[derive(Clone, Debug, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "foretoken.io",
    version = "v1alpha1",
    kind = "AcceleratorProfile",
    plural = "acceleratorprofiles",
    shortname = "accel",
    category = "foretoken",
    doc = "What an accelerator is in this cluster: which resource a pod asks for, and where it runs.",
    derive = "PartialEq",
    printcolumn(name = "Device", type_ = "string", json_path = ".spec.device"),
    printcolumn(name = "Resource", type_ = "string", json_path = ".spec.resource"),
    printcolumn(
        name = "DeviceClass",
        type_ = "string",
        json_path = ".spec.claim.deviceClassName",
        priority = 1
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[schemars(extend("x-kubernetes-validations" = [
    rule(
        "!has(self.resource) || !has(self.claim)",
        ".claim",
        "is not allowed beside resource: choose one",
    ),
    rule(
        "!(self.device in ['cuda', 'npu']) || has(self.resource) || has(self.claim)",
        ".resource",
        "is required with device cuda or npu, unless claim is given",
    ),
    rule(
        "self.device in ['cuda', 'npu'] || !(has(self.resource) || has(self.claim))",
        ".device",
        "must be cuda or npu where resource or claim is given",
    ),
]))]
pub struct ProfileSpec {
    /// What runs the model.
    pub device: Device,
    /// Extended resource of one device, such as `nvidia.com/gpu`; a replica asks for as many as its
    /// parallelism needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_PREFIXED), regex(pattern = QUALIFIED))]
    pub resource: Option<String>,
    /// Devices by dynamic resource allocation (`resource.k8s.io/v1`), instead of `resource`: each pod
    /// has a claim of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim: Option<DeviceClaim>,
    /// Devices of one node: a target whose `parallelism.tensor` is more spans nodes, as a group of
    /// pods; absent: a node has as many as are asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_ITEMS))]
    pub devices_per_node: Option<u32>,
    /// Labels of the nodes that have it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints of those nodes that pods tolerate.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "tolerations")]
    pub tolerations: Vec<Toleration>,
    /// Extended resource of a network device for what spans nodes, such as `rdma/hca`: each pod of a
    /// target that spans several asks for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_PREFIXED), regex(pattern = QUALIFIED))]
    pub rdma_resource: Option<String>,
    /// Runtime class of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_PREFIXED), regex(pattern = DOMAIN))]
    pub runtime_class_name: Option<String>,
}

/// What runs a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Device {
    /// A GPU that speaks CUDA.
    Cuda,
    /// A neural processing unit.
    Npu,
    /// Cores of the node.
    Cpu,
    /// No device: a simulated model, whose tokens mean nothing, with the tokenizer of the model that
    /// is named, of which no weights are read. To try a group or a cluster without accelerators.
    Sim,
}

impl AcceleratorProfile {
    /// Whether models of this profile are simulated.
    pub fn is_simulated(&self) -> bool {
        self.spec.device == Device::Sim
    }
}

/// Devices by dynamic resource allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceClaim {
    /// Name of a `DeviceClass`.
    #[schemars(length(min = 1, max = MAX_PREFIXED), regex(pattern = DOMAIN))]
    pub device_class_name: String,
    /// Devices of one replica; absent: as many as its parallelism needs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_ITEMS))]
    pub count: Option<u32>,
}

/// Schema of tolerations, as Kubernetes has them.
fn tolerations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": MAX_ITEMS,
        "items": {
            "type": "object",
            "properties": {
                "key": {
                    "type": "string",
                    "maxLength": MAX_PREFIXED + 1 + MAX_LABEL,
                    "description": "Key of the taint; absent: any."
                },
                "operator": {
                    "type": "string",
                    "enum": ["Exists", "Equal"],
                    "description": "Whether the value has to be the same; absent: Equal."
                },
                "value": {
                    "type": "string",
                    "maxLength": MAX_LABEL,
                    "description": "Value of the taint."
                },
                "effect": {
                    "type": "string",
                    "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"],
                    "description": "Effect of the taint; absent: any."
                },
                "tolerationSeconds": {
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                    "description": "How long a pod stays after a NoExecute taint; absent: for ever."
                }
            }
        }
    })
}
