//! Everything but completions.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{Script, config, start, start_with};

#[tokio::test]
async fn models_are_listed_and_found_by_name() {
    let setup = start(Script::says(" ok")).await;
    let json = setup.client().get("/v1/models").await.json();
    assert_eq!(json["object"], "list");
    assert_eq!(json["data"][0]["id"], "tiny");
    assert_eq!(json["data"][0]["max_model_len"], 1024);
    let one = setup.client().get("/v1/models/tiny").await;
    assert_eq!(one.json(), json["data"][0]);
    for nobody in ["other", "%ff"] {
        let answer = setup.client().get(&format!("/v1/models/{nobody}")).await;
        assert_eq!(answer.status, 404, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "model_not_found");
        assert!(answer.error().contains(nobody), "{}", answer.error());
    }
}

#[tokio::test]
async fn tokenize_and_detokenize_are_inverse() {
    let setup = start(Script::says(" ok")).await;
    let body = json!({"model": "tiny", "prompt": "Hello 🦀", "return_token_strs": true});
    let json = setup.client().post("/tokenize", &body).await.json();
    assert_eq!(json["count"], json["tokens"].as_array().unwrap().len());
    assert_eq!(json["tokens"][0], 0);
    assert_eq!(json["token_strs"][0], "<s>");
    assert_eq!(json["max_model_len"], 1024);
    let back = setup
        .client()
        .post("/detokenize", &json!({"tokens": json["tokens"]}))
        .await
        .json();
    assert_eq!(back["prompt"], "<s>Hello 🦀");
    let plain = json!({"prompt": "Hello", "add_special_tokens": false});
    let json = setup.client().post("/tokenize", &plain).await.json();
    assert_ne!(json["tokens"][0], 0);
    assert_eq!(json["token_strs"], Value::Null);
    // As llama.cpp words it.
    let theirs = json!({"content": "Hello"});
    let their = setup.client().post("/tokenize", &theirs).await.json();
    assert_eq!(their["tokens"], json["tokens"]);
    let begun = json!({"content": "Hello", "add_special": true});
    let begun = setup.client().post("/tokenize", &begun).await.json();
    assert_eq!(begun["tokens"][0], 0);
    assert_eq!(back["content"], back["prompt"]);
    let messages = json!({"messages": [{"role": "user", "content": "Hello"}]});
    let chat = setup.client().post("/tokenize", &messages).await.json();
    assert_eq!(chat["tokens"][0], 0);
    let answer = setup
        .client()
        .post("/detokenize", &json!({"tokens": [4096]}))
        .await;
    assert!(answer.status == 400 && answer.error().contains("0 to 4095"));
}

#[tokio::test]
async fn health_waits_for_the_first_target_only() {
    let setup = start_with(config(), Vec::new()).await;
    assert_eq!(setup.client().get("/live").await.status, 200);
    assert_eq!(setup.client().get("/health").await.status, 503);
    assert_eq!(setup.client().get("/ready").await.status, 503);
    let setup = start(Script::says(" ok")).await;
    for path in ["/live", "/health", "/ready"] {
        assert_eq!(setup.client().get(path).await.status, 200, "{path}");
    }
}

#[tokio::test]
async fn metrics_have_the_names_that_vllms_users_know() {
    let mut script = Script::says(" one two three");
    // One token, and three in a second round.
    script.pause = Duration::from_millis(5);
    let setup = start(script).await;
    let before = setup.client().get("/metrics").await.text().to_owned();
    let idle = "vllm:num_requests_running{model_name=\"tiny\"} 0";
    assert!(before.contains(idle), "{idle} in\n{before}");
    setup
        .client()
        .post(
            "/v1/completions",
            &json!({"prompt": "x", "max_tokens": 100, "n": 2}),
        )
        .await;
    let text = setup.client().get("/metrics").await.text().to_owned();
    for name in [
        "vllm:prompt_tokens_total{model_name=\"tiny\"} 4",
        "vllm:prompt_tokens_cached_total{model_name=\"tiny\"} 4",
        "vllm:generation_tokens_total{model_name=\"tiny\"} 8",
        "vllm:request_success_total{model_name=\"tiny\",finished_reason=\"stop\"} 2",
        "vllm:num_requests_running{model_name=\"tiny\"} 0",
        "vllm:time_to_first_token_seconds_count{model_name=\"tiny\"} 2",
        "vllm:e2e_request_latency_seconds_count{model_name=\"tiny\"} 2",
        "vllm:inter_token_latency_seconds_count{model_name=\"tiny\"} 2",
        "vllm:request_time_per_output_token_seconds_count{model_name=\"tiny\"} 2",
        "vllm:spec_decode_num_accepted_tokens_total{model_name=\"tiny\"}",
        "foretoken_targets_ready 1",
        "foretoken_http_responses_total{path=\"/v1/completions\",status=\"200\"} 1",
    ] {
        assert!(text.contains(name), "{name} in\n{text}");
    }
    let sum = |name: &str| {
        let name = format!("vllm:{name}_seconds_sum{{model_name=\"tiny\"}} ");
        let sum = text.lines().find_map(|line| line.strip_prefix(&name));
        sum.unwrap().parse::<f64>().unwrap()
    };
    // The one counts what passes before the second round, the other a third of it for each token.
    let (between, each) = (
        sum("inter_token_latency"),
        sum("request_time_per_output_token"),
    );
    assert!((between / each - 3.0).abs() < 1e-6, "{between} and {each}");
}

#[tokio::test]
async fn a_request_id_is_kept_if_the_client_has_one() {
    let setup = start(Script::says(" ok")).await;
    let body = json!({"prompt": "x"});
    let answer = setup
        .client()
        .header("x-request-id", "abc-1")
        .post("/v1/completions", &body)
        .await;
    assert_eq!(answer.header("x-request-id"), Some("abc-1"));
    assert_eq!(answer.json()["id"], "cmpl-abc-1");
    assert_eq!(setup.targets[0].request().request_id, "abc-1");
    let drawn = setup.client().post("/v1/completions", &body).await;
    assert_eq!(drawn.header("x-request-id").unwrap().len(), 32);
}
