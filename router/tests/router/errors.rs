//! Requests that are wrong get an answer that says what to change, and no target hears of them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{Script, Setup, config, start, start_with};

fn completion(field: &str, value: Value) -> (&'static str, Value) {
    let mut body = json!({"model": "tiny", "prompt": "x"});
    body[field] = value;
    ("/v1/completions", body)
}

fn chat(field: &str, value: Value) -> (&'static str, Value) {
    let mut body = json!({"model": "tiny", "messages": [{"role": "user", "content": "x"}]});
    body[field] = value;
    ("/v1/chat/completions", body)
}

/// Whether a body is refused for a field, in these words among others.
pub(crate) async fn is_refused(
    setup: &Setup,
    (path, body): (&str, &Value),
    param: &str,
    words: &[&str],
) {
    let answer = setup.client().post(path, body).await;
    let message = answer.error();
    assert_eq!(answer.status, 400, "{body}: {message}");
    let error = &answer.json()["error"];
    assert_eq!(error["param"], param, "{body}: {message}");
    assert_eq!(error["type"], "invalid_request_error");
    for word in words {
        assert!(message.contains(word), "{word} in: {message}");
    }
}

#[expect(clippy::too_many_lines, reason = "a table of cases")]
#[tokio::test]
async fn wrong_types_and_ranges_name_field_value_and_what_is_allowed() {
    let setup = start(Script::says(" ok")).await;
    for ((path, body), param, words) in [
        (
            completion("temperature", json!("hot")),
            "temperature",
            ["\"hot\"", "from 0 to 2"],
        ),
        (
            completion("temperature", json!(2.5)),
            "temperature",
            ["2.5", "from 0 to 2"],
        ),
        (
            completion("temperature", json!(-1)),
            "temperature",
            ["-1", "from 0 to 2"],
        ),
        (
            completion("top_p", json!(0)),
            "top_p",
            ["0", "above 0 and at most 1"],
        ),
        (
            completion("top_k", json!(1.5)),
            "top_k",
            ["1.5", "an integer from -1 to 4294967295"],
        ),
        (completion("min_p", json!(2)), "min_p", ["2", "from 0 to 1"]),
        (
            completion("cache_salt", json!("")),
            "cache_salt",
            ["\"\"", "a secret of 1 to 1024 bytes"],
        ),
        (
            completion("max_tokens", json!(0)),
            "max_tokens",
            ["from 1 to", "or -1 for as many as there is room for"],
        ),
        (
            completion("max_tokens", json!("9")),
            "max_tokens",
            ["\"9\"", "integer"],
        ),
        (completion("n", json!(0)), "n", ["0", "from 1"]),
        (completion("n", json!(257)), "n", ["257", "256"]),
        (
            completion("stream", json!("yes")),
            "stream",
            ["\"yes\"", "true or false"],
        ),
        (
            completion("logprobs", json!(21)),
            "logprobs",
            ["21", "from 0 to 20"],
        ),
        (
            completion("stop", json!([1])),
            "stop",
            ["[1]", "list of strings"],
        ),
        (
            completion("stop", json!([""])),
            "stop",
            ["[\"\"]", "none empty"],
        ),
        (
            completion("stop_token_ids", json!([4096])),
            "stop_token_ids",
            ["[4096]", "0 to 4095"],
        ),
        (
            completion("logit_bias", json!({"x": 1})),
            "logit_bias",
            ["\"x\"", "0 to 4095"],
        ),
        (
            completion("logit_bias", json!({"07": 1})),
            "logit_bias",
            ["\"07\"", "as plain numbers"],
        ),
        (
            completion("logit_bias", json!({"+7": 1, "7": 1})),
            "logit_bias",
            ["\"+7\"", "as plain numbers"],
        ),
        (
            completion("logit_bias", json!({"1": 101})),
            "logit_bias",
            ["101", "-100 to 100"],
        ),
        (
            completion("presence_penalty", json!(3)),
            "presence_penalty",
            ["3", "-2 to 2"],
        ),
        (
            completion("repetition_penalty", json!(0)),
            "repetition_penalty",
            ["0", "above 0"],
        ),
        (completion("seed", json!("a")), "seed", ["\"a\"", "integer"]),
        (
            completion("min_tokens", json!(17)),
            "min_tokens",
            ["17", "which is 16"],
        ),
        // The second prompt has room for more than the first.
        (
            (
                "/v1/completions",
                json!({"prompt": [vec![5; 1016], vec![5]], "min_tokens": 10, "max_tokens": 100}),
            ),
            "min_tokens",
            ["10", "which is 8"],
        ),
        (
            completion("suffix", json!("end")),
            "suffix",
            ["\"end\"", "not supported"],
        ),
        (
            completion("best_of", json!(2)),
            "best_of",
            ["2", "equal to n"],
        ),
        (
            completion("prompt", json!(7)),
            "prompt",
            ["7", "list of token ids"],
        ),
        (
            completion("prompt", json!([])),
            "prompt",
            ["[]", "list of token ids"],
        ),
        (
            completion("prompt", json!([1, "a"])),
            "prompt",
            ["[1,\"a\"]", "0 to 4095"],
        ),
        (
            completion("prompt", json!([4096])),
            "prompt",
            ["[4096]", "0 to 4095"],
        ),
        (
            completion("prompt", json!([[]])),
            "prompt",
            ["[]", "at least one token"],
        ),
        (
            completion("prompt", Value::Null),
            "prompt",
            ["null", "a string"],
        ),
        (
            completion("stream_options", json!({})),
            "stream_options",
            ["{}", "stream is true"],
        ),
        (
            completion("foretoken", json!(1)),
            "foretoken",
            ["1", "an object"],
        ),
        (
            completion("foretoken", json!({"policy": 1})),
            "foretoken.policy",
            ["1", "Autoregressive or Speculative"],
        ),
        (
            completion("foretoken", json!({"lookahead": -1})),
            "foretoken.lookahead",
            ["-1", "0"],
        ),
        (
            completion("foretoken", json!({"lookahead": 33})),
            "foretoken.lookahead",
            ["33", "from 0 to 32"],
        ),
        (
            completion("foretoken", json!({"policy": "Magic"})),
            "foretoken.policy",
            ["\"Magic\"", "Autoregressive or Speculative"],
        ),
        (
            chat("foretoken", json!({"policy": "Speculative", "lookahed": 3})),
            "foretoken.lookahed",
            ["3", "the fields here are policy, lookahead"],
        ),
        (
            completion("top_k", json!(u64::MAX)),
            "top_k",
            ["18446744073709551615", "from -1 to 4294967295"],
        ),
        (
            completion("max_tokens", json!(-3)),
            "max_tokens",
            ["-3", "from 1 to"],
        ),
        (
            completion("seed", json!(1e300)),
            "seed",
            ["1e+300", "to 9223372036854775807"],
        ),
        (
            completion("temperature", json!(1e308)),
            "temperature",
            ["1e+308", "from 0 to 2"],
        ),
        (
            completion("n", json!(1_000_000_000)),
            "n",
            ["1000000000", "from 1 to 256"],
        ),
        (
            completion("stop", json!("")),
            "stop",
            ["\"\"", "none empty"],
        ),
        (
            completion("guided_regex", json!("a")),
            "guided_regex",
            ["\"a\"", "not supported"],
        ),
        (
            completion("response_format", json!({"type": "json_object"})),
            "response_format",
            ["json_object", "not supported"],
        ),
        (
            chat("messages", json!([])),
            "messages",
            ["[]", "at least one"],
        ),
        (
            chat("messages", json!("hi")),
            "messages",
            ["\"hi\"", "a list"],
        ),
        (
            chat("messages", json!([7])),
            "messages[0]",
            ["7", "role and content"],
        ),
        (
            chat("messages", json!([{"content": "x"}])),
            "messages[0].role",
            ["null", "\"user\""],
        ),
        (
            chat("messages", json!([{"role": "user", "content": 1}])),
            "messages[0].content",
            ["1", "text"],
        ),
        (
            chat(
                "messages",
                json!([{"role": "user", "content": [{"type": "image_url"}]}]),
            ),
            "messages[0].content",
            ["image_url", "type text"],
        ),
        (
            chat("top_logprobs", json!(3)),
            "top_logprobs",
            ["3", "logprobs is true"],
        ),
        (
            chat("tools", json!([{"type": "function"}])),
            "tools",
            ["function", "not supported"],
        ),
        (
            chat("tool_choice", json!("required")),
            "tool_choice",
            ["required", "\"none\" or \"auto\""],
        ),
        (
            chat("functions", json!([{"name": "f"}])),
            "functions",
            ["name", "not supported"],
        ),
        (
            chat("function_call", json!({"name": "f"})),
            "function_call",
            ["name", "not supported"],
        ),
        (
            chat("modalities", json!(["text", "audio"])),
            "modalities",
            ["audio", "only text"],
        ),
        (
            chat("allowed_token_ids", json!([5, 7])),
            "allowed_token_ids",
            ["[5,7]", "not supported"],
        ),
        (
            chat("chat_template", json!("{{ 1 }}")),
            "chat_template",
            ["{{ 1 }}", "the model's own template"],
        ),
        (
            chat("echo", json!(true)),
            "echo",
            ["true", "absent or false"],
        ),
        (
            chat("max_completion_tokens", json!(0)),
            "max_completion_tokens",
            ["0", "from 1 to"],
        ),
    ] {
        is_refused(&setup, (path, &body), param, &words).await;
    }
    assert_eq!(
        setup.targets[0].requests().len(),
        0,
        "no target hears of a wrong request"
    );
}

