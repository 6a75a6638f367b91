use std::{collections::BTreeMap, fs, path::Path};

use super::*;

#[test]
fn the_committed_definitions_are_those_of_the_types() {
    for kind in Kind::ALL {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../charts/foretoken/definitions")
            .join(kind.file_name());
        let committed = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == kind.yaml(),
            "{} is not what the types say: run `make api`",
            path.display()
        );
    }
}

#[test]
fn values_of_the_chart_may_say_of_a_profile_what_the_definition_may() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/foretoken/values.schema.json");
    let values: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let ours = &values["properties"]["profiles"]["additionalProperties"];
    let definition = json!(Kind::AcceleratorProfile.schema());
    let theirs = &definition["properties"]["spec"];
    // By name: the choices there are, or the type.
    let types = |schema: &Value| -> BTreeMap<String, Value> {
        let properties = schema["properties"].as_object().unwrap().iter();
        let typed = properties.map(|(name, field)| {
            let place = field["$ref"].as_str().and_then(|to| to.strip_prefix('#'));
            let field = place.map_or(field, |place| values.pointer(place).unwrap());
            let choices = field["enum"].is_array();
            let said = if choices { "enum" } else { "type" };
            (name.clone(), field[said].clone())
        });
        typed.collect()
    };
    assert_eq!(types(ours), types(theirs));
    assert_eq!(ours["required"], theirs["required"]);
    assert_eq!(ours["additionalProperties"], false);
}

/// All schemas of a kind, with their paths.
fn schemas(kind: Kind) -> Vec<(String, Value)> {
    fn collect(path: String, schema: &Value, found: &mut Vec<(String, Value)>) {
        let properties = schema["properties"].as_object();
        for (name, property) in properties.into_iter().flatten() {
            collect(format!("{path}.{name}"), property, found);
        }
        for (inner, sign) in [("items", "[]"), ("additionalProperties", "{}")] {
            if schema[inner].is_object() {
                collect(format!("{path}{sign}"), &schema[inner], found);
            }
        }
        found.push((path, schema.clone()));
    }
    let mut found = Vec::new();
    collect(kind.name().to_owned(), &json!(kind.schema()), &mut found);
    found
}

#[test]
fn every_list_text_map_and_number_is_bounded() {
    let mut unbounded = Vec::new();
    for (path, schema) in Kind::ALL.into_iter().flat_map(schemas) {
        let has = |keyword: &str| !schema[keyword].is_null();
        let is_bounded = match schema["type"].as_str() {
            Some("string") => has("maxLength") || has("enum") || schema["format"] == "date-time",
            Some("array") => has("maxItems"),
            Some("object") if has("additionalProperties") => has("maxProperties"),
            // Generations count edits, and have no other bound than their bits.
            Some("integer") if path.ends_with("observedGeneration") => has("minimum"),
            Some("integer") if path.ends_with("tolerationSeconds") => has("minimum"),
            Some("integer" | "number") => has("minimum") && has("maximum"),
            Some("boolean" | "object") => true,
            _ => false,
        };
        if !is_bounded {
            unbounded.push(path);
        }
    }
    assert!(unbounded.is_empty(), "no bound: {unbounded:#?}");
}

#[test]
fn schemas_say_nothing_that_reading_does_not_look_at() {
    const LOOKED_AT: [&str; 22] = [
        "additionalProperties",
        "default",
        "description",
        "enum",
        "format",
        "items",
        "maxItems",
        "maxLength",
        "maxProperties",
        "maximum",
        "minItems",
        "minLength",
        "minProperties",
        "minimum",
        "pattern",
        "properties",
        "required",
        "title",
        "type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-validations",
    ];
    for (path, schema) in Kind::ALL.into_iter().flat_map(schemas) {
        for (keyword, value) in schema.as_object().unwrap() {
            let is_map = keyword == "x-kubernetes-list-type" && value == "map";
            assert!(
                LOOKED_AT.contains(&keyword.as_str()) || is_map,
                "{path} has {keyword}: {value}"
            );
        }
    }
}

