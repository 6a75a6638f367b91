//! `foretoken generate`: how engines are checked from outside.

use std::path::Path;

use foretoken_artifacts::Tokenizer;
use serde_json::Value;

use crate::{
    fixture::{machine, model, printed},
    options::PROMPTS,
};

/// Runs the executable with these arguments and returns what it prints.
pub(crate) fn generate(arguments: &[&str]) -> String {
    let _machine = machine();
    printed(&[&["generate", "--threads", "1"], arguments].concat())
}

/// The same of the shipped target, as an object.
fn object(arguments: &[&str]) -> Value {
    let target = model("target");
    let arguments = [&["--model", &target, "--json"], arguments].concat();
    serde_json::from_str(&generate(&arguments)).unwrap()
}

/// What does not depend on who proposed.
fn output(object: &Value) -> [&Value; 4] {
    ["ids", "logprobs", "text", "finish_reason"].map(|field| &object[field])
}

fn ids(object: &Value) -> Vec<u64> {
    let ids = object["ids"].as_array().unwrap();
    ids.iter().map(|id| id.as_u64().unwrap()).collect()
}

fn count(object: &Value, field: &str) -> u64 {
    object[field].as_u64().unwrap()
}

#[test]
fn the_object_tells_all_of_a_completion() {
    let told = object(&["--max-tokens", "12", "--seed", "-3", PROMPTS[0]]);
    let mut fields: Vec<&String> = told.as_object().unwrap().keys().collect();
    fields.sort();
    let all = "accepted drafted finish_reason ids logprobs policy rounds seed text";
    assert_eq!(fields, all.split(' ').collect::<Vec<_>>(), "{told}");
    assert_eq!(ids(&told).len(), 12);
    let logprobs = told["logprobs"].as_array().unwrap();
    let is_one = |logprob: &Value| logprob.as_f64().unwrap() <= 0.0;
    assert!(
        logprobs.len() == 12 && logprobs.iter().all(is_one),
        "{told}"
    );
    assert_eq!(told["finish_reason"], "length");
    assert_eq!(told["policy"], "Autoregressive");
    assert_eq!(told["seed"], -3);
    let counts = ["rounds", "drafted", "accepted"].map(|field| count(&told, field));
    assert_eq!(counts, [11, 0, 0], "the prompt's pass decides a token too");
    // Without --json it prints the text alone.
    let target = model("target");
    let text = generate(&[
        "--model",
        &target,
        "--max-tokens",
        "12",
        "--prompt",
        PROMPTS[0],
    ]);
    assert_eq!(text, format!("{}\n", told["text"].as_str().unwrap()));
}

#[test]
fn ids_are_a_prompt_as_its_text_is() {
    let tokenizer = Tokenizer::load(Path::new(&model("target"))).unwrap();
    let prompt = tokenizer.encode(PROMPTS[1], true).unwrap();
    let prompt: Vec<String> = prompt.iter().map(ToString::to_string).collect();
    let of_text = object(&["--max-tokens", "8", PROMPTS[1]]);
    let of_ids = object(&["--max-tokens", "8", "--ids", &prompt.join(",")]);
    assert_eq!(output(&of_ids), output(&of_text));
    // Nothing is added to them.
    let without_first = prompt[1..].join(",");
    let other = object(&["--max-tokens", "8", "--ids", &without_first]);
    assert_ne!(other["logprobs"], of_text["logprobs"]);
}

#[test]
fn a_draft_changes_no_token_and_saves_rounds() {
    let draft = model("draft");
    for temperature in ["0", "1"] {
        let rest = [
            "--temperature",
            temperature,
            "--seed",
            "7",
            "--max-tokens",
            "40",
            PROMPTS[0],
        ];
        let plain = object(&rest);
        for policy in ["Speculative", "SSD"] {
            let drafted = object(&[&["--draft", &draft, "--policy", policy], &rest[..]].concat());
            assert_eq!(
                output(&drafted),
                output(&plain),
                "{policy} at {temperature}"
            );
            assert_eq!(drafted["policy"], policy);
            let [rounds, proposed, accepted] =
                ["rounds", "drafted", "accepted"].map(|field| count(&drafted, field));
            assert!(proposed >= accepted && accepted > 0, "{drafted}");
            assert_eq!(rounds + accepted + 1, 40, "{drafted}");
            if policy == "SSD" {
                let verdicts = count(&drafted, "hits") + count(&drafted, "misses");
                assert!(verdicts > 0 && verdicts <= rounds, "{drafted}");
            }
        }
    }
}

#[test]
fn a_window_is_as_long_as_it_is_told_to_be() {
    let draft = model("draft");
    let drafted = |lookahead: &str| {
        let pair = ["--draft", &draft, "--lookahead", lookahead];
        object(&[&pair[..], &["--max-tokens", "24", PROMPTS[0]]].concat())
    };
    let (one, none) = (drafted("1"), drafted("0"));
    assert!(
        (1..=count(&one, "rounds") + 1).contains(&count(&one, "drafted")),
        "{one}"
    );
    assert_eq!(count(&none, "drafted"), 0, "{none}");
    assert_eq!(output(&one), output(&none));
}

#[test]
fn options_of_sampling_take_effect() {
    let of = |rest: &[&str]| {
        let drawn = ["--temperature", "1", "--max-tokens", "12", PROMPTS[0]];
        ids(&object(&[rest, &drawn[..]].concat()))
    };
    let drawn = of(&["--seed", "1"]);
    assert_eq!(of(&["--seed", "1"]), drawn);
    assert_ne!(of(&["--seed", "2"]), drawn);
    let likeliest = ids(&object(&["--max-tokens", "12", PROMPTS[0]]));
    assert_ne!(drawn, likeliest);
    assert_eq!(of(&["--seed", "1", "--top-k", "1"]), likeliest);
    assert_eq!(of(&["--seed", "1", "--top-p", "0.0001"]), likeliest);
}

#[test]
fn weights_are_kept_as_they_are_told_to_be() {
    let logprobs = |rest: &[&str]| {
        let object = object(&[rest, &["--max-tokens", "4", PROMPTS[0]]].concat());
        object["logprobs"].clone()
    };
    let [f32, bf16, int8] = ["f32", "bf16", "int8"].map(|dtype| logprobs(&["--dtype", dtype]));
    assert!(f32 != bf16 && bf16 != int8 && int8 != f32);
    assert_eq!(
        logprobs(&[]),
        bf16,
        "what it is unless somebody says otherwise"
    );
}

#[test]
fn an_output_goes_on_after_its_end_if_told_to() {
    let solved = format!("{}\nAnswer: 3 + 5 = 8\n#### 8", PROMPTS[0]);
    let ended = object(&["--max-tokens", "16", &solved]);
    assert_eq!(ended["finish_reason"], "stop");
    let before = ids(&ended);
    assert!(before.len() < 16 && before.last() == Some(&1), "{ended}");
    let on = object(&["--max-tokens", "16", "--ignore-eos", &solved]);
    assert_eq!(on["finish_reason"], "length");
    assert_eq!(ids(&on).len(), 16);
    assert!(ids(&on).starts_with(&before), "{on}");
}
