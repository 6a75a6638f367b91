//! Requests that are too much get an answer that names the limit, and no target hears of them.

use std::sync::Arc;

use foretoken_router::RouterConfig;
use foretoken_speculation::TokenId;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::{Script, client::Client, config, start, start_with, target::tokenizer};

#[tokio::test]
async fn a_field_with_too_many_entries_is_refused_with_the_limit() {
    let config = RouterConfig {
        max_messages: 2,
        max_stops: 2,
        max_logit_biases: 2,
        max_prompt_tokens: 30,
        ..config()
    };
    let setup = start_with(config, vec![Script::says(" ok")]).await;
    let message = json!({"role": "user", "content": "x"});
    let messages = |number| Value::from(vec![message.clone(); number]);
    let completion = |field: &str, value: Value| {
        let mut body = json!({"prompt": "x"});
        body[field] = value;
        ("/v1/completions", body)
    };
    let chat = |messages: Value| ("/v1/chat/completions", json!({"messages": messages}));
    let long = "a".repeat(4097);
    for ((path, body), param, words) in [
        (
            chat(messages(3)),
            "messages",
            "at most 2 entries (it has 3)",
        ),
        (
            completion("stop", json!(["a", "b", "c"])),
            "stop",
            "at most 2 entries (it has 3)",
        ),
        (
            completion("stop", json!(long)),
            "stop",
            "at most 4096 bytes",
        ),
        (
            completion("stop_token_ids", json!([1, 2, 3])),
            "stop_token_ids",
            "at most 2 entries (it has 3)",
        ),
        (
            completion("logit_bias", json!({"1": 1, "2": 1, "3": 1})),
            "logit_bias",
            "at most 2 entries (it has 3)",
        ),
        (
            completion("prompt", json!(vec![1; 31])),
            "prompt",
            "the prompt has 31 tokens; this server takes at most 30",
        ),
    ] {
        let answer = setup.client().post(path, &body).await;
        assert_eq!(answer.status, 400, "{param}: {}", answer.text());
        assert!(answer.error().contains(words), "{}", answer.error());
        let error = &answer.json()["error"];
        assert_eq!(error["param"], param);
        assert_eq!(error["type"], "invalid_request_error");
    }
    for (path, body) in [
        chat(messages(2)),
        completion("stop", json!(["a", "b"])),
        completion("prompt", json!(vec![1; 30])),
    ] {
        assert_eq!(setup.client().post(path, &body).await.status, 200);
    }
}

#[tokio::test]
async fn what_is_tokenized_and_detokenized_has_its_limits_too() {
    let config = RouterConfig {
        max_messages: 2,
        max_body_bytes: 10_000,
        ..config()
    };
    let setup = start_with(config, vec![Script::says(" ok")]).await;
    let messages = |number| {
        let message = json!({"role": "user", "content": "x"});
        json!({"messages": vec![message; number]})
    };
    let longest = (0..4096).max_by_key(|&id| tokenizer().token_bytes(TokenId(id)).len());
    let bytes = tokenizer().token_bytes(TokenId(longest.unwrap())).len();
    let tokens = |number: usize| json!({"tokens": vec![longest; number]});
    let fit = 10_000 / bytes;
    let has = format!("at most 10000 bytes of text (it has {})", (fit + 1) * bytes);
    for (path, body, param, words) in [
        (
            "/tokenize",
            messages(3),
            "messages",
            "at most 2 entries (it has 3)",
        ),
        ("/detokenize", tokens(fit + 1), "tokens", &has),
    ] {
        let answer = setup.client().post(path, &body).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.text());
        assert!(answer.error().contains(words), "{}", answer.error());
        assert_eq!(answer.json()["error"]["param"], param);
    }
    let answer = setup.client().post("/tokenize", &messages(2)).await;
    assert_eq!(answer.status, 200);
    let answer = setup.client().post("/detokenize", &tokens(fit)).await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_thousand_stop_strings_are_taken_and_not_a_megabyte_of_them() {
    let setup = start(Script::says(" and so it ended there")).await;
    let strings = |number: usize, bytes: usize| -> Vec<String> {
        let string = |i| format!("{:a>bytes$}", format!("<end of part {i}>"));
        (0..number).map(string).collect()
    };
    let mut ordinary = strings(1000, 20);
    ordinary.push("ended".into());
    let body = json!({"prompt": "x", "max_tokens": 20, "stop": ordinary});
    let answer = setup.client().post("/v1/completions", &body).await;
    assert_eq!(answer.json()["choices"][0]["text"], " and so it ");
    assert_eq!(answer.json()["choices"][0]["stop_reason"], "ended");

    for (number, bytes, status) in [(16, 4096, 200), (17, 4096, 400), (1024, 100, 400)] {
        let body = json!({"prompt": "x", "stop": strings(number, bytes)});
        let answer = setup.client().post("/v1/completions", &body).await;
        assert_eq!(answer.status, status, "{number} of {bytes}");
        if status == 400 {
            let has = number * bytes;
            let words = format!("at most 65536 bytes together (it has {has})");
            assert!(answer.error().contains(&words), "{}", answer.error());
            assert_eq!(answer.json()["error"]["param"], "stop");
        }
    }
}

