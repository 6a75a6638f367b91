//! Bodies that are no requests, and those that are too large.

use serde_json::json;

use crate::{Script, config, start, start_with};

#[tokio::test]
async fn bodies_that_are_no_json_object_are_refused() {
    let setup = start(Script::says(" ok")).await;
    let deep = format!(
        "{{\"prompt\": {}1{}}}",
        "[".repeat(100_000),
        "]".repeat(100_000)
    );
    let cases: [(&[u8], &str); 10] = [
        (b"", "not valid JSON"),
        (b"{\"prompt\": ", "not valid JSON"),
        (b"[1]", "must be a JSON object"),
        (b"\"x\"", "must be a JSON object"),
        (b"{\"prompt\": \"\xff\xfe\"}", "not valid JSON"),
        (b"{\"prompt\": \"\\ud800\"}", "not valid JSON"),
        (deep.as_bytes(), "not valid JSON"),
        (b"{\"temperature\": NaN}", "not valid JSON"),
        (b"{\"temperature\": -Infinity}", "not valid JSON"),
        (b"{\"temperature\": 1e999}", "not valid JSON"),
    ];
    for path in [
        "/v1/completions",
        "/v1/chat/completions",
        "/tokenize",
        "/detokenize",
    ] {
        for (body, words) in cases {
            let answer = setup.client().send("POST", path, body).await;
            assert_eq!(answer.status, 400, "{path}: {}", answer.text());
            assert!(answer.error().contains(words), "{}", answer.error());
        }
    }
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_told_the_numbers() {
    let setup = start(Script::says(" ok")).await;
    let body = json!({"prompt": vec![5; 1024]});
    let answer = setup.client().post("/v1/completions", &body).await;
    assert_eq!(answer.status, 400);
    let message = answer.error();
    assert!(
        message.contains("1024 tokens") && message.contains("1023"),
        "{message}"
    );
    assert_eq!(answer.json()["error"]["code"], "context_length_exceeded");
}

#[tokio::test]
async fn a_text_that_no_tokenizer_could_make_fit_is_refused_without_being_tokenized() {
    let setup = start(Script::says(" ok")).await;
    // More than any 1,024 tokens of this vocabulary are, and cheap to tokenize all the same.
    let text = "hello world ".repeat(40_000);
    for (path, body, param) in [
        ("/v1/completions", json!({"prompt": text}), "prompt"),
        ("/v1/completions", json!({"prompt": ["x", text]}), "prompt"),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": text}]}),
            "messages",
        ),
    ] {
        let answer = setup.client().post(path, &body).await;
        assert_eq!(answer.status, 400);
        let message = answer.error();
        assert!(
            message.contains("480") && message.contains("bytes"),
            "{message}"
        );
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "context_length_exceeded");
        assert_eq!(error["param"], param);
    }
    // Text itself may be as long as it likes.
    let answer = setup
        .client()
        .post("/tokenize", &json!({"prompt": text}))
        .await;
    assert_eq!(answer.status, 200);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused() {
    let config = foretoken_router::RouterConfig {
        max_body_bytes: 1000,
        ..config()
    };
    let setup = start_with(config, vec![Script::says(" ok")]).await;
    let body = json!({"prompt": "x".repeat(1000)});
    let answer = setup.client().post("/v1/completions", &body).await;
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert!(answer.error().contains("1000 bytes"));
}
