//! A real scrape of every service, against `docs/metrics.md`.

use std::{collections::BTreeMap, fs};

use foretoken_tests::repository;
use serde_json::json;

use crate::fixture::{Up, manifest, run, wait};

/// Kinds of metrics by name, as a scrape tells them.
fn kinds(text: &str) -> BTreeMap<String, String> {
    let told = text.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some((name.to_owned(), kind.to_owned()))
    });
    told.collect()
}

/// The rows of the table under this heading of `docs/metrics.md`: names, and what kinds they are.
fn table(heading: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(repository().join("docs/metrics.md")).unwrap();
    let (_, rest) = text.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = rest.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        Some((cells.next()?.to_owned(), cells.next()?.to_owned()))
    });
    rows.collect()
}

#[test]
fn what_every_service_shows_is_documented_with_its_kind() {
    let up = Up::serving(
        &manifest(1),
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")],
    );
    let request = json!({"model": "story", "prompt": "Once", "max_tokens": 24, "seed": 1});
    run(up.complete(&request));
    for (service, heading) in [
        ("router", "Router"),
        ("target-0", "Target"),
        ("draft-tiny-0", "Draft"),
    ] {
        let service = up.service(service).unwrap();
        let url = format!("{}/metrics", service["metrics"].as_str().unwrap());
        let scrape = || async {
            let answer = reqwest::get(&url).await;
            answer.unwrap().text().await.unwrap()
        };
        // Spans are given up a second after they were made.
        let shown = wait("a scrape with spans", || {
            let shown = kinds(&run(scrape()));
            shown
                .contains_key("foretoken_spans_dropped")
                .then_some(shown)
        });
        let rows = table(heading);
        for (name, kind) in shown {
            let own = rows
                .iter()
                .find(|(names, _)| names.contains(&format!("`{name}`")));
            let everywhere = name.starts_with("foretoken_spans_");
            let (_, kinds) = match own {
                Some(row) => row,
                None if everywhere => continue,
                None => panic!("{name} is not in the table of {heading}"),
            };
            let is_said = kinds.contains(&kind) || kinds == "as above";
            assert!(is_said, "{name} of {heading} is a {kind}, not {kinds}");
        }
    }
}
