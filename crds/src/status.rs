//! What the operator tells about objects: facts as observed, never what is hoped for.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    bounds::{MAX_ITEMS, MAX_LABEL, MAX_MESSAGE, MAX_PREFIXED, MAX_TEXT},
    rollout::RolloutStatus,
};

/// Most consumers that the status of an endpoint lists.
/// Most consumers that an endpoint's status has room for.
pub const MOST_CONSUMERS: u32 = 1024;
/// Most endpoints that a deployment's status has room for.
pub const MOST_ENDPOINTS: u32 = MAX_ITEMS;
/// Largest count of a status.
const MAX_COUNT: u32 = i32::MAX as u32;

/// Types of conditions. Each is `True`, `False` or `Unknown`, with a reason for machines and a
/// message that says what to do.
pub mod condition {
    /// The spec can be served by this version; otherwise it is not acted upon until it is edited.
    pub const ACCEPTED: &str = "Accepted";
    /// Every endpoint that a deployment names exists and allows it.
    pub const ENDPOINTS_RESOLVED: &str = "EndpointsResolved";
    /// Every endpoint has the target's tokens.
    pub const ENDPOINTS_COMPATIBLE: &str = "EndpointsCompatible";
    /// At least one replica of the target is ready.
    pub const TARGET_READY: &str = "TargetReady";
    /// At least one router is ready.
    pub const ROUTER_READY: &str = "RouterReady";
    /// Endpoints draft for requests.
    pub const SPECULATION_ACTIVE: &str = "SpeculationActive";
    /// What runs is being brought to what is asked for.
    pub const PROGRESSING: &str = "Progressing";
    /// All drafts of a pool are of the revision that is asked for.
    pub const ROLLED_OUT: &str = "RolledOut";
    /// A token can be served, or, of an endpoint, a session.
    pub const READY: &str = "Ready";

    /// Conditions of a `SpecDecodeDeployment`.
    pub const OF_DEPLOYMENTS: [&str; 8] = [
        ACCEPTED,
        ENDPOINTS_RESOLVED,
        ENDPOINTS_COMPATIBLE,
        TARGET_READY,
        ROUTER_READY,
        SPECULATION_ACTIVE,
        PROGRESSING,
        READY,
    ];
    /// Conditions of a `SpeculationEndpoint`.
    pub const OF_ENDPOINTS: [&str; 4] = [ACCEPTED, ROLLED_OUT, PROGRESSING, READY];
}

/// What became of a `SpecDecodeDeployment`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentStatus {
    /// Generation of the spec that all of this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Where clients reach the router.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_TEXT))]
    pub url: Option<String>,
    /// Which revision of model, `dtype` and parallelism the ready replicas have: the label
    /// `foretoken.io/revision` of their pods. While some are replaced, the one that goes; absent while
    /// none is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_LABEL))]
    pub revision: Option<String>,
    /// Replicas of the target that exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_COUNT))]
    pub replicas: Option<u32>,
    /// Those of them that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_COUNT))]
    pub ready_replicas: Option<u32>,
    /// Ready and wanted replicas, such as `1/2`, for `kubectl get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_LABEL))]
    pub targets: Option<String>,
    /// Selector of the target's pods, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_TEXT))]
    pub selector: Option<String>,
    /// How it speculates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speculation: Option<SpeculationStatus>,
    /// `Accepted`, `EndpointsResolved`, `EndpointsCompatible`, `TargetReady`, `RouterReady`,
    /// `SpeculationActive`, `Progressing`, `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// How a deployment speculates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpeculationStatus {
    /// Whether endpoints draft for it.
    pub state: SpeculationState,
    /// Why, in one word, where it is not `Active`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_TEXT))]
    pub reason: Option<String>,
    /// Its endpoints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MOST_ENDPOINTS), extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["namespace", "name"]
    ))]
    pub endpoints: Vec<UsedEndpoint>,
    /// Tokens that a round decides on average, as measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub acceptance_length: Option<f64>,
    /// Share of verdicts that were prepared for, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1))]
    pub hit_rate: Option<f64>,
}

/// Whether endpoints draft for a deployment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SpeculationState {
    /// They do.
    Active,
    /// Some of what is asked for is missing; requests are served all the same.
    Degraded,
    /// They do not: the policy needs none, or none is there.
    #[default]
    Off,
}

/// An endpoint that a deployment means.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsedEndpoint {
    /// Its namespace.
    #[schemars(length(min = 1, max = MAX_LABEL))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(min = 1, max = MAX_PREFIXED))]
    pub name: String,
    /// Whether it serves sessions.
    pub ready: bool,
    /// Whether it has the target's tokens; absent: not known yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compatible: Option<bool>,
    /// Why it has not, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_TEXT))]
    pub reason: Option<String>,
}

/// What became of a `SpeculationEndpoint`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EndpointStatus {
    /// Generation of the spec that all of this is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// Replicas that exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_COUNT))]
    pub replicas: Option<u32>,
    /// Those of them that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_COUNT))]
    pub ready_replicas: Option<u32>,
    /// Ready and wanted replicas, such as `1/2`, for `kubectl get`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_LABEL))]
    pub drafts: Option<String>,
    /// Selector of its pods, for autoscalers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_TEXT))]
    pub selector: Option<String>,
    /// Sessions that all ready replicas can serve at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_COUNT))]
    pub slots: Option<u32>,
    /// Sessions that are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = MAX_COUNT))]
    pub slots_in_use: Option<u32>,
    /// Share of verdicts that were prepared for, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1))]
    pub hit_rate: Option<f64>,
    /// Share of the time that replicas have nothing to draft, from 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1))]
    pub slack: Option<f64>,
    /// Deployments that use it; those with most slots if there are too many to list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MOST_CONSUMERS), extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["namespace", "name"]
    ))]
    pub consumers: Vec<Consumer>,
    /// Digest of its tokenizer: a target with another cannot use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_PREFIXED))]
    pub tokenizer_digest: Option<String>,
    /// Its revisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// `Accepted`, `RolledOut`, `Progressing`, `Ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions")]
    pub conditions: Vec<Condition>,
}

/// A deployment that uses an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Consumer {
    /// Its namespace.
    #[schemars(length(min = 1, max = MAX_LABEL))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(min = 1, max = MAX_PREFIXED))]
    pub name: String,
    /// Sessions it has.
    #[schemars(range(min = 0, max = MAX_COUNT))]
    pub slots: u32,
}

/// Schema of conditions, as Kubernetes bounds its own.
fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 316,
                    "description": "What it is about."
                },
                "status": {
                    "type": "string",
                    "enum": ["True", "False", "Unknown"],
                    "description": "Whether it holds."
                },
                "observedGeneration": {
                    "type": "integer",
                    "format": "int64",
                    "minimum": 0,
                    "description": "Generation of the spec it is about."
                },
                "lastTransitionTime": {
                    "type": "string",
                    "format": "date-time",
                    "description": "When its status changed."
                },
                "reason": {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 1024,
                    "description": "Why, in one word, for machines."
                },
                "message": {
                    "type": "string",
                    "maxLength": MAX_MESSAGE,
                    "description": "Why, and what to do."
                }
            }
        }
    })
}
