//! The table of objects that the API accepts and refuses, `tests/fixtures/api`, held to offline.
//! Tests of a cluster hold the API server to the same table.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

use std::{collections::BTreeSet, fs, path::Path};

use foretoken_crds::{Kind, Manifest, Problem};
use serde_json::{Value, json};

/// An object of the table.
struct Object {
    /// Its document.
    text: String,
    name: String,
    kind: String,
    /// What is to blame, and what is said of it, if it is refused.
    refused: Option<(String, String)>,
}

fn table() -> Vec<Object> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/api");
    let read = |kind: Kind| fs::read_to_string(folder.join(kind.file_name())).unwrap();
    let texts: Vec<String> = Kind::ALL.into_iter().map(read).collect();
    let documents = texts.iter().flat_map(|text| text.split("---\n"));
    documents.map(|text| object(text.to_owned())).collect()
}

fn object(text: String) -> Object {
    let value: Value = serde_saphyr::from_str(&text).unwrap();
    let said = |name: &str| {
        let said = &value["metadata"]["annotations"][format!("test.foretoken.io/{name}")];
        said.as_str().unwrap_or_default().to_owned()
    };
    let verdict = said("verdict");
    assert!(
        ["Accepted", "Refused"].contains(&verdict.as_str()),
        "{text}"
    );
    let refused = (verdict == "Refused").then(|| (said("field"), said("says")));
    Object {
        name: value["metadata"]["name"].as_str().unwrap().to_owned(),
        kind: value["kind"].as_str().unwrap().to_owned(),
        text,
        refused,
    }
}

#[test]
fn every_object_of_the_table_has_its_verdict_for_its_reason() {
    let mut wrong = Vec::new();
    for Object {
        text,
        name,
        kind,
        refused,
    } in table()
    {
        let problems = match Manifest::parse(&text) {
            Ok(_) => Vec::new(),
            Err(invalid) => invalid.problems,
        };
        let is_meant = |problem: &Problem| {
            refused.as_ref().is_some_and(|(field, says)| {
                problem.field.starts_with(field) && problem.message.contains(says)
            })
        };
        // For its reason, and for no other.
        let is_as_told = problems.iter().all(is_meant) && problems.is_empty() == refused.is_none();
        if !is_as_told {
            wrong.push(format!("{kind} {name}, {refused:?}: {problems:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// Messages of all rules in `schema`.
fn messages(schema: &Value, found: &mut BTreeSet<String>) {
    let rules = schema["x-kubernetes-validations"].as_array();
    for rule in rules.into_iter().flatten() {
        found.insert(rule["message"].as_str().unwrap().to_owned());
    }
    let properties = schema["properties"].as_object();
    for property in properties.into_iter().flat_map(|all| all.values()) {
        messages(property, found);
    }
    if schema["items"].is_object() {
        messages(&schema["items"], found);
    }
}

#[test]
fn every_rule_refuses_an_object_of_the_table() {
    let table = table();
    for kind in Kind::ALL {
        let definition = json!(kind.definition());
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut rules = BTreeSet::new();
        messages(schema, &mut rules);
        assert!(!rules.is_empty(), "{}", kind.name());
        let refused = table.iter().filter(|object| object.kind == kind.name());
        let said: Vec<&str> = refused
            .filter_map(|object| object.refused.as_ref())
            .map(|(_, says)| says.as_str())
            .filter(|says| !says.is_empty())
            .collect();
        // Rules of an endpoint that a deployment makes are those of an endpoint.
        let templates: Vec<&str> = table
            .iter()
            .filter_map(|object| object.refused.as_ref())
            .map(|(_, says)| says.as_str())
            .filter(|says| kind == Kind::SpecDecodeDeployment && !says.is_empty())
            .collect();
        let untried: Vec<&String> = rules
            .iter()
            .filter(|rule| {
                !said
                    .iter()
                    .chain(&templates)
                    .any(|says| rule.contains(says))
            })
            .collect();
        assert!(untried.is_empty(), "{}: {untried:#?}", kind.name());
    }
}

#[test]
fn defaults_of_the_schema_are_those_of_the_types() {
    for object in table().iter().filter(|object| object.refused.is_none()) {
        let kind = Kind::called(&object.kind).unwrap();
        let definition = json!(kind.definition());
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let manifest = Manifest::parse(&object.text).unwrap();
        let typed = match kind {
            Kind::SpecDecodeDeployment => json!(manifest.deployments[0].object),
            Kind::SpeculationEndpoint => json!(manifest.endpoints[0].object),
            Kind::AcceleratorProfile => json!(manifest.profiles[0].object),
        };
        let written: Value = serde_saphyr::from_str(&object.text).unwrap();
        let defaulted = kube_cel::apply_defaults(schema, &without_nulls(written));
        assert_eq!(typed["spec"], defaulted["spec"], "{}", object.name);
    }
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            let fields = fields.map(|(name, value)| (name, without_nulls(value)));
            Value::Object(fields.collect())
        }
        other => other,
    }
}

#[test]
fn spoilt_objects_are_refused_and_never_a_fault() {
    // What stands in place of a value, one after the other.
    let spoils = [
        Value::Null,
        json!(true),
        json!(-1),
        json!(1e30),
        json!(""),
        json!("\u{0}x"),
        json!([[]]),
        json!({"a": {}}),
    ];
    for (skipped, object) in table().iter().enumerate() {
        let value: Value = serde_saphyr::from_str(&object.text).unwrap();
        let mut paths = Vec::new();
        pointers(&value, String::new(), &mut paths);
        for (index, path) in paths.iter().enumerate().skip(skipped % 4).step_by(4) {
            let mut spoilt = value.clone();
            *spoilt.pointer_mut(path).unwrap() = spoils[(index + skipped) % spoils.len()].clone();
            // JSON is YAML.
            if let Err(invalid) = Manifest::parse(&spoilt.to_string()) {
                for problem in invalid.problems {
                    let message = &problem.message;
                    let is_fault =
                        message.contains("cannot be read") || message.contains("evaluat");
                    assert!(!is_fault, "{path} of {}: {problem}", object.name);
                }
            }
        }
    }
}

/// Places in `value`, as JSON pointers.
fn pointers(value: &Value, path: String, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let name = name.replace('~', "~0").replace('/', "~1");
                pointers(value, format!("{path}/{name}"), found);
            }
        }
        Value::Array(items) => {
            for (index, value) in items.iter().enumerate() {
                pointers(value, format!("{path}/{index}"), found);
            }
        }
        _ => {}
    }
    if !path.is_empty() {
        found.push(path);
    }
}
