//! `SpeculationEndpoint`: a pool of draft replicas that deployments share.
#![expect(
    clippy::duplicated_attributes,
    reason = "columns of one type repeat it, which the lint takes for one attribute said twice"
)]

use std::collections::BTreeMap;

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    bounds::{LABEL, MAX_ITEMS, MAX_LABEL, MAX_REPLICAS, rule},
    deployment::one,
    memory::{Memory, memory},
    object::{self, Accelerator, DataType, ModelSource, PodPatch, Scaling, Selector},
    rollout::RolloutSpec,
    status::EndpointStatus,
    telemetry::TelemetrySpec,
};

impl SpeculationEndpoint {
    /// Whether deployments of the namespace `user`, which has these labels, may use this endpoint.
    pub fn grants(&self, user: &str, labels: &BTreeMap<String, String>) -> bool {
        if object::namespace(&self.metadata) == user {
            return true;
        }
        match &self.spec.allowed_namespaces {
            Some(AllowedNamespaces { from, selector }) => match (from, selector) {
                (NamespacesFrom::All, _) => true,
                (NamespacesFrom::Selector, Some(selector)) => selector.matches(labels),
                (NamespacesFrom::Same | NamespacesFrom::Selector, _) => false,
            },
            None => false,
        }
    }

    /// Whether it depends on labels of namespaces who may use it.
    pub fn grants_by_labels(&self) -> bool {
        let allowed = self.spec.allowed_namespaces.as_ref();
        allowed.is_some_and(|allowed| allowed.from == NamespacesFrom::Selector)
    }
}

/// What an endpoint asks for.
#[derive(Clone, Debug, PartialEq, CustomResource, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    group = "foretoken.io",
    version = "v1alpha1",
    kind = "SpeculationEndpoint",
    plural = "speculationendpoints",
    shortname = "spe",
    category = "foretoken",
    namespaced,
    doc = "A pool of draft replicas that deployments share.",
    status = "EndpointStatus",
    derive = "PartialEq",
    scale(
        spec_replicas_path = ".spec.replicas",
        status_replicas_path = ".status.replicas",
        label_selector_path = ".status.selector"
    ),
    printcolumn(
        name = "Drafts",
        type_ = "string",
        json_path = ".status.drafts",
        description = "Ready and wanted replicas"
    ),
    printcolumn(
        name = "Slots",
        type_ = "integer",
        json_path = ".status.slots",
        description = "Sessions that all ready replicas can serve"
    ),
    printcolumn(
        name = "InUse",
        type_ = "integer",
        json_path = ".status.slotsInUse",
        description = "Sessions that are served"
    ),
    printcolumn(
        name = "HitRate",
        type_ = "number",
        json_path = ".status.hitRate",
        description = "Share of verdicts that were prepared for"
    ),
    printcolumn(
        name = "Rollout",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"RolledOut\")].reason",
        description = "How far it is with the revision that is asked for"
    ),
    printcolumn(
        name = "Ready",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].status",
        description = "Whether a session can be served"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[schemars(extend("x-kubernetes-validations" = [rule(
    "!has(self.replicas) || !has(self.scaling)",
    ".scaling",
    "is not allowed beside replicas: choose one",
)]))]
pub struct EndpointSpec {
    /// The draft model.
    pub model: ModelSource,
    /// How many replicas; absent: 1, unless `scaling` says. Where it is absent, an
    /// autoscaler of the cluster finds nothing to scale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_REPLICAS))]
    pub replicas: Option<u32>,
    /// A number that follows the load, instead of `replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling<DraftMetric>>,
    /// How one replica is spread over devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<DraftParallelism>,
    /// What it runs on; absent: CPU cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// How weights are kept: by default in 8 bits, since what rounding costs a draft is a few
    /// guesses and never an output.
    #[serde(default = "int8")]
    pub dtype: DataType,
    /// What a replica has for keys and values, which bounds how long its sessions may be, alone and
    /// all together; absent: `512Mi`. A container's limit of memory has to have room for it
    /// beside the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "memory")]
    pub kv_cache_memory: Option<Memory>,
    /// Sessions one replica serves at a time; absent: the service's own default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 4096))]
    pub slots_per_replica: Option<u32>,
    /// Whose deployments may use it; absent: those of its own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,
    /// Limits and shares by namespace, one of each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = MAX_ITEMS),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["namespace"])
    )]
    pub quotas: Vec<Quota>,
    /// What is added to its pods in a cluster; the container is called `draft`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodPatch>,
    /// How it comes to another revision; absent: by a canary.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutSpec>,
    /// What its drafts record of requests that their targets record; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<TelemetrySpec>,
}

fn int8() -> DataType {
    DataType::Int8
}

/// What the number of drafts follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DraftMetric {
    /// Share of the slots in use.
    #[default]
    SlotUse,
    /// Share of what is prepared that comes too late.
    LateEntries,
    /// Share of the time in which drafts have nothing to do.
    Slack,
}

/// Devices of one draft replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DraftParallelism {
    /// Tracks that run alone between two synchronisations.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 64))]
    pub tracks: u32,
}

/// Whose deployments may use an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule(
        "self.from != 'Selector' || has(self.selector)",
        ".selector",
        "is required with from: Selector",
    ),
    rule(
        "self.from == 'Selector' || !has(self.selector)",
        ".selector",
        "is only allowed with from: Selector",
    ),
]))]
pub struct AllowedNamespaces {
    /// Which namespaces.
    #[serde(default)]
    pub from: NamespacesFrom,
    /// Labels of namespaces, with `from: Selector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
}

/// Which namespaces an endpoint serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum NamespacesFrom {
    /// Its own.
    #[default]
    Same,
    /// All.
    All,
    /// Those that `selector` selects.
    Selector,
}

/// What one namespace may use of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Quota {
    /// Whose.
    #[schemars(length(min = 1, max = MAX_LABEL), regex(pattern = LABEL))]
    pub namespace: String,
    /// Most sessions at a time; absent: no limit of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_slots: Option<u32>,
    /// Share of what is scarce, divided over its deployments; absent: each of them has 1. Slots, KV pages and the rows of steps are shared max-min fairly by weight; of the outcomes that are drafted for ahead of verdicts, half by weight, and half goes to those that are worth most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub weight: Option<u32>,
}