#[tokio::test]
async fn unknown_models_routes_and_methods_are_told() {
    let setup = start(Script::says(" ok")).await;
    let answer = setup
        .client()
        .post("/v1/completions", &json!({"model": "big", "prompt": "x"}))
        .await;
    assert_eq!(answer.status, 404);
    assert!(answer.error().contains("'big'") && answer.error().contains("tiny"));
    assert_eq!(answer.json()["error"]["code"], "model_not_found");
    let answer = setup.client().get("/v1/nothing").await;
    assert_eq!(answer.status, 404);
    assert!(answer.error().contains("/v1/nothing"));
    let answer = setup.client().get("/v1/completions").await;
    assert_eq!(answer.status, 405);
    assert!(answer.error().contains("GET"));
}

#[tokio::test]
async fn what_the_target_refuses_is_told_with_the_right_status_even_when_streaming() {
    let mut script = Script::says(" ok");
    script.refuses = Some("lookahead is 99; it must be at most 32".into());
    let setup = start(script).await;
    for stream in [false, true] {
        let body = json!({"prompt": "x", "stream": stream});
        let answer = setup.client().post("/v1/completions", &body).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
        assert!(answer.error().contains("at most 32"));
    }
}

#[tokio::test]
async fn without_a_target_the_answer_is_come_back_later() {
    let setup = start_with(config(), Vec::new()).await;
    let answer = setup
        .client()
        .post("/v1/completions", &json!({"prompt": "x"}))
        .await;
    assert_eq!(answer.status, 503);
    assert_eq!(answer.header("retry-after"), Some("1"));
    assert!(answer.error().contains("no target"), "{}", answer.error());
    assert_eq!(answer.json()["error"]["code"], "no_target_ready");
}

