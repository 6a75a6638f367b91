use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use serde_json::json;

use super::*;

fn deployment(sources: &serde_json::Value) -> SpecDecodeDeployment {
    let object = json!({
        "apiVersion": "foretoken.io/v1alpha1",
        "kind": "SpecDecodeDeployment",
        "metadata": {"name": "story", "namespace": "chat"},
        "spec": {
            "model": {"uri": "hf://a/b"},
            "speculation": {"policy": {"type": "Speculative"}, "endpoints": sources},
        },
    });
    serde_json::from_value(object).expect("valid")
}

fn endpoint(name: &str, rest: serde_json::Value) -> Arc<SpeculationEndpoint> {
    let mut spec = json!({"model": {"uri": "hf://a/c"}});
    if let (Some(spec), serde_json::Value::Object(rest)) = (spec.as_object_mut(), rest) {
        spec.extend(rest);
    }
    let object = json!({
        "apiVersion": "foretoken.io/v1alpha1",
        "kind": "SpeculationEndpoint",
        "metadata": {"name": name, "namespace": "drafts", "labels": {"size": "tiny"}},
        "spec": spec,
    });
    Arc::new(serde_json::from_value(object).expect("valid"))
}

fn labels() -> BTreeMap<String, String> {
    [("team".to_owned(), "chat".to_owned())].into()
}

fn said(
    sources: &serde_json::Value,
    endpoints: &[Arc<SpeculationEndpoint>],
) -> (usize, Vec<String>) {
    let known = Known {
        endpoints,
        labels: &labels(),
    };
    let resolved = resolve(&deployment(sources), &known);
    let problems = resolved.problems.iter();
    let said = problems.map(|problem| format!("{}: {problem}", problem.reason()));
    (resolved.found.len(), said.collect())
}

const TINY: &str = r#"[{"name": "tiny", "namespace": "drafts", "weight": 2}]"#;

fn tiny() -> serde_json::Value {
    serde_json::from_str(TINY).expect("JSON")
}

#[test]
fn another_namespace_needs_a_grant() {
    let (found, said) = self::said(&tiny(), &[endpoint("tiny", json!({}))]);
    assert_eq!(found, 0);
    assert_eq!(
        said,
        [
            "NotGranted: spec.speculation.endpoints[0]: SpeculationEndpoint drafts/tiny does not \
             allow namespace chat: ask its owner to set spec.allowedNamespaces to {from: All}, or \
             to a selector that selects chat"
        ]
    );
    let all = endpoint("tiny", json!({"allowedNamespaces": {"from": "All"}}));
    assert_eq!(self::said(&tiny(), &[all]), (1, vec![]));
    for (team, found) in [("chat", 1), ("search", 0)] {
        let selector = json!({"matchLabels": {"team": team}});
        let rest = json!({"allowedNamespaces": {"from": "Selector", "selector": selector}});
        assert_eq!(
            self::said(&tiny(), &[endpoint("tiny", rest)]).0,
            found,
            "{team}"
        );
    }
}

#[test]
fn what_is_missing_or_leaving_is_not_used() {
    let (found, said) = self::said(&tiny(), &[]);
    assert_eq!(found, 0);
    assert!(said[0].starts_with("EndpointNotFound: "), "{said:?}");
    let mut leaving = endpoint("tiny", json!({"allowedNamespaces": {"from": "All"}}));
    Arc::make_mut(&mut leaving).metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let (found, said) = self::said(&tiny(), &[leaving]);
    assert_eq!(found, 0);
    assert!(said[0].starts_with("EndpointDeleting: "), "{said:?}");
}

#[test]
fn a_selector_means_all_it_selects_and_each_endpoint_counts_once() {
    let all = json!({"allowedNamespaces": {"from": "All"}});
    let endpoints = [endpoint("b", all.clone()), endpoint("a", all)];
    let sources = json!([
        {"namespace": "drafts", "selector": {"matchLabels": {"size": "tiny"}}},
        {"namespace": "drafts", "name": "a"},
        {"template": {"model": {"uri": "hf://a/d"}}},
        {"template": {"model": {"uri": "hf://a/e"}}},
    ]);
    let known = Known {
        endpoints: &endpoints,
        labels: &labels(),
    };
    let found = resolve(&deployment(&sources), &known).found;
    let names: Vec<String> = found
        .iter()
        .map(|found| format!("{}/{}", found.namespace, found.name))
        .collect();
    assert_eq!(
        names,
        ["drafts/a", "drafts/b", "chat/story", "chat/story-2"]
    );
}

#[test]
fn a_deployment_that_does_not_draft_needs_nothing() {
    let mut object = deployment(&tiny());
    if let Some(speculation) = &mut object.spec.speculation {
        speculation.policy.kind = PolicyType::Autoregressive;
    }
    let known = Known {
        endpoints: &[],
        labels: &BTreeMap::new(),
    };
    assert_eq!(resolve(&object, &known), Resolved::default());
}

#[test]
fn an_endpoint_is_named_whether_it_is_allowed_or_not() {
    let tiny = endpoint("tiny", json!({}));
    assert!(names(&deployment(&self::tiny()), &tiny));
    let selects = json!([{"namespace": "drafts", "selector": {"matchLabels": {"size": "tiny"}}}]);
    assert!(names(&deployment(&selects), &tiny));
    let others = json!([{"name": "tiny"}, {"template": {"model": {"uri": "hf://a/d"}}}]);
    assert!(!names(&deployment(&others), &tiny));
}
