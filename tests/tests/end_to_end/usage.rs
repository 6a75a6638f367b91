//! Mistakes on the command line and in files.

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Command, Output},
};

use foretoken_tests::{repository, shipped_model};

use crate::fixture::{executable, manifest, with_broken};

fn foretoken(arguments: &[&str]) -> Output {
    Command::new(executable()).args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn file(folder: &Path, text: &str) -> String {
    let path = folder.join("file.yaml");
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn check_prints_every_mistake_with_its_line_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let bad = manifest(1)
        .replace("type: Speculative,", "type: Speculativ,")
        .replace("target: {replicas: 1}", "target: {replicas: 1, dtype: fp8}");
    let path = file(folder.path(), &bad);
    let output = foretoken(&["check", &path]);
    assert_eq!(output.status.code(), Some(64));
    let text = stderr(&output);
    assert!(
        text.contains(&format!(
            "{path}:6: spec.target.dtype: \"fp8\" is not allowed"
        )),
        "{text}"
    );
    assert!(
        text.contains(&format!("{path}:8: spec.speculation.policy.type:")),
        "{text}"
    );
    assert!(text.contains("did you mean Speculative?"), "{text}");

    let good = file(folder.path(), &manifest(1));
    assert_eq!(foretoken(&["check", &good]).status.code(), Some(0));
    assert_eq!(
        foretoken(&["check", "/nowhere.yaml"]).status.code(),
        Some(64)
    );
}

#[test]
fn a_policy_to_come_passes_check_with_a_warning_and_is_refused_by_up() {
    let folder = tempfile::tempdir().unwrap();
    let text = manifest(1).replace(
        "{type: Speculative, speculative: {lookahead: 5, adaptive: false}}",
        "{type: MirrorSD, mirrorSD: {window: 5}}",
    );
    let path = file(folder.path(), &text);
    let checked = foretoken(&["check", &path]);
    assert_eq!(checked.status.code(), Some(0));
    assert!(
        stderr(&checked).contains("warning: spec.speculation.policy.type: MirrorSD is not served")
    );
    let refused = foretoken(&["up", "-f", &path]);
    assert_eq!(refused.status.code(), Some(64));
    assert!(stderr(&refused).contains("MirrorSD is not served by this version"));
}

#[test]
fn what_only_a_cluster_may_have_is_a_warning_of_check_and_an_error_of_up() {
    let folder = tempfile::tempdir().unwrap();
    let text = manifest(1)
        .replace("/target\"", "/targett\"")
        .replace("[{name: tiny}]", "[{name: tinny}]");
    let path = file(folder.path(), &text);
    let missing = |kind: &str| format!("{path}:5: {kind}spec.model.uri: model folder ");
    let undefined = |kind: &str| {
        let field = "spec.speculation.endpoints[0]";
        format!("{path}:9: {kind}{field}: no SpeculationEndpoint default/tinny in this file")
    };
    for arguments in [
        &["check", &path][..],
        &["check", "--up", &path],
        &["up", "-f", &path],
    ] {
        let output = foretoken(arguments);
        let is_lenient = arguments == ["check", &path];
        let (code, kind) = if is_lenient {
            (0, "warning: ")
        } else {
            (64, "")
        };
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(&missing(kind)), "{arguments:?}: {said}");
        assert!(said.contains(&undefined(kind)), "{arguments:?}: {said}");
    }
}

#[test]
fn a_port_in_use_is_said_before_anything_starts() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), &manifest(1));
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port().to_string();
    let state = folder.path().join("state");
    let state = state.to_str().unwrap();
    let output = foretoken(&["up", "-f", &path, "--port", &port, "--state-dir", state]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains(&format!("cannot listen on 127.0.0.1:{port}")),
        "{text}"
    );
    assert!(text.contains("choose another with --port"), "{text}");
    assert!(!Path::new(state).exists(), "it started all the same");
}

#[test]
fn every_service_whose_port_is_in_use_names_it() {
    let holder = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = holder.local_addr().unwrap().to_string();
    let url = format!("http://{address}");
    let model = shipped_model("draft");
    let model = model.to_str().unwrap();
    let (listen, shows) = (["--listen", &url], ["--metrics-listen", &address]);
    let serves = ["--listen", &address, "--target", "http://127.0.0.1:1"];
    for (service, flags) in [
        ("target", &listen[..]),
        ("target", &shows),
        ("draft", &listen),
        ("draft", &shows),
        ("router", &serves),
    ] {
        let output = foretoken(&[&[service, "--model", model], flags].concat());
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{service} {flags:?}: {text}");
        let says = text.contains(&address) && text.contains("in use");
        assert!(says, "{service} {flags:?}: {text}");
    }
}

#[test]
fn a_model_that_cannot_be_loaded_ends_up_with_a_message() {
    let folder = tempfile::tempdir().unwrap();
    let text = with_broken("target", folder.path());
    let path = file(folder.path(), &text);
    let state = folder.path().join("state");
    let arguments = [
        "up",
        "-f",
        &path,
        "--port",
        "0",
        "--state-dir",
        state.to_str().unwrap(),
    ];
    let output = foretoken(&arguments);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("model.safetensors"), "{text}");
    assert!(
        text.contains("target-0") && text.contains("could not start"),
        "{text}"
    );
}

#[test]
fn bad_usage_has_its_own_exit_code() {
    for arguments in [
        &["up", "--port", "many"][..],
        &["nonsense"],
        &["target"],
        &["generate", "--model", "nowhere", "--policy", "SSD"],
    ] {
        assert_eq!(
            foretoken(arguments).status.code(),
            Some(64),
            "{arguments:?}"
        );
    }
    assert_eq!(foretoken(&["--help"]).status.code(), Some(0));
}

#[test]
fn make_up_serves_the_example_at_the_port_that_is_asked_for() {
    let example = "examples/laptop.yaml";
    assert!(repository().join(example).exists());
    for (arguments, port) in [(&["up"][..], "8000"), (&["up", "PORT=8123"], "8123")] {
        let mut make = Command::new("make");
        make.arg("-n").args(arguments).current_dir(repository());
        // A `make` that runs this test passes its own on.
        for variable in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "MODEL", "PORT"] {
            make.env_remove(variable);
        }
        let output = make.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let expected = format!("/release/foretoken up -f {example} --port {port}");
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(text.trim_end().ends_with(&expected), "{text}");
    }
}
