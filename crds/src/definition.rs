//! The `CustomResourceDefinition` of each kind, made from its type.
//!
//! ```text
//! Rust type --derive--> schema --tidy--> definition --yaml--> charts/foretoken/definitions, committed
//!                                             \--read, rules--> what `foretoken check` says
//! ```
//!
//! Nothing of the schema is written down twice: bounds, defaults and rules stand at the types.

mod meaning;

use std::sync::OnceLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use crate::{
    bounds::{LABEL, MAX_LABEL, MAX_NAME, SERVICE},
    deployment::SpecDecodeDeployment,
    endpoint::SpeculationEndpoint,
    profile::AcceleratorProfile,
};

/// A kind of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A model that is served.
    SpecDecodeDeployment,
    /// A pool of draft replicas.
    SpeculationEndpoint,
    /// What an accelerator is in this cluster.
    AcceleratorProfile,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 3] = [
        Self::SpecDecodeDeployment,
        Self::SpeculationEndpoint,
        Self::AcceleratorProfile,
    ];

    /// Value of `kind`.
    pub fn name(self) -> &'static str {
        match self {
            Self::SpecDecodeDeployment => "SpecDecodeDeployment",
            Self::SpeculationEndpoint => "SpeculationEndpoint",
            Self::AcceleratorProfile => "AcceleratorProfile",
        }
    }

    /// The kind called `name`.
    pub fn called(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Its definition, as it is installed into a cluster.
    pub fn definition(self) -> &'static CustomResourceDefinition {
        static ALL: OnceLock<[CustomResourceDefinition; 3]> = OnceLock::new();
        &ALL.get_or_init(|| Self::ALL.map(define))[self as usize]
    }

    /// Schema of its objects.
    pub(crate) fn schema(self) -> &'static JSONSchemaProps {
        static NONE: OnceLock<JSONSchemaProps> = OnceLock::new();
        let version = self.definition().spec.versions.first();
        version
            .and_then(|version| version.schema.as_ref()?.open_api_v3_schema.as_ref())
            .unwrap_or_else(|| NONE.get_or_init(JSONSchemaProps::default))
    }

    /// Name of the file that holds the definition.
    pub fn file_name(self) -> String {
        format!("{}.yaml", self.plural())
    }

    /// The definition as a YAML document.
    pub fn yaml(self) -> String {
        let value = json!(self.definition());
        // Numbers and texts, all of which YAML can say.
        let text = serde_saphyr::to_string(&sorted(&value)).unwrap_or_default();
        let name = self.name();
        format!("# Made by `foretoken crd --kind {name}` from the types: edits are lost.\n{text}")
    }

    fn plural(self) -> &'static str {
        &self.definition().spec.names.plural
    }
}

/// What the types derive, made tidy.
fn define(kind: Kind) -> CustomResourceDefinition {
    let mut definition = match kind {
        Kind::SpecDecodeDeployment => SpecDecodeDeployment::crd(),
        Kind::SpeculationEndpoint => SpeculationEndpoint::crd(),
        Kind::AcceleratorProfile => AcceleratorProfile::crd(),
    };
    // Objects outlive the chart that installed their kind.
    let keep = ("helm.sh/resource-policy".to_owned(), "keep".to_owned());
    definition
        .metadata
        .annotations
        .get_or_insert_default()
        .extend([keep]);
    let part = (
        "app.kubernetes.io/part-of".to_owned(),
        "foretoken".to_owned(),
    );
    definition
        .metadata
        .labels
        .get_or_insert_default()
        .extend([part]);
    for version in &mut definition.spec.versions {
        let schema = version.schema.as_mut();
        if let Some(schema) = schema.and_then(|schema| schema.open_api_v3_schema.as_mut()) {
            tidy(schema);
            meaning::add(kind, schema);
            name_bounds(kind, schema);
        }
    }
    definition
}

/// Bounds the object's name, the one thing that a schema may say of metadata.
fn name_bounds(kind: Kind, schema: &mut JSONSchemaProps) {
    let (pattern, longest) = match kind {
        Kind::SpecDecodeDeployment | Kind::SpeculationEndpoint => (SERVICE, MAX_NAME),
        Kind::AcceleratorProfile => (LABEL, MAX_LABEL),
    };
    let name = JSONSchemaProps {
        type_: Some("string".into()),
        max_length: Some(longest.into()),
        pattern: Some(pattern.into()),
        ..JSONSchemaProps::default()
    };
    let metadata = JSONSchemaProps {
        type_: Some("object".into()),
        properties: Some([("name".to_owned(), name)].into()),
        ..JSONSchemaProps::default()
    };
    let properties = schema.properties.get_or_insert_default();
    properties.insert("metadata".into(), metadata);
}

/// Says what Rust's types say in the words that Kubernetes knows: a field that may be absent is
/// not one that may be null, numbers have its formats, descriptions are paragraphs.
fn tidy(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    if let Some(format) = &schema.format
        && format.starts_with("uint")
    {
        let is_small = schema
            .maximum
            .is_some_and(|most| most <= f64::from(i32::MAX));
        schema.format = Some(if is_small { "int32" } else { "int64" }.into());
    }
    if let Some(text) = &mut schema.description {
        let paragraphs = text.split("\n\n").map(|part| part.replace('\n', " "));
        *text = paragraphs.collect::<Vec<_>>().join("\n\n");
    }
    if let Some(JSON(value)) = &mut schema.default {
        *value = sorted(value);
    }
    for property in schema
        .properties
        .iter_mut()
        .flat_map(|all| all.values_mut())
    {
        tidy(property);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        tidy(items);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        tidy(values);
    }
}

/// `value` with the fields of its mappings in the order of the alphabet, whichever order mappings
/// keep in this build, and whole numbers without a fraction.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut all: Vec<_> = fields.iter().collect();
            all.sort_by_key(|(key, _)| *key);
            let fields = all
                .into_iter()
                .map(|(key, value)| (key.clone(), sorted(value)));
            Value::Object(fields.collect())
        }
        Value::Array(items) => items.iter().map(sorted).collect(),
        Value::Number(number) => match number.as_f64() {
            Some(whole) if number.is_f64() && whole.fract() == 0.0 => json!(whole as i64),
            _ => value.clone(),
        },
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests;
