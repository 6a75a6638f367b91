//! `SpeculationEndpoint`: a pool of draft replicas that deployments share.

use serde::{Deserialize, Serialize};

use crate::{
    deployment::one,
    object::{Accelerator, DataType, Metadata, ModelSource, Scaling, Selector},
};

/// A pool of draft replicas. Short name `spe`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpeculationEndpoint {
    /// `foretoken.io/v1alpha1`.
    pub api_version: String,
    /// `SpeculationEndpoint`.
    pub kind: String,
    /// Name and labels.
    pub metadata: Metadata,
    /// What is asked for.
    pub spec: EndpointSpec,
    /// Written by the operator; read by nothing here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<serde_json::Value>,
}

impl SpeculationEndpoint {
    /// Value of `kind`.
    pub const KIND: &str = "SpeculationEndpoint";

    /// Whether a deployment in `namespace` may use this endpoint. The labels of namespaces are
    /// known to a cluster only, so `from: Selector` grants nothing here but the own namespace.
    pub fn grants(&self, namespace: &str) -> bool {
        self.metadata.namespace() == namespace
            || matches!(
                &self.spec.allowed_namespaces,
                Some(AllowedNamespaces {
                    from: NamespacesFrom::All,
                    ..
                })
            )
    }
}

/// What an endpoint asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSpec {
    /// The draft model.
    pub model: ModelSource,
    /// How many replicas; absent: 1, unless `scaling` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// A number that follows the load, instead of `replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
    /// How one replica is spread over devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<DraftParallelism>,
    /// What it runs on; absent: CPU cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// How weights are kept; absent: int8, since what rounding costs a draft is a few guesses and
    /// never an output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DataType>,
    /// Sessions one replica serves at a time; absent: the service's own default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots_per_replica: Option<u32>,
    /// Whose deployments may use it; absent: those of its own namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_namespaces: Option<AllowedNamespaces>,
    /// Limits and shares by namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quotas: Vec<Quota>,
    /// Overrides of the pod template, for a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<serde_json::Value>,
}

/// Devices of one draft replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DraftParallelism {
    /// Tracks that run alone between two synchronisations.
    #[serde(default = "one")]
    pub tracks: u32,
}

/// Whose deployments may use an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AllowedNamespaces {
    /// Which namespaces.
    #[serde(default)]
    pub from: NamespacesFrom,
    /// Labels of namespaces, with `from: Selector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
}

/// Which namespaces an endpoint serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Quota {
    /// Whose.
    pub namespace: String,
    /// Most sessions at a time; absent: no limit of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_slots: Option<u32>,
    /// Share of the draft's compute; absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
}
