//! Deployments whose endpoints are not all of use.

use std::path::Path;

use foretoken_tests::{repository, shipped_model};
use serde_json::{Value, json};

use crate::fixture::{Up, greeting, manifest, run, signal, with_broken};

/// The shipped pair, and before its draft an endpoint `other` with the model of this folder.
fn with_other(model: &Path) -> String {
    let model = model.canonicalize().unwrap();
    let text = manifest(1).replace("[{name: tiny}]", "[{name: other}, {name: tiny}]");
    format!(
        "{text}---
apiVersion: foretoken.io/v1alpha1
kind: SpeculationEndpoint
metadata: {{name: other}}
spec:
  model: {{uri: \"file://{}\"}}
",
        model.display()
    )
}

const REFUSED: &str = "endpoint draft-other-0 refused: the target has a vocabulary of 4096 entries, \
                       the endpoint of 384";

#[test]
fn a_deployment_whose_only_endpoint_is_refused_says_that_it_is_autoregressive() {
    let text = with_other(&repository().join("tests/fixtures/llama-draft"))
        .replace(", {name: tiny}]", "]");
    let expected = format!("ready: story (Autoregressive: {REFUSED}");
    let up = greeting(&expected, || Up::serving(&text, &[]));
    run(async {
        let request = json!({"model": "story", "prompt": "Tom", "max_tokens": 8});
        let usage = &up.complete(&request).await["usage"]["foretoken"];
        assert_eq!(usage["drafted"], 0, "{usage}");
    });
}

#[test]
fn a_deployment_whose_draft_cannot_be_loaded_is_served_without_it_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let text = with_broken("draft", folder.path());
    let expected = "ready: story (Autoregressive: endpoint draft-tiny-0 could not start: exit \
                    status: 1)";
    let mut up = greeting(expected, || Up::serving(&text, &[]));
    let log = up.log();
    assert!(log.contains("model.safetensors"), "{log}");
    assert!(
        log.contains("could not start (exit status: 1); serving without it"),
        "{log}"
    );
    run(async {
        let request = json!({"model": "story", "prompt": "Tom", "max_tokens": 8});
        let answer = up.complete(&request).await;
        assert_eq!(answer["usage"]["completion_tokens"], 8, "{answer}");
        assert_eq!(answer["usage"]["foretoken"]["drafted"], 0, "{answer}");
    });
    signal(up.pid(), "INT");
    assert!(up.end().success(), "{}", up.log());
}

#[test]
fn of_two_endpoints_one_that_is_refused_is_named_and_the_other_used() {
    let text = with_other(&repository().join("tests/fixtures/llama-draft"));
    let expected = format!("ready: story (Speculative; {REFUSED}");
    let up = greeting(&expected, || Up::serving(&text, &[]));
    run(async {
        let request = json!({
            "model": "story", "prompt": "Question: Tom has 3 apples.", "max_tokens": 40,
            "temperature": 0,
        });
        up.complete_with_draft(&request, |_| ()).await;
    });
}

#[test]
fn of_two_endpoints_one_that_hangs_is_passed_over_and_changes_no_byte() {
    let text = with_other(&shipped_model("draft"));
    let expected = "ready: story (Speculative) at";
    let up = greeting(expected, || Up::serving(&text, &[]));
    run(async {
        let mut request = json!({
            "model": "story", "prompt": "Question: Tom has 3 apples.", "max_tokens": 60,
            "temperature": 1, "seed": 5, "foretoken": {"policy": "Autoregressive"},
        });
        let plain = up.complete(&request).await["choices"].clone();
        request["foretoken"] = json!({"policy": "Speculative"});
        let is_plain = |answer: &Value| assert_eq!(answer["choices"], plain);
        up.complete_with_draft(&request, is_plain).await;
        let _hangs = up.freeze("draft-other-0");
        // The first ones wait for it in vain; soon nobody asks it any more.
        up.complete_with_draft(&request, is_plain).await;
    });
}
