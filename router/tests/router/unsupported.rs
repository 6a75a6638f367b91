//! What would change the output and is not supported is refused, not ignored.

use serde_json::{Value, json};

use crate::{Script, errors::is_refused, start};

#[tokio::test]
async fn known_fields_without_effect_are_refused_with_what_does_the_like() {
    let setup = start(Script::says(" ok")).await;
    for (field, value, word) in [
        ("repeat_penalty", json!(1.1), "repetition_penalty"),
        ("dry_multiplier", json!(0.8), "repetition_penalty"),
        ("mirostat", json!(2), "top_p"),
        ("typical_p", json!("x"), "min_p"),
        ("xtc_probability", json!(1), "min_p"),
        ("n_predict", json!(2), "max_tokens"),
        ("n_probs", json!(3), "logprobs"),
        ("prompt_embeds", json!("x"), "not supported"),
    ] {
        let body = json!({"prompt": "x", field: value});
        is_refused(&setup, ("/v1/completions", &body), field, &[word]).await;
    }
}

#[tokio::test]
async fn values_that_change_nothing_are_taken() {
    let setup = start(Script::says(" ok")).await;
    let body = json!({
        "prompt": "x", "repeat_penalty": 1.0, "dry_multiplier": 0, "mirostat": 0, "typical_p": 1,
        "xtc_probability": 0.0, "n_predict": -1, "n_probs": 0, "top_n_sigma": -1, "use_beam_search": false,
        "grammar": "", "logit_bias": [], "bad_words": [], "logits_processors": [], "logprobs": false,
        "max_tokens": -1, "model": "",
    });
    let answer = setup.client().post("/v1/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test]
async fn what_would_change_a_prompt_is_refused_where_it_is_only_counted_too() {
    let setup = start(Script::says(" ok")).await;
    let messages = json!([{"role": "user", "content": "x"}]);
    for (field, value) in [
        ("chat_template", json!("{{ 1 }}")),
        ("documents", json!([{"text": "x"}])),
        ("continue_final_message", Value::Bool(true)),
        ("truncate_prompt_tokens", json!(1)),
    ] {
        let body = json!({"messages": messages, field: value});
        for path in ["/tokenize", "/v1/chat/completions"] {
            is_refused(&setup, (path, &body), field, &["absent"]).await;
        }
    }
}
