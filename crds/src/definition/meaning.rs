//! What the values of an enum mean, so that `kubectl explain` tells.
//!
//! A schema that Kubernetes takes lists the values of an enum and has no place for what is said of
//! each; it is added to the description of the field.

use std::fmt::Write as _;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray,
};
use schemars::generate::SchemaSettings;
use serde_json::Value;

use crate::{AcceleratorProfile, SpecDecodeDeployment, SpeculationEndpoint, definition::Kind};

/// Adds meanings to `schema`, which is that of `kind`.
pub(super) fn add(kind: Kind, schema: &mut JSONSchemaProps) {
    let generator = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    let generator = generator.into_generator();
    let derived = match kind {
        Kind::SpecDecodeDeployment => generator.into_root_schema_for::<SpecDecodeDeployment>(),
        Kind::SpeculationEndpoint => generator.into_root_schema_for::<SpeculationEndpoint>(),
        Kind::AcceleratorProfile => generator.into_root_schema_for::<AcceleratorProfile>(),
    };
    extend(schema, &derived.to_value());
}

/// `derived` is the same schema before enums have lost what is said of their values.
fn extend(schema: &mut JSONSchemaProps, derived: &Value) {
    // What may be absent is derived as itself or null.
    let derived = match derived["anyOf"].as_array() {
        Some(ways) => ways.first().unwrap_or(derived),
        None => derived,
    };
    for (name, property) in schema.properties.iter_mut().flatten() {
        extend(property, &derived["properties"][name]);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        extend(items, &derived["items"]);
    }
    let meanings = meanings(derived);
    if !meanings.is_empty() {
        let description = schema.description.get_or_insert_default();
        let _ = write!(description, "\n{meanings}");
    }
}

/// One line for each value that something is said of.
fn meanings(derived: &Value) -> String {
    let mut said = String::new();
    for way in derived["oneOf"].as_array().into_iter().flatten() {
        let name = way["const"].as_str().or_else(|| way["enum"][0].as_str());
        if let (Some(name), Some(meaning)) = (name, way["description"].as_str()) {
            let _ = write!(said, "\n- `{name}`: {}", meaning.replace('\n', " "));
        }
    }
    said
}