#[test]
fn every_pattern_is_put_into_words() {
    for (path, schema) in Kind::ALL.into_iter().flat_map(schemas) {
        if let Some(pattern) = schema["pattern"].as_str() {
            let words = crate::bounds::words(pattern);
            assert!(!words.contains(pattern), "{path}: {words}");
        }
    }
}

#[test]
fn rules_compile_and_blame_fields_that_exist() {
    for kind in Kind::ALL {
        let schema = json!(kind.schema());
        let compiled = kube_cel::compile_schema(&schema);
        assert!(
            !compiled.has_errors(),
            "{:?}",
            compiled.compilation_errors()
        );
        for (path, schema) in schemas(kind) {
            let rules = schema["x-kubernetes-validations"].as_array();
            for rule in rules.into_iter().flatten() {
                let blamed = rule["fieldPath"].as_str().unwrap_or_default();
                let steps = blamed.split('.').skip(1);
                let field = steps.fold(&schema, |schema, step| &schema["properties"][step]);
                assert!(field.is_object(), "{path}: {blamed} is no field of it");
            }
        }
    }
}

#[test]
fn a_definition_reads_back_as_the_object_it_is() {
    for kind in Kind::ALL {
        let read: CustomResourceDefinition = serde_saphyr::from_str(&kind.yaml()).unwrap();
        assert_eq!(&read, kind.definition());
    }
}

#[test]
fn kubectl_finds_kinds_by_short_names_and_together() {
    let names = |kind: Kind| kind.definition().spec.names.clone();
    let short = Kind::ALL.map(|kind| names(kind).short_names.unwrap_or_default().join(" "));
    assert_eq!(short, ["sdd", "spe", "accel"]);
    for kind in Kind::ALL {
        assert_eq!(names(kind).kind, kind.name());
        assert_eq!(names(kind).categories.unwrap(), ["foretoken"]);
        let version = &kind.definition().spec.versions[0];
        let columns = version.additional_printer_columns.as_ref().unwrap();
        let last = columns.last().map(|column| column.name.as_str());
        assert_eq!(last, Some("Age"), "{}", kind.name());
        let has_scale = version
            .subresources
            .as_ref()
            .is_some_and(|all| all.scale.is_some());
        assert_eq!(has_scale, kind != Kind::AcceleratorProfile);
    }
}

#[test]
fn columns_and_scales_point_at_fields() {
    for kind in Kind::ALL {
        let schema = json!(kind.schema());
        let version = &kind.definition().spec.versions[0];
        let columns = version.additional_printer_columns.iter().flatten();
        let mut paths: Vec<&str> = columns.map(|column| column.json_path.as_str()).collect();
        if let Some(scale) = version
            .subresources
            .as_ref()
            .and_then(|all| all.scale.as_ref())
        {
            paths.extend([
                scale.spec_replicas_path.as_str(),
                scale.status_replicas_path.as_str(),
            ]);
            paths.extend(scale.label_selector_path.as_deref());
        }
        for path in paths
            .into_iter()
            .filter(|path| !path.starts_with(".metadata"))
        {
            let plain = path.split("[?").next().unwrap();
            let steps = plain.split('.').skip(1);
            let field = steps.fold(&schema, |schema, step| &schema["properties"][step]);
            assert!(field.is_object(), "{}: {path}", kind.name());
        }
    }
}

#[test]
fn conditions_are_listed_where_they_are_described() {
    use crate::status::condition::{OF_DEPLOYMENTS, OF_ENDPOINTS};
    for (kind, types) in [
        (Kind::SpecDecodeDeployment, OF_DEPLOYMENTS.as_slice()),
        (Kind::SpeculationEndpoint, OF_ENDPOINTS.as_slice()),
    ] {
        let schema = json!(kind.schema());
        let conditions = &schema["properties"]["status"]["properties"]["conditions"];
        let listed: Vec<String> = types.iter().map(|name| format!("`{name}`")).collect();
        assert_eq!(conditions["description"], format!("{}.", listed.join(", ")));
    }
}
