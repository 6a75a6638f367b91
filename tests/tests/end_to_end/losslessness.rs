//! Speculative output is autoregressive output, byte for byte.

use serde_json::{Value, json};

use crate::fixture::{SLOW, Up, manifest, run};

const PROMPTS: [&str; 2] = [
    "Question: Tom has 3 apples and buys 5 more.",
    "And it came to pass in those days, that",
];

/// Sampling options that a request can have, one combination each.
fn options() -> Vec<Value> {
    vec![
        json!({"temperature": 0}),
        json!({"temperature": 1, "seed": 1}),
        json!({"temperature": 1, "seed": 2, "top_k": 20}),
        json!({"temperature": 1, "seed": 3, "top_p": 0.9, "min_p": 0.02}),
        json!({"temperature": 0.7, "seed": 4, "repetition_penalty": 1.2}),
        json!({"temperature": 1, "seed": 5, "presence_penalty": 0.5, "frequency_penalty": 0.5}),
        json!({"temperature": 1, "seed": 6, "logit_bias": {"20": 3.0, "16": -100.0}}),
        json!({"temperature": 0, "logprobs": 3}),
        json!({"temperature": 1, "seed": 7, "n": 2, "stop": ["apples", "\n\n"]}),
        json!({"temperature": 1, "seed": 8, "min_tokens": 30, "ignore_eos": true}),
    ]
}

#[test]
fn speculation_changes_no_byte_under_any_sampling_options() {
    let up = Up::start(1);
    run(async {
        let mut accepted = 0;
        for prompt in PROMPTS {
            for option in options() {
                let mut request = option.clone();
                request["model"] = json!("story");
                request["prompt"] = json!(prompt);
                request["max_tokens"] = json!(48);
                request["foretoken"] = json!({"policy": "Autoregressive"});
                let plain = up.complete(&request).await;
                request["foretoken"] = json!({"policy": "Speculative", "lookahead": 5});
                let drafted = up.complete(&request).await;
                assert_eq!(drafted["choices"], plain["choices"], "{option}");
                assert_eq!(plain["usage"]["foretoken"]["accepted"], 0, "{plain}");
                accepted += drafted["usage"]["foretoken"]["accepted"].as_u64().unwrap();
                if option.get("n").is_none() {
                    let streamed = up.stream(&request).await.finish().await;
                    assert_eq!(plain["choices"][0]["text"], streamed, "{option}");
                }
            }
        }
        assert!(
            accepted > 100,
            "only {accepted} tokens were accepted: nothing was tested"
        );
    });
}

/// How many verdicts had been drafted for, of how many.
fn hits(answers: &[Value]) -> (u64, u64) {
    let sum = |field: &str| -> u64 {
        let of = |answer: &Value| answer["usage"]["foretoken"][field].as_u64().unwrap();
        answers.iter().map(of).sum()
    };
    (sum("hits"), sum("hits") + sum("misses"))
}

#[test]
fn drafting_ahead_changes_no_byte_under_any_sampling_options() {
    let manifest = manifest(1).replace(
        "{type: Speculative, speculative: {lookahead: 5, adaptive: false}}",
        "{type: SSD, ssd: {lookahead: 4, budget: 16}}",
    );
    let up = Up::serving(&manifest, SLOW);
    run(async {
        let mut answers = Vec::new();
        for option in options() {
            let plain_and_ahead = PROMPTS.map(|prompt| {
                let mut request = option.clone();
                request["model"] = json!("story");
                request["prompt"] = json!(prompt);
                request["max_tokens"] = json!(48);
                let mut plain = request.clone();
                plain["foretoken"] = json!({"policy": "Autoregressive"});
                (plain, request)
            });
            // Both prompts at once: their branches share steps.
            let [(plain_a, ahead_a), (plain_b, ahead_b)] = &plain_and_ahead;
            let (a, b) = futures::future::join(up.complete(ahead_a), up.complete(ahead_b)).await;
            for (plain, ahead) in [(plain_a, a), (plain_b, b)] {
                let plain = up.complete(plain).await;
                assert_eq!(ahead["choices"], plain["choices"], "{option}");
                let told = &ahead["usage"]["foretoken"];
                assert_eq!(told["policy"], "SSD");
                let count = |field: &str| told[field].as_f64().unwrap();
                let hits = told["ahead"]["hit_rate"].as_f64().unwrap_or(0.0)
                    * (count("hits") + count("misses"));
                assert!((hits - count("hits")).abs() < 1e-9, "{told}");
                // An output may end with its first verdict, for which nothing was drafted.
                let could_hit = count("hits") + count("misses") > 0.0;
                assert!(!could_hit || count("bytes") > 0.0, "{told}");
                assert!(
                    !could_hit || told["ahead"]["tokens_received"].is_u64(),
                    "{told}"
                );
                assert!(plain["usage"]["foretoken"]["ahead"].is_null());
                assert_eq!(plain["usage"]["foretoken"]["hits"], 0);
                answers.push(ahead);
            }
        }
        let (hits, verdicts) = hits(&answers);
        assert!(hits > 20, "{hits} hits of {verdicts} verdicts");
    });
}

#[test]
fn a_draft_killed_while_it_drafts_ahead_changes_no_byte() {
    let up = Up::slow(1);
    run(async {
        let mut request = json!({
            "model": "story", "prompt": PROMPTS[1], "max_tokens": 100, "temperature": 1,
            "seed": 12, "ignore_eos": true,
            "foretoken": {"policy": "Autoregressive"},
        });
        let plain = up.complete(&request).await;
        request["foretoken"] = json!({"policy": "SSD", "lookahead": 4});
        let (ahead, ()) = futures::future::join(up.complete(&request), async {
            tokio::time::sleep(std::time::Duration::from_millis(150)).await;
            up.kill("draft-tiny-0");
        })
        .await;
        assert_eq!(ahead["choices"], plain["choices"]);
    });
}
