use crate::{Manifest, problem::Problem};

/// An endpoint whose `spec` has `fields` beside the model; they start on line 6.
fn endpoint(fields: &str) -> String {
    format!(
        "apiVersion: foretoken.io/v1alpha1\nkind: SpeculationEndpoint\nmetadata: {{name: e}}\n\
         spec:\n  model: {{uri: \"hf://a/b\"}}\n{fields}"
    )
}

fn problems(text: &str) -> Vec<String> {
    let invalid = Manifest::parse(text).unwrap_err();
    invalid.problems.iter().map(Problem::to_string).collect()
}

#[test]
fn a_field_that_is_null_is_absent() {
    let text = endpoint("  replicas:\n  dtype: null\n  quotas: ~\n");
    let spec = |text: &str| {
        let manifest = Manifest::parse(text).unwrap();
        manifest.endpoints[0].object.spec.clone()
    };
    assert_eq!(spec(&text), spec(&endpoint("")));
    assert_eq!(
        problems(&text.replace("uri: \"hf://a/b\"", "uri:")),
        ["line 5: spec.model.uri: is required"]
    );
}

#[test]
fn a_whole_number_may_have_a_fraction_of_nothing() {
    let manifest = Manifest::parse(&endpoint("  replicas: 2.0\n")).unwrap();
    assert_eq!(manifest.endpoints[0].object.spec.replicas, Some(2));
    assert_eq!(
        problems(&endpoint("  replicas: 2.5\n")),
        ["line 6: spec.replicas: 2.5 is not allowed: must be a whole number from 0 to 1000"]
    );
}

#[test]
fn what_kubectl_takes_for_a_boolean_is_one() {
    let found = problems(&endpoint(
        "  template: {metadata: {labels: {a: off, b: \"off\"}}}\n",
    ));
    assert_eq!(
        found,
        [
            "line 6: spec.template.metadata.labels.a: false is not allowed: must be text (put it in quotes)"
        ]
    );
}

#[test]
fn bounds_of_numbers_texts_lists_and_maps_hold() {
    let long = "x".repeat(1025);
    for (fields, expected) in [
        ("  replicas: 1001".to_owned(), "from 0 to 1000"),
        ("  replicas: -1".to_owned(), "from 0 to 1000"),
        ("  replicas: 1e300".to_owned(), "a whole number from 0"),
        (
            "  slotsPerReplica: \"4\"".to_owned(),
            "a whole number from 1",
        ),
        ("  dtype: 8".to_owned(), "one of bfloat16"),
        (
            "  kvCacheMemory: 4GB".to_owned(),
            "\"4GB\" is not allowed: must be a whole number and Mi, Gi or Ti",
        ),
        ("  kvCacheMemory: 4096".to_owned(), "4096 is not allowed"),
        ("  quotas: {}".to_owned(), "must be a list"),
        ("  quotas: [3]".to_owned(), "must be a mapping"),
        (
            "  allowedNamespaces: {from: Selector, selector: {matchLabels: {}}}".to_owned(),
            "0 entries are not allowed: at least 1",
        ),
        (
            "  accelerator: {profile: H100}".to_owned(),
            "must be lower case letters, digits and '-'",
        ),
        (
            format!(
                "  template: {{metadata: {{annotations: {{a: {}}}}}}}",
                long.repeat(4)
            ),
            "4100 characters are not allowed: must have 0 to 4096",
        ),
        (
            format!(
                "  quotas: [{}]",
                (0..65)
                    .map(|n| format!("{{namespace: n{n}}}"))
                    .collect::<Vec<_>>()
                    .join(", ")
            ),
            "65 entries are not allowed: at most 64",
        ),
    ] {
        let found = problems(&endpoint(&fields)).join("\n");
        assert!(
            found.starts_with("line 6: ") && found.contains(expected),
            "{fields}: {found}"
        );
    }
}

#[test]
fn what_names_the_entries_of_a_list_is_there_once() {
    let text = endpoint("  quotas:\n  - {namespace: a}\n  - {namespace: b}\n  - {namespace: a}\n");
    assert_eq!(
        problems(&text),
        ["line 9: spec.quotas[2].namespace: \"a\" is there already"]
    );
}

#[test]
fn rules_say_nothing_of_what_could_not_be_read() {
    let text = endpoint("  allowedNamespaces: {from: selector, selector: {matchLabels: {a: b}}}\n");
    let found = problems(&text);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("did you mean Selector?"), "{found:?}");
}

#[test]
fn an_object_as_a_cluster_shows_it_is_read() {
    let text = endpoint("status: {replicas: many}\n").replace(
        "{name: e}",
        "{name: e, uid: 1b, generation: 3, creationTimestamp: \"2026-01-01T00:00:00Z\", \
         finalizers: [foretoken.io/drain], labels: {a.b/c: d}}",
    );
    let manifest = Manifest::parse(&text).unwrap();
    let object = &manifest.endpoints[0].object;
    assert_eq!(object.metadata.labels.as_ref().unwrap()["a.b/c"], "d");
    assert_eq!(object.status, None);
}

#[test]
fn names_and_labels_are_those_of_kubernetes() {
    for (metadata, expected) in [
        (
            "{name: 7b}",
            "\"7b\" is not allowed: must be lower case letters",
        ),
        (
            &format!("{{name: {}}}", "a".repeat(51)),
            "51 characters are not allowed: must have 0 to 50",
        ),
        (
            "{name: a, namespace: A}",
            "metadata.namespace: \"A\" is not allowed",
        ),
        (
            "{name: a, labels: {x: \"a b\"}}",
            "metadata.labels.x: \"a b\" is not allowed",
        ),
        (
            "{name: a, labels: {\"a b\": x}}",
            "metadata.labels: \"a b\" is not allowed",
        ),
        (
            "{nam: a}",
            "metadata.nam: unknown field, did you mean \"name\"?",
        ),
    ] {
        let found = problems(&endpoint("").replace("{name: e}", metadata)).join("\n");
        assert!(found.contains(expected), "{metadata}: {found}");
    }
}
