//! The table of objects that the API accepts and refuses, `tests/fixtures/api`, held to offline.
//! Tests of a cluster hold the API server to the same table.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

use std::{fs, path::Path};

use foretoken_crds::{Kind, Manifest, Problem};
use kube_cel::{CompiledSchema, ErrorKind, ValidationErrors};
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
    let table = table();
    let brought = brought_along(&table);
    for Object {
        text,
        name,
        kind,
        refused,
    } in table.into_iter().chain(brought)
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

/// The endpoints of the table, each brought along by a deployment: what is said of one holds there too.
fn brought_along(table: &[Object]) -> Vec<Object> {
    let endpoints = table.iter().filter(|object| {
        let is_endpoint = object.kind == Kind::SpeculationEndpoint.name();
        // What is said of its metadata is not part of a template.
        let blamed = object.refused.as_ref().map(|(field, _)| field.as_str());
        is_endpoint && blamed.is_none_or(|field| field.starts_with("spec."))
    });
    let brought = endpoints.map(|endpoint| {
        let Object {
            text,
            name,
            kind: _,
            refused,
        } = endpoint;
        let endpoint: Value = serde_saphyr::from_str(text).unwrap();
        let deployment = json!({
            "apiVersion": foretoken_crds::API_VERSION,
            "kind": Kind::SpecDecodeDeployment.name(),
            "metadata": {"name": name},
            "spec": {"model": {"uri": "hf://owner/name"}, "speculation": {
                "policy": {"type": "Speculative"},
                "endpoints": [{"template": endpoint["spec"]}],
            }},
        });
        let refused = refused.as_ref().map(|(field, says)| {
            let within = "spec.speculation.endpoints[0].template.";
            (field.replacen("spec.", within, 1), says.clone())
        });
        Object {
            // JSON is YAML.
            text: deployment.to_string(),
            name: format!("{name} brought along"),
            kind: Kind::SpecDecodeDeployment.name().to_owned(),
            refused,
        }
    });
    brought.collect()
}

/// A rule: where in the schema it stands, and what it says.
#[derive(Debug)]
struct Rule {
    place: String,
    text: String,
    message: String,
}

/// All rules in `schema`, which stands at `place`, a JSON pointer.
fn rules(place: &str, schema: &Value, found: &mut Vec<Rule>) {
    let here = schema[RULES].as_array();
    for rule in here.into_iter().flatten() {
        let said = |name: &str| rule[name].as_str().unwrap().to_owned();
        found.push(Rule {
            place: place.to_owned(),
            text: said("rule"),
            message: said("message"),
        });
    }
    let properties = schema["properties"].as_object();
    for (name, property) in properties.into_iter().flatten() {
        rules(&format!("{place}/properties/{name}"), property, found);
    }
    for inner in ["items", "additionalProperties"] {
        if schema[inner].is_object() {
            rules(&format!("{place}/{inner}"), &schema[inner], found);
        }
    }
}

/// Field of a schema with its rules.
const RULES: &str = "x-kubernetes-validations";

/// `schema` with one rule and no other.
fn alone(schema: &Value, place: &str, text: &str) -> CompiledSchema {
    fn strip(schema: &mut Value) {
        match schema {
            Value::Object(fields) => {
                fields.remove(RULES);
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut schema = schema.clone();
    strip(&mut schema);
    schema.pointer_mut(place).unwrap()[RULES] = json!([{"rule": text, "message": "broken"}]);
    let compiled = kube_cel::compile_schema(&schema);
    assert!(!compiled.has_errors(), "{text}");
    compiled
}

/// What of a rule does not hold where its last part decides: without that, and nowhere if there is no
/// other part.
fn all_but_the_last(text: &str) -> &str {
    let (mut depth, mut end) = (0, None);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'|' if depth == 0 && text[..index].ends_with('|') => end = Some(index - 1),
            _ => {}
        }
    }
    end.map_or("false", |end| text[..end].trim())
}

#[test]
fn every_rule_alone_refuses_an_object_and_decides_that_another_is_accepted() {
    let mut table = table();
    table.extend(brought_along(&table));
    for kind in Kind::ALL {
        let definition = json!(kind.definition());
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let of_kind = table.iter().filter(|object| object.kind == kind.name());
        // As the API server sees it, and what is wrong with it.
        let objects: Vec<(Value, Vec<Problem>)> = of_kind
            .map(|object| {
                let value: Value = serde_saphyr::from_str(&object.text).unwrap();
                let value = kube_cel::apply_defaults(schema, &without_nulls(value));
                let parsed = Manifest::parse(&object.text);
                let problems = parsed.err().map(|invalid| invalid.problems);
                (value, problems.unwrap_or_default())
            })
            .collect();
        let mut found = Vec::new();
        rules("", schema, &mut found);
        assert!(!found.is_empty(), "{}", kind.name());
        let mut untried = Vec::new();
        for rule in found {
            let Rule {
                place,
                text,
                message,
            } = &rule;
            let breaks = |compiled: &CompiledSchema, value: &Value| {
                let errors = kube_cel::validate_compiled(compiled, value, None).err();
                let errors = errors.map(ValidationErrors::into_vec).unwrap_or_default();
                (errors.iter()).any(|error| error.kind == ErrorKind::ValidationFailure)
            };
            let it = alone(schema, place, text);
            let refuses = objects.iter().any(|(value, problems)| match &problems[..] {
                [only] => only.message.contains(message.as_str()) && breaks(&it, value),
                _ => false,
            });
            let rest = alone(schema, place, all_but_the_last(text));
            let decides = (objects.iter())
                .any(|(value, problems)| problems.is_empty() && breaks(&rest, value));
            if !(refuses && decides) {
                untried.push((refuses, decides, rule));
            }
        }
        assert!(
            untried.is_empty(),
            "{}: neither refused alone nor accepted for it: {untried:#?}",
            kind.name()
        );
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