#[tokio::test]
async fn a_key_is_asked_for_if_there_are_any() {
    let keys = vec!["first-key".to_owned(), "second-key".to_owned()];
    let config = foretoken_router::RouterConfig {
        api_keys: keys,
        ..config()
    };
    let setup = start_with(config, vec![Script::says(" ok")]).await;
    let body = json!({"prompt": "x"});
    for header in [
        None,
        Some("Bearer wrong"),
        Some("second-key"),
        Some("Bearer second-ke"),
    ] {
        let mut client = setup.client();
        if let Some(header) = header {
            client = client.header("authorization", header);
        }
        let answer = client.post("/v1/completions", &body).await;
        assert_eq!(answer.status, 401, "{header:?}");
        assert_eq!(answer.json()["error"]["code"], "invalid_api_key");
    }
    let client = setup.client().header("authorization", "Bearer second-key");
    assert_eq!(client.post("/v1/completions", &body).await.status, 200);
    assert_eq!(
        setup.client().get("/health").await.status,
        200,
        "probes bring no key"
    );
    assert_eq!(setup.client().get("/metrics").await.status, 200);
    assert_eq!(setup.client().get("/v1/models").await.status, 401);
}

#[tokio::test]
async fn keys_of_a_file_are_read_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    std::fs::write(&file, "old\nother\n").unwrap();
    let config = foretoken_router::RouterConfig {
        api_keys_from: Some(file.clone()),
        ..config()
    };
    let setup = start_with(config, vec![Script::says(" ok")]).await;
    let status = async |key: &str| {
        let client = setup
            .client()
            .header("authorization", &format!("bearer {key}"));
        client.get("/v1/models").await.status
    };
    assert_eq!([status("old").await, status("new").await], [200, 401]);
    std::fs::write(&file, "new\nother\n").unwrap();
    while status("new").await != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!([status("old").await, status("other").await], [401, 200]);
}

#[tokio::test]
async fn a_port_in_use_and_a_wrong_folder_are_clear_errors() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut config = config();
    config.listen = taken.local_addr().unwrap().to_string();
    let error = foretoken_router::Router::bind(config.clone())
        .await
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains(&config.listen) && error.contains("another program"),
        "{error}"
    );

    config.models[0].folder = "/nonexistent".into();
    let bound = tokio::time::timeout(
        Duration::from_secs(5),
        foretoken_router::Router::bind(config),
    );
    let error = bound.await.unwrap().err().unwrap().to_string();
    assert!(
        error.contains("/nonexistent") && error.contains("does not exist"),
        "{error}"
    );
}
