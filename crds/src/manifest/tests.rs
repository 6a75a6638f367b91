use std::collections::BTreeMap;

use super::*;
use crate::{
    endpoint::NamespacesFrom,
    policy::{PolicyType, SpeculativeSpec},
    served,
};

const GOOD: &str = "\
apiVersion: foretoken.io/v1alpha1
kind: SpecDecodeDeployment
metadata: {name: story, namespace: chat}
spec:
  model: {uri: \"file:///models/target\", servedName: story-10m}
  target: {replicas: 2, dtype: float32}
  speculation:
    policy:
      type: Speculative
      speculative: {lookahead: 5, adaptive: false}
    endpoints:
      - {name: story-draft, namespace: drafts, weight: 1}
---
apiVersion: foretoken.io/v1alpha1
kind: SpeculationEndpoint
metadata: {name: story-draft, namespace: drafts}
spec:
  model: {uri: \"hf://owner/name\", revision: main}
  slotsPerReplica: 64
  allowedNamespaces: {from: All}
";

fn problems(text: &str) -> Vec<String> {
    Manifest::parse(text)
        .unwrap_err()
        .problems
        .iter()
        .map(ToString::to_string)
        .collect()
}

/// A deployment whose `spec` is `spec`, which starts on line 4.
fn deployment(spec: &str) -> String {
    format!(
        "apiVersion: foretoken.io/v1alpha1\nkind: SpecDecodeDeployment\nmetadata: {{name: a}}\n\
         spec:\n{spec}"
    )
}

#[test]
fn a_good_file_gives_typed_objects() {
    let manifest = Manifest::parse(GOOD).unwrap();
    let [deployment] = manifest.deployments.as_slice() else {
        panic!("one deployment")
    };
    assert_eq!(deployment.object.served_name(), "story-10m");
    assert_eq!(deployment.object.spec.target.replicas, Some(2));
    let speculation = deployment.object.spec.speculation.as_ref().unwrap();
    assert_eq!(speculation.policy.kind, PolicyType::Speculative);
    let block = SpeculativeSpec {
        lookahead: 5,
        adaptive: false,
    };
    assert_eq!(speculation.policy.speculative, Some(block));
    assert_eq!(deployment.lines.of("spec.speculation.policy.type"), 9);
    let [endpoint] = manifest.endpoints.as_slice() else {
        panic!("one endpoint")
    };
    let allowed = endpoint.object.spec.allowed_namespaces.as_ref().unwrap();
    assert_eq!(allowed.from, NamespacesFrom::All);
    assert!(endpoint.object.grants("chat", &BTreeMap::new()));
    assert_eq!(served::gaps(&manifest), []);
}

#[test]
fn an_object_written_as_yaml_reads_back_the_same() {
    let manifest = Manifest::parse(GOOD).unwrap();
    let object = &manifest.deployments[0].object;
    let text = serde_saphyr::to_string(object).unwrap();
    assert_eq!(
        &Manifest::parse(&text).unwrap().deployments[0].object,
        object
    );
}

#[test]
fn all_mistakes_of_a_file_come_at_once_with_line_field_value_and_what_is_allowed() {
    let text = deployment(
        "  model: {uri: \"s3://bucket\"}
  target:
    replcias: 2
    dtype: fp16
    parallelism: {tensor: many}
  speculation:
    policy:
      type: speculative
      speculative: {lookahead: 99}
    endpoints: []
",
    );
    assert_eq!(
        problems(&text),
        [
            "line 5: spec.model.uri: \"s3://bucket\" is not allowed: must start with hf://, \
             file:///, pvc:// or oci://",
            "line 7: spec.target.replcias: unknown field, did you mean \"replicas\"?",
            "line 8: spec.target.dtype: \"fp16\" is not allowed: must be one of bfloat16, \
             float32, int8",
            "line 9: spec.target.parallelism.tensor: \"many\" is not allowed: must be a whole \
             number from 1 to 64",
            "line 12: spec.speculation.policy.type: \"speculative\" is not allowed: must be one \
             of Autoregressive, Speculative, SSD, MirrorSD, SpecPipe, Auto, did you mean \
             Speculative?",
            "line 13: spec.speculation.policy.speculative.lookahead: 99 is not allowed: must be \
             from 1 to 32",
        ]
    );
}

#[test]
fn missing_fields_are_all_named_with_the_line_of_what_lacks_them() {
    let text = "apiVersion: foretoken.io/v1alpha1\nkind: SpecDecodeDeployment\nmetadata: {}\n\
                spec:\n  target: {replicas: 1}\n  speculation: {endpoints: [{name: d}]}\n";
    assert_eq!(
        problems(text),
        [
            "line 3: metadata.name: is required",
            "line 4: spec.model: is required",
            "line 6: spec.speculation.policy: is required",
        ]
    );
}

#[test]
fn a_parameter_block_must_match_the_type() {
    let text = deployment(
        "  model: {uri: \"hf://a/b\"}
  speculation:
    policy: {type: SSD, mirrorSD: {earlyExit: \"3/2\"}}
    endpoints: [{name: d}]
",
    );
    assert_eq!(
        problems(&text),
        [
            "line 7: spec.speculation.policy.mirrorSD: is only allowed with type MirrorSD",
            "line 7: spec.speculation.policy.mirrorSD.earlyExit: \"3/2\" is not allowed: must be \
             a fraction between 0 and 1, such as \"1/2\"",
        ]
    );
}

#[test]
fn rules_between_fields_hold() {
    let text = deployment(
        "  model: {uri: \"hf://a/b@x\", revision: v1}
  target: {replicas: 1, scaling: {min: 3, max: 2}}
  speculation:
    policy: {type: SpecPipe}
    endpoints: [{name: d, selector: {matchLabels: {a: b}}}]
  router: {exposure: {type: NodePort}, gateway: {parentRefs: [{name: g}]}}
",
    );
    let found = problems(&text).join("\n");
    for expected in [
        "spec.model.revision: is not allowed where the URI has one too",
        "spec.target.scaling: is not allowed beside replicas",
        "spec.target.scaling.min: 3 is not allowed: must be at most max",
        "spec.target.parallelism.pipeline: must be at least 2 with policy SpecPipe",
        "spec.speculation.endpoints[0]: must have exactly one of",
        "spec.router.gateway: is not allowed beside exposure",
    ] {
        assert!(found.contains(expected), "{expected:?} is not in\n{found}");
    }
}

#[test]
fn a_drafting_policy_needs_an_endpoint_and_plain_decoding_does_not() {
    let spec = |kind: &str| {
        deployment(&format!(
            "  model: {{uri: \"hf://a/b\"}}\n  speculation: {{policy: {{type: {kind}}}}}\n"
        ))
    };
    assert!(Manifest::parse(&spec("Autoregressive")).is_ok());
    assert_eq!(
        problems(&spec("Speculative")),
        [
            "line 6: spec.speculation.endpoints: must name at least one endpoint, since the policy \
             drafts; or set onLoss: Local"
        ]
    );
}

#[test]
fn a_target_that_proposes_for_itself_needs_no_endpoint() {
    for kind in ["Speculative", "SSD"] {
        let text = deployment(&format!(
            "  model: {{uri: \"hf://a/b\"}}\n  speculation:\n    policy: {{type: {kind}}}\n    \
             onLoss: Local\n"
        ));
        let manifest = Manifest::parse(&text).unwrap();
        assert_eq!(served::gaps(&manifest), []);
    }
}

#[test]
fn the_support_of_drawn_proposals_has_a_range_and_belongs_to_rejection() {
    let text = |rest: &str| {
        deployment(&format!(
            "  model: {{uri: \"hf://a/b\"}}\n  speculation:\n    policy: {{type: SSD}}\n    \
             endpoints: [{{name: d}}]\n{rest}"
        ))
    };
    let good = text("    verification: Rejection\n    support: 32\n");
    let manifest = Manifest::parse(&good).unwrap();
    let spec = manifest.deployments[0].object.spec.speculation.clone();
    assert_eq!(spec.unwrap().support, Some(32));
    for support in [0, 257] {
        let bad = text(&format!(
            "    verification: Rejection\n    support: {support}\n"
        ));
        let message = format!(
            "line 10: spec.speculation.support: {support} is not allowed: must be from 1 to 256"
        );
        assert_eq!(problems(&bad), [message]);
    }
    for rule in ["", "    verification: Coupled\n"] {
        let bad = text(&format!("    support: 8\n{rule}"));
        assert_eq!(
            problems(&bad),
            [
                "line 9: spec.speculation.support: is only allowed with verification: Rejection, \
              which draws proposals among so many tokens"
            ]
        );
    }
    let typo = text("    verification: Rejection\n    suport: 8\n");
    assert!(problems(&typo)[0].contains("support"), "a suggestion");
}

#[test]
fn what_is_not_served_yet_is_valid_and_a_gap_of_its_line() {
    let speculates = |policy: &str, rest: &str| {
        format!("\n  speculation: {{policy: {{type: {policy}}}, endpoints: [{{name: d}}]}}{rest}")
    };
    let drafts = |spec: &str| {
        format!(
            "\n  speculation:\n    policy: {{type: SSD}}\n    endpoints: [{{template: \
             {{model: {{uri: \"hf://a/b\"}}, {spec}}}}}]"
        )
    };
    for (spec, line, expected) in [
        (
            speculates("MirrorSD", ""),
            6,
            "MirrorSD is not served by this version",
        ),
        (
            speculates("Auto", ""),
            6,
            "Auto is not served by this version",
        ),
        (
            speculates("SpecPipe", "\n  target: {parallelism: {pipeline: 2}}"),
            6,
            "SpecPipe is not served by this version",
        ),
        (
            "\n  target: {parallelism: {tensor: 2}}".into(),
            6,
            "in a cluster only, and of a simulated model only",
        ),
        (
            "\n  target: {accelerator: {profile: h100}}".into(),
            6,
            "h100, which is not in this file",
        ),
        (
            "\n  target: {scaling: {min: 1, max: 2}}".into(),
            6,
            "needs a cluster",
        ),
        (drafts("parallelism: {tracks: 8}"), 8, "only 1 is served"),
        (
            drafts("accelerator: {claimTemplate: npu}"),
            8,
            "by a claim, which needs a cluster",
        ),
        (drafts("scaling: {min: 1, max: 2}"), 8, "needs a cluster"),
    ] {
        let text = deployment(&format!("  model: {{uri: \"hf://a/b\"}}{spec}\n"));
        let gaps = served::gaps(&Manifest::parse(&text).unwrap());
        assert!(
            gaps.iter()
                .any(|gap| gap.line == line && gap.message.contains(expected)),
            "{spec}: {gaps:?}"
        );
    }
    for uri in ["pvc://claim/path", "oci://image"] {
        let text = deployment(&format!("  model: {{uri: \"{uri}\"}}\n"));
        let gaps = served::gaps(&Manifest::parse(&text).unwrap());
        assert!(gaps[0].message.contains("needs a cluster"), "{gaps:?}");
    }
}

#[test]
fn a_simulated_target_that_spans_devices_needs_a_cluster_and_nothing_else() {
    let text = format!(
        "{}---\napiVersion: {API_VERSION}\nkind: AcceleratorProfile\nmetadata: {{name: pretended}}\n\
         spec: {{device: sim}}\n",
        deployment(
            "  model: {uri: \"hf://a/b\"}\n  target:\n    parallelism: {tensor: 2, pipeline: 3}\n\
             \x20   accelerator: {profile: pretended}\n"
        )
    );
    let gaps = served::gaps(&Manifest::parse(&text).unwrap());
    let said = gaps
        .iter()
        .map(|gap| (gap.field.as_str(), gap.message.as_str()));
    let message = "needs a cluster: give 1 to run on one machine";
    let fields = ["tensor", "pipeline"].map(|name| format!("spec.target.parallelism.{name}"));
    let expected = fields.iter().map(|field| (field.as_str(), message));
    assert_eq!(said.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

#[test]
fn one_machine_has_cores_and_simulated_devices_that_its_file_names() {
    for (device, expected) in [
        ("cpu", None),
        ("sim", None),
        (
            "cuda, resource: nvidia.com/gpu",
            Some("simulates (device: sim)"),
        ),
    ] {
        let text = format!(
            "{}---\napiVersion: {API_VERSION}\nkind: AcceleratorProfile\nmetadata: {{name: fast}}\n\
             spec: {{device: {device}}}\n",
            deployment("  model: {uri: \"hf://a/b\"}\n  target: {accelerator: {profile: fast}}\n")
        );
        let gaps = served::gaps(&Manifest::parse(&text).unwrap());
        let said = gaps.first().map(|gap| gap.message.as_str());
        match expected {
            None => assert_eq!(said, None, "{device}"),
            Some(expected) => assert!(said.is_some_and(|it| it.contains(expected)), "{said:?}"),
        }
    }
}

#[test]
fn wrong_kinds_and_versions_name_what_is_allowed() {
    let of = |version: &str, kind: &str| {
        problems(&format!(
            "apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a}}\n"
        ))
    };
    assert_eq!(
        of("foretoken.io/v1alpha1", "SpecDecodeDeploymnet"),
        ["line 2: kind: SpecDecodeDeploymnet is not allowed, did you mean SpecDecodeDeployment?"]
    );
    let found = of("foretoken.io/v1", "SpeculationEndpoint");
    assert_eq!(
        found[0],
        "line 1: apiVersion: foretoken.io/v1 is not allowed: must be foretoken.io/v1alpha1"
    );
}

#[test]
fn documents_of_other_apis_are_left_out_with_a_word() {
    let text = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: chat}}\n---\n{GOOD}");
    let manifest = Manifest::parse(&text).unwrap();
    assert_eq!(manifest.deployments.len(), 1);
    assert_eq!(manifest.skipped.len(), 1);
    assert_eq!(
        manifest.skipped[0].to_string(),
        "line 2: kind: v1 ConfigMap is not read here"
    );
}

#[test]
fn a_document_that_does_not_say_what_it_is_is_refused() {
    let found = problems("apiVersion: v1\nmetadata: {name: chat}\n");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[1].starts_with("line 1: kind: is required: one of SpecDecodeDeployment"));
}

#[test]
fn two_objects_of_one_name_are_refused() {
    let found = problems(&format!("{GOOD}---\n{GOOD}"));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].contains("\"story\" is taken"), "{found:?}");
}

#[test]
fn nonsense_is_a_message_and_never_a_panic() {
    for text in [
        "",
        "\u{0}",
        "- a\n- b",
        "3",
        "a: [",
        "{{{{",
        "? [a]: b",
        "a: &x [*x]",
        "\t- x",
    ] {
        let problems = problems(text);
        assert!(!problems.is_empty(), "{text:?}");
    }
}

#[test]
fn nesting_without_end_is_refused_before_it_costs_stack() {
    let small_stack = std::thread::Builder::new().stack_size(512 << 10);
    let found = small_stack
        .spawn(|| problems(&format!("a: {}", "[".repeat(10_000))))
        .unwrap();
    let found = found.join().unwrap();
    assert!(found[0].contains("not valid YAML"), "{found:?}");
}
