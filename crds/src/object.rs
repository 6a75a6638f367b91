//! What both kinds are made of.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Namespace of objects that name none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// Name and labels of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// Name, unique per kind and namespace.
    pub name: String,
    /// Namespace; `default` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Labels, for selectors.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations; nothing here reads them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}

impl Metadata {
    /// The namespace the object is in.
    pub fn namespace(&self) -> &str {
        self.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE)
    }
}

/// Where a model comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelSource {
    /// `hf://owner/name`, `pvc://claim/path`, `oci://image`, `file:///path`, or, for
    /// `foretoken up` only, a path relative to the file.
    pub uri: String,
    /// Branch, tag or commit, for `hf://`; absent: `main`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Name that clients use; absent: the object's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_name: Option<String>,
}

impl ModelSource {
    /// Whether the URI is a path without a scheme, which only one machine understands.
    pub fn is_local_path(&self) -> bool {
        !self.uri.contains("://")
    }
}

/// How weights are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Scaling {
    /// Fewest replicas.
    pub min: u32,
    /// Most replicas.
    pub max: u32,
    /// What the number follows; absent: the operator's choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
}

/// What a replica runs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Accelerator {
    /// Name of an `AcceleratorProfile`.
    pub profile: String,
}

/// Objects with these labels.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Selector {
    /// Labels that must all match.
    #[serde(default)]
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
