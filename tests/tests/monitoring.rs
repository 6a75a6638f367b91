//! What is documented, shown and alerted on of metrics: all of it exists.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use foretoken_tests::repository;
use regex::Regex;
use serde_json::Value;

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap()
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
    let mut made = BTreeMap::new();
    for path in MAKERS {
        made.extend(names(&read(path)).into_iter().map(|name| (name, path)));
    }
    made
}

/// Names of metrics in the source that makes them.
fn names(source: &str) -> BTreeSet<String> {
    let name = Regex::new(r#""((?:vllm:|foretoken_)[a-z0-9_]+)""#).unwrap();
    let names = name.captures_iter(source);
    names.map(|found| found[1].to_owned()).collect()
}

/// Names of metrics in the first columns of the tables of `docs/metrics.md`, with what their rows say
/// of their kinds.
fn documented() -> BTreeMap<String, String> {
    let name = Regex::new("`((?:vllm:|foretoken_)[a-z0-9_]+)`").unwrap();
    let text = read("docs/metrics.md");
    let first = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        Some((cells.next()?, cells.next()?))
    });
    let mut documented = BTreeMap::<String, String>::new();
    for (names, kinds) in first {
        for found in name.captures_iter(names) {
            documented
                .entry(found[1].to_owned())
                .or_default()
                .push_str(kinds);
        }
    }
    documented
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

/// What an expression may add to the name of a metric of this kind.
fn suffixes(kinds: &str) -> Vec<&'static str> {
    let mut allowed = Vec::new();
    for (kind, suffixes) in [
        ("gauge", &[""][..]),
        ("counter", &["_total"]),
        ("histogram", &["_bucket", "_sum", "_count"]),
    ] {
        if kinds.contains(kind) {
            allowed.extend(suffixes);
        }
    }
    allowed
}

/// Names in an expression that are no metric with what its kind has.
fn unknown(expression: &str) -> Vec<String> {
    let name = Regex::new("(?:vllm:|foretoken_)[a-z0-9_:]+").unwrap();
    let documented = documented();
    // A name has several rows: of the router, of targets, of drafts.
    let is_known = |name: &str| {
        documented.iter().any(|(known, kinds)| {
            let rest = name.strip_prefix(known.as_str());
            rest.is_some_and(|rest| suffixes(kinds).contains(&rest))
        })
    };
    let names = name.find_iter(expression).map(|found| found.as_str());
    names
        .filter(|name| !is_known(name))
        .map(ToOwned::to_owned)
        .collect()
}

/// Names in an expression that routers and targets have both, and that does not say whose are meant:
/// one monitor scrapes both, so it counts twice.
fn ambiguous(expression: &str) -> Vec<String> {
    let of = |path: &str| names(&read(path));
    let (router, target) = (
        of("router/src/metrics.rs"),
        of("target-service/src/metrics.rs"),
    );
    let asked = Regex::new(r"((?:vllm:|foretoken_)[a-z0-9_]+)(?:\{([^}]*)\})?").unwrap();
    let asked = asked.captures_iter(expression);
    let doubtful = asked.filter(|found| {
        let is_both = router.intersection(&target).any(|name| {
            let rest = found[1].strip_prefix(name.as_str());
            rest.is_some_and(|rest| ["", "_total", "_bucket", "_sum", "_count"].contains(&rest))
        });
        let says = found.get(2).map_or("", |labels| labels.as_str());
        is_both && !says.contains("model_name")
    });
    doubtful.map(|found| found[1].to_owned()).collect()
}

