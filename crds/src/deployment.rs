//! `SpecDecodeDeployment`: a model that is served, and how it speculates.

use serde::{Deserialize, Serialize};

use crate::{
    endpoint::EndpointSpec,
    object::{Accelerator, DataType, Metadata, ModelSource, Scaling, Selector},
    policy::PolicySpec,
};

/// A model that is served. Short name `sdd`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpecDecodeDeployment {
    /// `foretoken.io/v1alpha1`.
    pub api_version: String,
    /// `SpecDecodeDeployment`.
    pub kind: String,
    /// Name and labels.
    pub metadata: Metadata,
    /// What is asked for.
    pub spec: DeploymentSpec,
    /// Written by the operator; read by nothing here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<serde_json::Value>,
}

impl SpecDecodeDeployment {
    /// Value of `kind`.
    pub const KIND: &str = "SpecDecodeDeployment";

    /// Name that clients use for the model.
    pub fn served_name(&self) -> &str {
        self.spec
            .model
            .served_name
            .as_deref()
            .unwrap_or(&self.metadata.name)
    }
}

/// What a deployment asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentSpec {
    /// The model that decides every token.
    pub model: ModelSource,
    /// Its replicas.
    #[serde(default)]
    pub target: TargetSpec,
    /// How it speculates; absent: not at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculation: Option<SpeculationSpec>,
    /// Who speaks HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub router: Option<RouterSpec>,
}

/// Replicas of the target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetSpec {
    /// How many; absent: 1, unless `scaling` says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// A number that follows the load, instead of `replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
    /// How one replica is spread over devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parallelism: Option<TargetParallelism>,
    /// What it runs on; absent: CPU cores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<Accelerator>,
    /// How weights are kept.
    #[serde(default)]
    pub dtype: DataType,
    /// Overrides of the pod template, for a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<serde_json::Value>,
}

/// Devices of one target replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TargetParallelism {
    /// Devices that share each layer.
    #[serde(default = "one")]
    pub tensor: u32,
    /// Stages the layers are spread over.
    #[serde(default = "one")]
    pub pipeline: u32,
}

impl Default for TargetParallelism {
    fn default() -> Self {
        Self {
            tensor: 1,
            pipeline: 1,
        }
    }
}

/// Serde's default of counts.
pub(crate) fn one() -> u32 {
    1
}

/// How a deployment speculates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SpeculationSpec {
    /// Who proposes, and when the target verifies.
    pub policy: PolicySpec,
    /// The rule by which proposals are accepted.
    #[serde(default)]
    pub verification: Verification,
    /// Where drafts come from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<EndpointSource>,
    /// What happens while no endpoint answers; never an error.
    #[serde(default)]
    pub on_loss: OnLoss,
    /// Whether a window may be a tree of tokens.
    #[serde(default)]
    pub trees: Trees,
}

/// Whether endpoints may propose trees of tokens: second choices beside a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Trees {
    /// Chains only.
    #[default]
    Off,
    /// Where their expected tokens are worth the time of their rows.
    Auto,
}

/// The rule by which proposals are accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verification {
    /// A proposal is accepted if it is what the target samples with the request's own noise.
    #[default]
    Coupled,
    /// Leviathan et al. 2023: exact in distribution, needs the draft's probabilities.
    Rejection,
}

/// What a target does without an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnLoss {
    /// Decodes plainly.
    #[default]
    Plain,
    /// Proposes from the text so far, and from what was said before, as far as that pays.
    Local,
}

/// One source of drafts: exactly one of `name`, `selector`, `template`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EndpointSource {
    /// Name of a `SpeculationEndpoint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its namespace; absent: the deployment's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Share of sessions among the sources; absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Endpoints with these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<Selector>,
    /// An endpoint of this deployment's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<EndpointSpec>,
}

/// The router of a deployment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RouterSpec {
    /// How many; absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u32>,
    /// How it is reached in a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exposure: Option<Exposure>,
    /// Gateway API parents, instead of `exposure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<serde_json::Value>,
}

/// How a router is reached in a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exposure {
    /// Type of its Service.
    #[serde(rename = "type", default)]
    pub kind: ExposureType,
}

/// Type of a router's Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExposureType {
    /// Inside the cluster only.
    #[default]
    ClusterIP,
    /// On a port of every node.
    NodePort,
    /// Behind the cloud's load balancer.
    LoadBalancer,
}
