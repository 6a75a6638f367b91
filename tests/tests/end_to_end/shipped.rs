//! The pair of models that the executable carries, for users who name none.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

use crate::{
    fixture::{Up, executable, greeting, machine, model, run},
    options::PROMPTS,
};

/// Runs `foretoken generate` without a model, with this cache.
fn generate(cache: &Path, arguments: &[&str]) -> Output {
    let _machine = machine();
    Command::new(executable())
        .args(["generate", "--threads", "1", "--json", "--max-tokens", "16"])
        .args(arguments)
        .arg(PROMPTS[0])
        .env("XDG_CACHE_HOME", cache)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn object(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The only folder of the cache's own.
fn folder(cache: &Path) -> PathBuf {
    let mut folders = fs::read_dir(cache.join("foretoken")).unwrap();
    let folder = folders.next().unwrap().unwrap().path();
    assert!(folders.next().is_none(), "unpacked twice");
    folder
}

#[test]
fn whoever_names_no_model_has_the_shipped_pair() {
    let cache = tempfile::tempdir().unwrap();
    let target = model("target");
    let named = object(&generate(cache.path(), &["--model", &target]));
    assert_eq!(
        fs::read_dir(&cache).unwrap().count(),
        0,
        "nothing was needed"
    );
    let first = object(&generate(cache.path(), &[]));
    assert_eq!(first["ids"], named["ids"]);
    assert!(
        first["drafted"].as_u64() > Some(0),
        "with its draft: {first}"
    );
    // What a crash or a full disk left is put right.
    let weights = folder(cache.path()).join("models/draft/model.safetensors");
    fs::write(&weights, b"nothing").unwrap();
    let second = object(&generate(cache.path(), &["--policy", "Autoregressive"]));
    assert_eq!(second["ids"], named["ids"]);
    assert_eq!(second["drafted"], 0);
    let shipped = Path::new(&model("draft")).join("model.safetensors");
    assert_eq!(
        fs::metadata(weights).unwrap().len(),
        fs::metadata(shipped).unwrap().len()
    );
    let readme = fs::read_to_string(folder(cache.path()).join("models/README.md")).unwrap();
    assert!(readme.contains("GSM8K"), "the licence travels with them");
}

#[test]
fn a_cache_that_cannot_be_written_is_named_with_what_to_do() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let output = generate(file.path(), &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let named = said.contains(file.path().to_str().unwrap());
    assert!(named && said.contains("set XDG_CACHE_HOME"), "{said}");
}

#[test]
fn up_serves_the_shipped_pair_if_there_is_no_file() {
    let cache = tempfile::tempdir().unwrap();
    let variables = [
        ("XDG_CACHE_HOME", cache.path().to_str().unwrap()),
        // It is not asked for what is on this machine.
        ("HTTP_PROXY", "http://127.0.0.1:9"),
    ];
    let up = greeting("ready: story-10m (Speculative)", || {
        Up::told(None, &variables, &[])
    });
    let request = json!({
        "model": "story-10m", "prompt": PROMPTS[0], "max_tokens": 16, "temperature": 0,
        "foretoken": {"policy": "Speculative", "lookahead": 5},
    });
    run(up.complete_with_draft(&request, |_| ()));
    assert!(
        folder(cache.path())
            .join("models/target/config.json")
            .is_file()
    );
}