#[test]
fn no_query_counts_routers_and_targets_together() {
    let one = "foretoken_links_up / sum(rate(vllm:prompt_tokens_total{model_name=\"\"}[1m]))";
    assert_eq!(ambiguous(one), [""; 0]);
    let both =
        "sum(rate(vllm:prompt_tokens_total{namespace=\"a\"}[1m])) / vllm:num_requests_running";
    let names = ["vllm:prompt_tokens_total", "vllm:num_requests_running"];
    assert_eq!(ambiguous(both), names);

    let mut queries = Vec::new();
    let rules = read("charts/foretoken/monitoring/rules.yaml");
    let rules: Value = serde_saphyr::from_str(&rules).unwrap();
    collect(&rules, &mut queries);
    let alerts = queries.len();
    let dashboard = read("charts/foretoken/monitoring/dashboard.json");
    collect(&serde_json::from_str(&dashboard).unwrap(), &mut queries);
    let shown = queries.len();
    // What the documentation suggests stands in its tables, and calls functions.
    let quoted = Regex::new("`([^`]+)`").unwrap();
    let text = read("docs/metrics.md");
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let quoted = rows.flat_map(|row| quoted.captures_iter(row).map(|found| found[1].to_owned()));
    queries.extend(quoted.filter(|quoted| quoted.contains("rate(")));
    assert!(0 < alerts && alerts < shown && shown < queries.len());
    for query in queries {
        assert_eq!(ambiguous(&query), [""; 0], "{query}");
    }
}

/// All expressions of rules, or of a dashboard.
fn collect(value: &Value, queries: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            queries.extend(
                fields
                    .get("expr")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
            );
            fields.values().for_each(|field| collect(field, queries));
        }
        Value::Array(list) => list.iter().for_each(|item| collect(item, queries)),
        _ => {}
    }
}

#[test]
fn the_search_for_unknown_names_knows_kinds() {
    let good = "rate(vllm:generation_tokens_total[1m]) / vllm:kv_cache_usage_perc";
    assert_eq!(unknown(good), [""; 0]);
    let bad = "vllm:generation_tokens + foretoken_step_seconds + foretoken_nothing_total";
    let names = [
        "vllm:generation_tokens",
        "foretoken_step_seconds",
        "foretoken_nothing_total",
    ];
    assert_eq!(unknown(bad), names);
}

#[test]
fn every_query_of_the_dashboard_asks_for_metrics_that_exist() {
    let text = read("charts/foretoken/monitoring/dashboard.json");
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut queries = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        let Some(targets) = panel["targets"].as_array() else {
            assert_eq!(panel["type"], "row");
            continue;
        };
        for target in targets {
            queries += 1;
            let expression = target["expr"].as_str().unwrap();
            assert_eq!(unknown(expression), [""; 0], "{}", panel["title"]);
        }
    }
    assert!(queries > 30, "{queries}");
    let variables = dashboard["templating"]["list"].to_string();
    assert_eq!(unknown(&variables), [""; 0]);
}

#[test]
fn every_alert_asks_for_metrics_that_exist_and_says_what_to_do() {
    let text = read("charts/foretoken/monitoring/rules.yaml");
    let rules: Value = serde_saphyr::from_str(&text).unwrap();
    let runbook = read("docs/alerts.md");
    let groups = rules["groups"].as_array().unwrap().iter();
    let rules: Vec<&Value> = groups
        .flat_map(|group| group["rules"].as_array().unwrap())
        .collect();
    for rule in &rules {
        let name = rule["alert"].as_str().unwrap();
        let expression = rule["expr"].as_str().unwrap();
        assert_eq!(unknown(expression), [""; 0], "{name}");
        assert!(
            ["critical", "warning", "info"].contains(&rule["labels"]["severity"].as_str().unwrap())
        );
        for field in ["summary", "description"] {
            assert!(rule["annotations"][field].is_string(), "{name}: {field}");
        }
        let anchor = format!("docs/alerts.md#{}", name.to_lowercase());
        let url = rule["annotations"]["runbook_url"].as_str().unwrap();
        assert!(url.ends_with(&anchor), "{url}");
        assert!(runbook.contains(&format!("\n## {name}\n")), "{name}");
    }
    let headings = runbook
        .lines()
        .filter(|line| line.starts_with("## "))
        .count();
    assert_eq!(
        headings,
        rules.len(),
        "each alert has its heading, and no other"
    );
}
