//! What the kinds are made of.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::bounds::{self, LABEL, MAX_LABEL, MAX_LABELS, MAX_REPLICAS, MAX_TEXT, PRINTABLE, rule};

/// Namespace of objects that name none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Name of an object; a valid one has a name.
pub fn name(metadata: &ObjectMeta) -> &str {
    metadata.name.as_deref().unwrap_or_default()
}

/// Namespace of an object.
pub fn namespace(metadata: &ObjectMeta) -> &str {
    metadata.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE)
}

/// A share, without a fraction if it is whole, as the API server keeps it: what is applied is then what is
/// found again.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
pub(crate) fn plainly<S: Serializer>(share: &f64, to: S) -> Result<S::Ok, S::Error> {
    if share.fract() == 0.0 {
        to.serialize_u64(*share as u64)
    } else {
        to.serialize_f64(*share)
    }
}

/// Where a model comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule(
        "!has(self.revision) || self.uri.startsWith('hf://')",
        ".revision",
        "is only allowed with a hf:// URI",
    ),
    rule(
        "!has(self.revision) || !self.uri.contains('@')",
        ".revision",
        "is not allowed where the URI has one too",
    ),
]))]
pub struct ModelSource {
    /// `hf://owner/name`, `pvc://claim/path`, `oci://image`, `file:///path`, or, for
    /// `foretoken up` only, a path relative to the file.
    #[schemars(length(min = 1, max = MAX_TEXT), extend("x-kubernetes-validations" = [
        rule(
            "!self.contains('://') || self.matches('^(hf|file|pvc|oci)://')",
            "",
            "must start with hf://, file:///, pvc:// or oci://",
        ),
        rule(
            "!self.startsWith('hf://') || self.matches('^hf://[^/@]+/[^/@]+(@[^@]+)?$')",
            "",
            "must be hf://owner/name, for a hub",
        ),
        rule(
            "!self.startsWith('file://') || self.matches('^file:///.')",
            "",
            "must be file:///absolute/path, for a folder",
        ),
        rule(
            "!self.startsWith('pvc://') || \
             self.matches('^pvc://[a-z0-9]([-a-z0-9]*[a-z0-9])?/.')",
            "",
            "must be pvc://claim/path, for a volume claim",
        ),
        rule(
            "!self.startsWith('oci://') || self.matches('^oci://.')",
            "",
            "must be oci://image, for an image",
        ),
    ]))]
    pub uri: String,
    /// Branch, tag or commit, for `hf://`; absent: `main`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_TEXT))]
    pub revision: Option<String>,
    /// Name that clients use; absent: the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_TEXT), regex(pattern = PRINTABLE))]
    pub served_name: Option<String>,
}

impl ModelSource {
    /// Whether the URI is a path without a scheme, which only one machine understands.
    pub fn is_local_path(&self) -> bool {
        !self.uri.contains("://")
    }
}

/// How weights are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum DataType {
    /// 16 bits, the range of f32.
    #[default]
    Bfloat16,
    /// 32 bits.
    Float32,
    /// 8 bits with scales, made at load.
    Int8,
}

/// A number of replicas that follows the load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(bound = "M: Default + JsonSchema + Serialize")]
#[schemars(extend("x-kubernetes-validations" = [
    rule("self.min <= self.max", ".min", "must be at most max"),
]))]
pub struct Scaling<M: Default> {
    /// Fewest replicas.
    #[schemars(range(min = 0, max = MAX_REPLICAS))]
    pub min: u32,
    /// Most replicas.
    #[schemars(range(min = 1, max = MAX_REPLICAS))]
    pub max: u32,
    /// What the number follows.
    #[serde(default)]
    pub metric: M,
}

/// What a replica runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    rule(
        "has(self.profile) != has(self.claimTemplate)",
        "",
        "must have exactly one of profile, claimTemplate",
    ),
]))]
pub struct Accelerator {
    /// Name of an `AcceleratorProfile`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_LABEL), regex(pattern = LABEL))]
    pub profile: Option<String>,
    /// Name of a `ResourceClaimTemplate` of the object's namespace: dynamic resource allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_LABEL), regex(pattern = LABEL))]
    pub claim_template: Option<String>,
}

/// Objects with these labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    /// Labels that must all match, at least one.
    #[schemars(schema_with = "some_labels")]
    pub match_labels: BTreeMap<String, String>,
}

impl Selector {
    /// Whether an object with `labels` is meant. A selector without labels means none.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.match_labels.is_empty()
            && self
                .match_labels
                .iter()
                .all(|(key, value)| labels.get(key) == Some(value))
    }
}

/// What is added to the pods that the operator makes: a strategic merge patch of their template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodPatch {
    /// Labels and annotations of the pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<PodMetadata>,
    /// A part of a pod's `spec`, merged by the rules of strategic merge patches: containers by name,
    /// and what serves is in the container `target`, `draft` or `router`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "anything")]
    pub spec: Option<Value>,
}

/// Labels and annotations of pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodMetadata {
    /// Labels; those of `foretoken.io` are the operator's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "labels")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "annotations")]
    pub annotations: BTreeMap<String, String>,
}

/// Schema of an object that is somebody else's API, checked where it is used.
fn anything(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// Schema of labels.
pub(crate) fn labels(_: &mut SchemaGenerator) -> Schema {
    bounds::texts(MAX_LABELS, MAX_LABEL, Some(bounds::LABEL_VALUE))
}

/// Schema of labels, at least one.
fn some_labels(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = labels(generator);
    schema.insert("minProperties".into(), 1.into());
    schema
}

/// Schema of annotations.
fn annotations(_: &mut SchemaGenerator) -> Schema {
    bounds::texts(MAX_LABELS, 4 * MAX_TEXT, None)
}
