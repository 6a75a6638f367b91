//! What is documented, shown and alerted on of metrics: all of it exists.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

use std::{collections::BTreeMap, fs, path::Path};

use regex::Regex;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Where metrics are made.
const MAKERS: [&str; 4] = [
    "router/src/metrics.rs",
    "target-service/src/metrics.rs",
    "draft-service/src/metrics.rs",
    "lib/telemetry/src/export.rs",
];

/// Names of metrics as services make them, each with where.
fn made() -> BTreeMap<String, &'static str> {
    let name = Regex::new(r#""((?:vllm:|foretoken_)[a-z0-9_]+)""#).unwrap();
    let mut made = BTreeMap::new();
    for path in MAKERS {
        let text = read(path);
        let names = name.captures_iter(&text);
        made.extend(names.map(|found| (found[1].to_owned(), path)));
    }
    made
}

/// Names of metrics in the first columns of the tables of `docs/metrics.md`.
fn documented() -> BTreeMap<String, String> {
    let name = Regex::new("`((?:vllm:|foretoken_)[a-z0-9_]+)`").unwrap();
    let text = read("docs/metrics.md");
    let first = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        Some((cells.next()?, cells.next()?))
    });
    first
        .flat_map(|(names, kind)| {
            let names = name.captures_iter(names);
            names.map(|found| (found[1].to_owned(), kind.to_owned()))
        })
        .collect()
}

#[test]
fn the_tables_name_every_metric_and_none_that_is_not_there() {
    let (made, documented) = (made(), documented());
    assert!(made.len() > 60, "the sources are read: {made:#?}");
    let missing: Vec<_> = made
        .iter()
        .filter(|(name, _)| !documented.contains_key(*name))
        .collect();
    assert!(missing.is_empty(), "not in docs/metrics.md: {missing:#?}");
    let gone: Vec<_> = documented
        .keys()
        .filter(|name| !made.contains_key(*name))
        .collect();
    assert!(gone.is_empty(), "only in docs/metrics.md: {gone:#?}");
}
