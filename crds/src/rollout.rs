//! How a pool comes to another draft, and what became of it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{
    bounds::{MAX_LABEL, rule},
    object::plainly,
};

/// Largest count of a status.
const MAX_COUNT: u32 = i32::MAX as u32;
/// Longest reason and message of what a rollout came to.
const MAX_WHY: u32 = 2048;

/// How a pool comes to another model, `dtype`, `kvCacheMemory`, `parallelism`, `accelerator` or
/// `template`: to another revision. All else that changes its pods replaces them one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [rule(
    "!has(self.canary) || self.type == 'Canary'",
    ".canary",
    "is only allowed with type Canary",
)]))]
pub struct RolloutSpec {
    /// In which way.
    #[serde(rename = "type", default)]
    pub kind: RolloutType,
    /// How the two revisions are compared, with type `Canary`; absent: all of its defaults.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanarySpec>,
}

/// Ways to another revision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutType {
    /// Beside the old one until targets have used both: then the better one stays.
    #[default]
    Canary,
    /// At once, whatever it is worth.
    Rolling,
}

/// How a new revision is compared with the old one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CanarySpec {
    /// Percent of the replicas that have the new revision, at least one replica. A pool of one has
    /// one more meanwhile.
    #[serde(default = "share")]
    #[schemars(range(min = 1, max = 50))]
    pub share: u32,
    /// Verdicts on proposals of each revision that are needed to compare them.
    #[serde(default = "min_verdicts")]
    #[schemars(range(min = 20, max = 1_000_000))]
    pub min_verdicts: u32,
    /// How much shorter the new revision's acceptance length may be, as a share of the old one's.
    #[serde(default = "tolerance", serialize_with = "plainly")]
    #[schemars(range(min = 0, max = 1))]
    pub tolerance: f64,
    /// How long the new revision may take to become ready, and then to have its verdicts.
    #[serde(default = "deadline_seconds")]
    #[schemars(range(min = 30, max = 86_400))]
    pub deadline_seconds: u32,
    /// What happens if there were too few verdicts by then.
    #[serde(default)]
    pub undecided: Undecided,
}

impl Default for CanarySpec {
    fn default() -> Self {
        Self {
            share: share(),
            min_verdicts: min_verdicts(),
            tolerance: tolerance(),
            deadline_seconds: deadline_seconds(),
            undecided: Undecided::default(),
        }
    }
}

fn share() -> u32 {
    25
}

fn min_verdicts() -> u32 {
    300
}

fn tolerance() -> f64 {
    0.1
}

fn deadline_seconds() -> u32 {
    900
}

/// What happens to a new revision that could not be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Undecided {
    /// It replaces the old one: it is ready, and whatever it proposes, output stays the same.
    #[default]
    Promote,
    /// The old one stays.
    RollBack,
}

/// How far a pool is with its revisions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// Digest of the revision that serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_LABEL))]
    pub revision: Option<String>,
    /// The one that is tried beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<CanaryStatus>,
    /// What the last trial came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<RolloutOutcome>,
}

/// A revision that is tried.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CanaryStatus {
    /// Its digest.
    #[schemars(length(max = MAX_LABEL))]
    pub revision: String,
    /// When it was begun with.
    #[schemars(schema_with = "time")]
    pub started_at: Time,
    /// When it was ready first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "time")]
    pub ready_at: Option<Time>,
    /// What proposals of the old revision came to since it was ready.
    #[serde(default)]
    pub old: RevisionFigures,
    /// The same of the new one.
    #[serde(default)]
    pub new: RevisionFigures,
}

/// What proposals of a revision came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevisionFigures {
    /// Windows that targets verified.
    #[serde(default)]
    #[schemars(range(min = 0, max = MAX_COUNT))]
    pub verdicts: u32,
    /// Tokens that a round with a window decided on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub acceptance_length: Option<f64>,
}

/// What a trial came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutOutcome {
    /// Digest of the revision that was tried. One that was rolled back is not tried again until
    /// the spec asks for another.
    #[schemars(length(max = MAX_LABEL))]
    pub revision: String,
    /// What became of it.
    pub result: RolloutResult,
    /// Why, in one word.
    #[schemars(length(max = MAX_WHY))]
    pub reason: String,
    /// Why, with the figures of both.
    #[schemars(length(max = MAX_WHY))]
    pub message: String,
    /// When.
    #[schemars(schema_with = "time")]
    pub at: Time,
}

/// What became of a revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RolloutResult {
    /// It serves.
    Promoted,
    /// It is gone, and the old one serves.
    RolledBack,
}

/// Schema of a time.
fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}
