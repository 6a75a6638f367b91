//! The exact form of each answer. What differs between runs (times, drawn ids) is fixed first.

use serde_json::{Value, json};

use crate::{Script, Setup, start};

/// Replaces what differs between runs.
fn fixed(mut value: Value) -> Value {
    match &mut value {
        Value::Object(map) => {
            for (key, value) in map.iter_mut() {
                *value = match key.as_str() {
                    "created" | "predicted_per_second" if value.is_number() => json!(0),
                    "root" => json!("FOLDER"),
                    _ => fixed(value.take()),
                };
            }
        }
        Value::Array(list) => list
            .iter_mut()
            .for_each(|value| *value = fixed(value.take())),
        _ => {}
    }
    value
}

async fn post(setup: &Setup, path: &str, body: Value) -> Value {
    let answer = setup
        .client()
        .header("x-request-id", "id")
        .post(path, &body)
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    if body["stream"] == json!(true) {
        fixed(Value::Array(answer.events()))
    } else {
        fixed(answer.json())
    }
}

fn usage() -> Value {
    json!({
        "prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 2},
        "foretoken": {
            "rounds": 1, "drafted": 4, "accepted": 0, "hits": 0, "misses": 0, "late": 0, "bytes": 0,
            "acceptance_length": 1.0, "seed": 5, "policy": "Speculative",
            "verification": "Coupled",
        },
    })
}

fn timings() -> Value {
    json!({
        "prompt_n": 0, "cache_n": 2, "prompt_ms": 7.0, "predicted_n": 2, "predicted_ms": 50.0,
        "predicted_per_second": 0, "draft_n": 4, "draft_n_accepted": 0,
    })
}

#[tokio::test]
async fn completion() {
    let setup = start(Script::says("x")).await;
    let body = json!({"prompt": "x", "seed": 5, "logprobs": 1});
    let token = setup.targets[0].address.to_string();
    assert!(token.starts_with("http://"));
    let got = post(&setup, "/v1/completions", body).await;
    let next = got["choices"][0]["logprobs"].clone();
    assert_eq!(
        got,
        json!({
            "id": "cmpl-id", "object": "text_completion", "created": 0, "model": "tiny",
            "system_fingerprint": "fp_d1e5_test-scripted",
            "choices": [{
                "index": 0, "text": "x", "finish_reason": "stop", "stop_reason": null,
                "logprobs": {
                    "tokens": ["x", "</s>"], "token_logprobs": [-0.5, -0.5],
                    "top_logprobs": [{"x": -0.5}, {"</s>": -0.5}], "text_offset": [0, 1],
                },
            }],
            "usage": usage(), "timings": timings(),
        }),
        "{next}"
    );
}

#[tokio::test]
async fn chat_completion() {
    let setup = start(Script::says("x")).await;
    let body = json!({
        "messages": [{"role": "user", "content": "x"}], "seed": 5, "logprobs": true,
    });
    assert_eq!(
        post(&setup, "/v1/chat/completions", body).await,
        json!({
            "id": "chatcmpl-id", "object": "chat.completion", "created": 0, "model": "tiny",
            "system_fingerprint": "fp_d1e5_test-scripted",
            "choices": [{
                "index": 0, "message": {"role": "assistant", "content": "x", "refusal": null},
                "finish_reason": "stop", "stop_reason": null,
                "logprobs": {"refusal": null, "content": [
                    {"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []},
                    {"token": "</s>", "logprob": -0.5, "bytes": [60, 47, 115, 62], "top_logprobs": []},
                ]},
            }],
            "usage": usage(), "timings": timings(),
        })
    );
}

#[tokio::test]
async fn streamed_completion() {
    let setup = start(Script::says("x")).await;
    let body = json!({
        "prompt": "x", "seed": 5, "stream": true, "stream_options": {"include_usage": true},
    });
    let chunk = |choices: Value, usage: Value| {
        json!({
            "id": "cmpl-id", "object": "text_completion", "created": 0, "model": "tiny",
            "system_fingerprint": "fp_d1e5_test-scripted", "choices": choices, "usage": usage,
        })
    };
    let mut last = chunk(json!([]), usage());
    last["timings"] = timings();
    assert_eq!(
        post(&setup, "/v1/completions", body).await,
        json!([
            chunk(
                json!([{"index": 0, "text": "x", "logprobs": null, "finish_reason": null}]),
                Value::Null
            ),
            chunk(
                json!([{
                    "index": 0, "text": "", "logprobs": null, "finish_reason": "stop", "stop_reason": null,
                }]),
                Value::Null
            ),
            last,
        ])
    );
}

#[tokio::test]
async fn streamed_chat_completion() {
    let setup = start(Script::says("x")).await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "seed": 5, "stream": true});
    let chunk = |choice: Value| {
        json!({
            "id": "chatcmpl-id", "object": "chat.completion.chunk", "created": 0, "model": "tiny",
            "system_fingerprint": "fp_d1e5_test-scripted", "choices": [choice],
        })
    };
    assert_eq!(
        post(&setup, "/v1/chat/completions", body).await,
        json!([
            chunk(json!({
                "index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": null,
                "finish_reason": null,
            })),
            chunk(json!({
                "index": 0, "delta": {"content": "x"}, "logprobs": null, "finish_reason": null,
            })),
            chunk(json!({
                "index": 0, "delta": {}, "logprobs": null, "finish_reason": "stop", "stop_reason": null,
            })),
        ])
    );
}

#[tokio::test]
async fn models_and_tokens() {
    let setup = start(Script::says("x")).await;
    assert_eq!(
        fixed(setup.client().get("/v1/models").await.json()),
        json!({
            "object": "list",
            "data": [{
                "id": "tiny", "object": "model", "created": 0, "owned_by": "foretoken",
                "root": "FOLDER", "parent": null, "max_model_len": 1024,
            }],
        })
    );
    let ids = setup.targets[0].requests().len();
    assert_eq!(ids, 0);
    let got = post(&setup, "/tokenize", json!({"prompt": "x"})).await;
    let token = got["tokens"][1].clone();
    assert_eq!(
        got,
        json!({
            "count": 2, "max_model_len": 1024, "tokens": [0, token], "token_strs": null,
        })
    );
    let got = post(&setup, "/detokenize", json!({"tokens": [token]})).await;
    assert_eq!(got, json!({"prompt": "x", "content": "x"}));
}

#[tokio::test]
async fn error() {
    let setup = start(Script::says("x")).await;
    let answer = setup
        .client()
        .post("/v1/completions", &json!({"prompt": "x", "n": -1}))
        .await;
    assert_eq!(
        answer.json(),
        json!({"error": {
            "message": "n is -1; it must be an integer from 1 to 256",
            "type": "invalid_request_error", "param": "n", "code": null,
        }})
    );
    let answer = setup.client().get("/ready").await;
    assert_eq!(
        answer.json(),
        json!({
            "ready": true, "models": [{"model": "tiny", "targets_ready": 1, "targets_listed": 1}],
        })
    );
}