#[tokio::test]
async fn a_head_that_is_too_large_is_told_so() {
    let setup = start(Script::says(" ok")).await;
    let large = Client::new(setup.address).header("x-large", &"a".repeat(70_000));
    let mut many = Client::new(setup.address);
    for index in 0..120 {
        many = many.header(&format!("x-{index}"), "a");
    }
    for client in [large, many] {
        let answer = client.get("/v1/models").await;
        assert_eq!(answer.status, 431);
        assert_eq!(answer.json()["error"]["code"], "headers_too_large");
        assert!(answer.error().contains("at most 100 of 65536 bytes"));
    }
}

#[tokio::test]
async fn more_requests_than_can_be_answered_may_come_again() {
    let config = RouterConfig {
        max_requests: 1,
        ..config()
    };
    let mut script = Script::says(" ok");
    let gate = Arc::new(Notify::new());
    script.gate = Some(Arc::clone(&gate));
    let setup = start_with(config, vec![script]).await;
    let body = json!({"prompt": "x", "stream": true});
    let first = {
        let (client, body) = (setup.client(), body.clone());
        tokio::spawn(async move { client.post("/v1/completions", &body).await.status })
    };
    while setup.targets[0].running() == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    // Nobody else waits there.
    setup.targets[0].change(|script| script.gate = None);
    let ids = json!({"tokens": [5]});
    for (path, body) in [
        ("/v1/completions", &body),
        ("/tokenize", &body),
        ("/detokenize", &ids),
    ] {
        let refused = setup.client().post(path, body).await;
        assert_eq!(refused.status, 429, "{path}");
        let error = &refused.json()["error"];
        assert_eq!(error["type"], "rate_limit_error");
        assert_eq!(error["code"], "too_many_requests");
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    gate.notify_one();
    assert_eq!(first.await.expect("it ends"), 200);
    let again = setup.client().post("/v1/completions", &body).await;
    assert_eq!(again.status, 200, "the place was given back");
}

#[tokio::test]
async fn targets_that_are_full_are_not_told_as_none() {
    let mut script = Script::says(" ok");
    script.busy = true;
    let setup = start(script).await;
    let answer = setup
        .client()
        .post("/v1/completions", &json!({"prompt": "x"}))
        .await;
    assert_eq!(answer.status, 429);
    assert_eq!(answer.header("retry-after"), Some("1"));
    let error = &answer.json()["error"];
    assert_eq!(error["type"], "rate_limit_error");
    assert_eq!(error["code"], "targets_full");
    let message = answer.error();
    assert!(message.contains("'tiny' are full"), "{message}");
}
