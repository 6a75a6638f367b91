//! Where outputs end: at any token that the model says ends one, and where there is no more memory for
//! keys and values.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::{
    fixture::{Up, manifest, model, run},
    generate::generate,
    options::PROMPTS,
};

/// What `foretoken generate` says of a model, greedily, with the shipped draft.
fn generated(model_folder: &str, more: &[&str]) -> Value {
    let draft = model("draft");
    let own = [
        "--model",
        model_folder,
        "--draft",
        &draft,
        "--temperature",
        "0",
    ];
    let rest = ["--max-tokens", "24", "--json", PROMPTS[0]];
    serde_json::from_str(&generate(&[&own, more, &rest].concat())).unwrap()
}

/// The shipped target in `folder`, with other tokens that end an output.
fn ending_at(folder: &Path, tokens: &Value) {
    for entry in fs::read_dir(model("target")).unwrap() {
        let file = entry.unwrap();
        fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    let text = json!({"bos_token_id": 0, "eos_token_id": tokens}).to_string();
    fs::write(folder.join("generation_config.json"), text).unwrap();
}

#[test]
fn any_of_the_tokens_that_a_model_names_ends_its_output() {
    let whole = generated(&model("target"), &["--ignore-eos"]);
    let ids = whole["ids"].as_array().unwrap();
    // One that comes amid the output for the first time.
    let end = (8..ids.len()).find(|&at| !ids[..at].contains(&ids[at]));
    let end = end.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    ending_at(folder.path(), &json!([1, ids[end]]));

    let ended = generated(path, &[]);
    assert_eq!(ended["finish_reason"], "stop", "{ended}");
    assert_eq!(ended["ids"].as_array().unwrap()[..], ids[..=end]);

    let shipped = format!("file://{}", model("target"));
    let up = Up::serving(
        &manifest(1).replace(&shipped, &format!("file://{path}")),
        &[],
    );
    for policy in ["Autoregressive", "Speculative"] {
        let request = json!({
            "model": "story", "prompt": PROMPTS[0], "max_tokens": 24, "temperature": 0,
            "foretoken": {"policy": policy},
        });
        let told = run(up.complete(&request));
        assert_eq!(
            told["choices"][0]["finish_reason"], "stop",
            "{policy}: {told}"
        );
        assert_eq!(told["usage"]["completion_tokens"], end + 1, "{policy}");
    }
}

#[test]
fn requests_are_as_long_as_there_is_memory_for_keys_and_values() {
    // Of the shipped target a token takes 2 KiB: 8 layers, keys and values of 64 numbers of 16 bits.
    const TOKENS: u64 = 512;
    for (said, flags) in [("1Mi", [].as_slice()), ("2Mi", &["--target-kv-mib", "1"])] {
        let said = format!("replicas: 1, kvCacheMemory: {said}");
        let manifest = manifest(1).replace("replicas: 1", &said);
        let up = Up::told(Some(&manifest), &[], flags);
        let models = run(async {
            let answer = reqwest::get(format!("{}/v1/models", up.url)).await.unwrap();
            answer.json::<Value>().await.unwrap()
        });
        assert_eq!(models["data"][0]["max_model_len"], TOKENS, "{models}");
        let warned = format!("sequences have {TOKENS} tokens at most, of the model's 1024");
        assert!(up.log().contains(&warned), "{}", up.log());
        let request = json!({
            "model": "story", "prompt": PROMPTS[0], "max_tokens": -1, "temperature": 0,
            "ignore_eos": true,
        });
        let told = run(up.complete(&request));
        assert_eq!(told["choices"][0]["finish_reason"], "length", "{told}");
        assert_eq!(told["usage"]["total_tokens"], TOKENS, "{told}");
    }
}
