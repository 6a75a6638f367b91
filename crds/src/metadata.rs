//! The part of an object that Kubernetes has rules for itself.

use std::sync::OnceLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrBool,
};
use regex::Regex;
use serde_json::Value as Json;

use crate::{
    bounds::{LABEL, LABEL_VALUE, MAX_LABEL, QUALIFIED, words},
    definition::Kind,
    problem::{Lines, Problem},
    tree::{Node, Value},
};

/// Fields of metadata that a file may have besides those that are read: what a cluster adds.
const OTHERS: [&str; 11] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];
/// Fields of metadata that are read.
const READ: [&str; 4] = ["name", "namespace", "labels", "annotations"];

/// Schema of a whole document of `kind`: its definition's, and what every object has.
pub(crate) fn document(kind: Kind) -> &'static JSONSchemaProps {
    static ALL: OnceLock<[JSONSchemaProps; 3]> = OnceLock::new();
    &ALL.get_or_init(|| Kind::ALL.map(with_metadata))[kind as usize]
}

fn with_metadata(kind: Kind) -> JSONSchemaProps {
    let mut schema = kind.schema().clone();
    let properties = schema.properties.get_or_insert_default();
    let metadata = properties.entry("metadata".into()).or_default();
    metadata.required = Some(vec!["name".into()]);
    let fields = metadata.properties.get_or_insert_default();
    fields.insert("namespace".into(), text(Some(MAX_LABEL), LABEL));
    fields.insert("labels".into(), texts(text(Some(MAX_LABEL), LABEL_VALUE)));
    fields.insert("annotations".into(), texts(text(None, "")));
    for name in OTHERS {
        fields.insert(name.into(), JSONSchemaProps::default());
    }
    for name in ["apiVersion", "kind"] {
        properties.insert(name.into(), text(None, ""));
    }
    // Who writes a file does not write its status, and who applies it cannot.
    if let Some(status) = properties.get_mut("status") {
        *status = JSONSchemaProps::default();
    }
    schema
        .required
        .get_or_insert_default()
        .push("metadata".into());
    schema
}

fn text(longest: Option<u32>, pattern: &str) -> JSONSchemaProps {
    JSONSchemaProps {
        type_: Some("string".into()),
        max_length: longest.map(i64::from),
        pattern: Some(pattern.to_owned()).filter(|pattern| !pattern.is_empty()),
        ..JSONSchemaProps::default()
    }
}

fn texts(each: JSONSchemaProps) -> JSONSchemaProps {
    JSONSchemaProps {
        type_: Some("object".into()),
        additional_properties: Some(JSONSchemaPropsOrBool::Schema(Box::new(each))),
        ..JSONSchemaProps::default()
    }
}

/// Leaves what is read of a document.
pub(crate) fn prune(document: &mut Json) {
    if let Some(fields) = document.as_object_mut() {
        fields.remove("status");
    }
    if let Some(fields) = document.get_mut("metadata").and_then(Json::as_object_mut) {
        fields.retain(|name, _| READ.contains(&name.as_str()));
    }
}

/// What is wrong with the keys of labels and annotations, which no schema can say.
pub(crate) fn keys(document: &Node, lines: &Lines) -> Vec<Problem> {
    static KEY: OnceLock<Option<Regex>> = OnceLock::new();
    let key = KEY.get_or_init(|| Regex::new(QUALIFIED).ok());
    let is_key = |text: &str| {
        let name = text.rsplit('/').next().unwrap_or_default();
        name.len() <= MAX_LABEL as usize && key.as_ref().is_some_and(|key| key.is_match(text))
    };
    let mut problems = Vec::new();
    for map in ["metadata.labels", "metadata.annotations"] {
        let Some(Value::Map(entries)) = document.at(map).map(|node| &node.value) else {
            continue;
        };
        for entry in entries.iter().filter(|entry| !is_key(&entry.key)) {
            let message = format!(
                "{:?} is not allowed: must be {}",
                entry.key,
                words(QUALIFIED)
            );
            problems.push(lines.problem(map, message));
        }
    }
    problems
}
