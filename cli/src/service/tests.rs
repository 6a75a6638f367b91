//! `docs/configuration.md` is what the types say.

use std::collections::{BTreeMap, BTreeSet};

use foretoken_draft::DraftConfig;
use foretoken_router::RouterConfig;
use foretoken_target::{LookaheadConfig, TargetConfig};
use serde_json::Value;

use crate::{
    draft,
    model::{ModelConfig, Simulated},
    target,
};

const PAGE: &str = include_str!("../../../docs/configuration.md");

/// What stands below a title of the page.
fn section(title: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("\n## {title}\n")).unwrap();
    rest.split("\n## ").next().unwrap()
}

/// Its example.
fn example(title: &str) -> &'static str {
    let (_, rest) = section(title).split_once("```yaml\n").unwrap();
    rest.split("```").next().unwrap()
}

/// Whole numbers and others are alike in YAML.
fn plain(value: Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().into(),
        Value::Array(values) => values.into_iter().map(plain).collect(),
        Value::Object(fields) => fields.into_iter().map(|(k, v)| (k, plain(v))).collect(),
        other => other,
    }
}

/// The fields of its table, with their defaults.
fn documented(title: &str) -> BTreeMap<String, Value> {
    let mut fields = BTreeMap::new();
    for row in section(title).lines().filter(|row| row.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let [names, defaults] =
            [cells[0], cells[1]].map(|cell| cell.trim_matches('`').split("`, `"));
        let defaults: Vec<&str> = defaults.collect();
        for (place, name) in names.enumerate() {
            let default = defaults.get(place).unwrap_or(&defaults[0]);
            let default = serde_saphyr::from_str(default).unwrap();
            let before = fields.insert(name.to_owned(), plain(default));
            assert!(before.is_none(), "{name} stands there twice");
        }
    }
    fields
}

/// Those of a type, with their defaults.
fn defaults(config: impl serde::Serialize) -> BTreeMap<String, Value> {
    let mut fields = BTreeMap::new();
    let all = serde_json::to_value(config).unwrap();
    for (name, value) in all.as_object().unwrap().clone() {
        match value {
            Value::Object(inner) if name == "ssd" => fields.extend(
                inner
                    .into_iter()
                    .map(|(field, value)| (format!("{name}.{field}"), plain(value))),
            ),
            value => {
                fields.insert(name, plain(value));
            }
        }
    }
    fields
}

#[test]
fn every_field_stands_in_the_page_with_its_default() {
    for (title, told) in [
        (
            "Targets and drafts: `model`",
            defaults(ModelConfig::default()),
        ),
        ("Targets: `service`", defaults(TargetConfig::default())),
        ("Drafts: `service`", defaults(DraftConfig::default())),
        ("Routers", defaults(RouterConfig::default())),
    ] {
        assert_eq!(documented(title), told, "{title}");
    }
}

/// All names of fields in a value, and in those in it.
fn names(value: &Value, into: &mut BTreeSet<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| names(value, into)),
        Value::Object(fields) => {
            for (name, value) in fields {
                into.insert(name.clone());
                names(value, into);
            }
        }
        _ => {}
    }
}

#[test]
fn its_examples_are_read_and_nothing_in_them_goes_without_a_word() {
    let target: target::File = serde_saphyr::from_str(example("Targets: `service`")).unwrap();
    target.service.validate().unwrap();
    let draft: draft::File = serde_saphyr::from_str(example("Drafts: `service`")).unwrap();
    draft.service.validate().unwrap();
    let router: RouterConfig = serde_saphyr::from_str(example("Routers")).unwrap();
    router.check().unwrap();
    let mut fields = BTreeSet::new();
    for value in [
        serde_json::to_value(target),
        serde_json::to_value(draft),
        serde_json::to_value(router),
        serde_json::to_value(Simulated::default()),
    ] {
        names(&value.unwrap(), &mut fields);
    }
    for field in fields {
        let is_told = [
            format!("`{field}`"),
            format!(".{field}`"),
            format!("{field}:"),
        ];
        assert!(
            is_told.iter().any(|told| PAGE.contains(told)),
            "{field} is in no word of the page"
        );
    }
}

#[test]
fn a_lookahead_has_a_long_and_a_short_form() {
    let read = |lookahead: &str| {
        let text = format!("service: {{lookahead: {lookahead}, ssd: {{lookahead: {lookahead}}}}}");
        let read = serde_saphyr::from_str::<target::File>(&text);
        read.map(|file| (file.service.lookahead, file.service.ssd.lookahead))
    };
    let (fixed, adaptive) = (
        LookaheadConfig::Fixed(5),
        LookaheadConfig::Adaptive { max: 12 },
    );
    for (text, config) in [
        ("5", fixed),
        ("{Fixed: 5}", fixed),
        ("adaptive:12", adaptive),
        ("{Adaptive: {max: 12}}", adaptive),
    ] {
        assert_eq!(read(text).unwrap(), (config, config), "{text}");
    }
    for wrong in [
        "many",
        "-1",
        "true",
        "{Fixed: many}",
        "{Adaptive: {most: 3}}",
        "[5]",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
    let told = read("many").unwrap_err().to_string();
    assert!(
        told.contains("must be a whole number, or adaptive:MAX"),
        "{told}"
    );
}
