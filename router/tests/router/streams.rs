//! Streaming: chunks add up to what a whole answer says.

use std::time::Duration;

use foretoken_protocol::generate::HOLD_FOR_WHOLE;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::{Script, Setup, faults::soon, start};

const TEXT: &str = " naïve 🦀 text with a stop\n\nhere";

/// Text of choice `index`, its finish reason, and the number of chunks that brought it.
fn joined(events: &[Value], index: u64) -> (String, Value, usize) {
    let mut text = String::new();
    let mut finish = Value::Null;
    let mut chunks = 0;
    for choice in events.iter().flat_map(|e| e["choices"].as_array().unwrap()) {
        if choice["index"] != index {
            continue;
        }
        assert_eq!(finish, Value::Null, "nothing follows the finish");
        let part = choice
            .get("text")
            .or_else(|| choice["delta"].get("content"));
        text.push_str(part.and_then(Value::as_str).unwrap_or(""));
        finish = choice["finish_reason"].clone();
        chunks += 1;
    }
    (text, finish, chunks)
}

/// Asks for a stream, leaves it as soon as so much has been told, and waits until nothing of it is left.
async fn leave(setup: &Setup, body: &Value, is_enough: impl Fn(&[u8]) -> bool) {
    let body = body.to_string();
    let client = setup.client();
    let mut stream = client
        .open("POST", "/v1/completions", body.as_bytes())
        .await;
    let mut told = Vec::new();
    while !is_enough(&told) {
        assert!(stream.read_buf(&mut told).await.unwrap() > 0, "it goes on");
    }
    drop(stream);
    soon("nothing is left", || setup.targets[0].running() == 0).await;
}

#[tokio::test]
async fn a_choice_is_told_before_the_others_have_begun() {
    let mut script = Script::says(TEXT);
    script.most_begun = 1;
    let setup = start(script).await;
    let body = json!({"prompt": "x", "max_tokens": 100, "n": 3, "stream": true});
    let has_end =
        |told: &[u8]| String::from_utf8_lossy(told).contains("\"finish_reason\":\"stop\"");
    leave(&setup, &body, has_end).await;
}

#[tokio::test]
async fn tokens_may_wait_for_later_ones_unless_they_may_end_the_output() {
    let setup = start(Script::says(TEXT)).await;
    let of_streams = Duration::from_millis(4);
    // No round waits whose target is to tell what it took.
    let asked = [
        (json!({"stream": true}), of_streams, false),
        (json!({"stream": true, "stop": "nowhere"}), of_streams, true),
        (json!({}), HOLD_FOR_WHOLE, false),
        (json!({"stop": "nowhere"}), HOLD_FOR_WHOLE, true),
    ];
    for (mut body, hold, tells) in asked {
        body["prompt"] = json!("x");
        let answer = setup.client().post("/v1/completions", &body).await;
        assert_eq!(answer.status, 200);
        let requests = setup.targets[0].requests();
        let last = requests.last().expect("it was asked");
        assert_eq!((last.hold, last.tell_stats), (hold, tells), "{body}");
    }
}

#[tokio::test]
async fn what_a_client_left_is_counted_too() {
    let setup = start(Script::endless()).await;
    let body = json!({"prompt": "x", "max_tokens": 1000, "ignore_eos": true, "stream": true});
    leave(&setup, &body, |told| told.len() >= 10_000).await;
    assert_eq!(
        setup.metric("foretoken_requests_cancelled_total").await,
        1.0
    );
    let counted = setup.metric("vllm:generation_tokens_total").await;
    assert!(counted > 10.0, "{counted}");
}

#[tokio::test]
async fn chunks_join_to_the_text_of_a_whole_answer() {
    let setup = start(Script::says(TEXT)).await;
    for extra in [
        json!({}),
        json!({"stop": "stop\n"}),
        json!({"max_tokens": 4}),
        json!({"n": 3}),
    ] {
        for (path, mut body) in [
            ("/v1/completions", json!({"prompt": "x", "max_tokens": 100})),
            (
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": "x"}]}),
            ),
        ] {
            body.as_object_mut()
                .unwrap()
                .extend(extra.as_object().unwrap().clone());
            let whole = setup.client().post(path, &body).await.json();
            body["stream"] = json!(true);
            let answer = setup.client().post(path, &body).await;
            assert_eq!(
                answer.header("content-type"),
                Some("text/event-stream; charset=utf-8")
            );
            let events = answer.events();
            for choice in whole["choices"].as_array().unwrap() {
                let index = choice["index"].as_u64().unwrap();
                let want = choice.get("text").unwrap_or(&choice["message"]["content"]);
                let (text, finish, _) = joined(&events, index);
                assert_eq!(
                    (&json!(text), &finish),
                    (want, &choice["finish_reason"]),
                    "{body}"
                );
            }
            let ids: Vec<&Value> = events.iter().map(|event| &event["id"]).collect();
            assert!(ids.iter().all(|id| *id == ids[0]), "one id for all chunks");
            assert!(
                events.iter().all(|event| event.get("usage").is_none()),
                "not asked for"
            );
        }
    }
}

#[tokio::test]
async fn no_chunk_has_part_of_a_character() {
    let setup = start(Script::says(TEXT)).await;
    setup.targets[0].change(|script| script.round = 1);
    let body = json!({"prompt": "x", "max_tokens": 100, "stream": true});
    let events = setup.client().post("/v1/completions", &body).await.events();
    for event in &events {
        assert!(!event.to_string().contains('\u{fffd}'), "{event}");
    }
    assert_eq!(joined(&events, 0).0, TEXT);
}

#[tokio::test]
async fn a_round_makes_one_chunk() {
    let setup = start(Script::says(" one two three four five six seven")).await;
    setup.targets[0].change(|script| script.round = 100);
    let body = json!({"prompt": "x", "max_tokens": 100, "stream": true});
    let events = setup.client().post("/v1/completions", &body).await.events();
    // The first token, the rest, and the finish.
    assert_eq!(joined(&events, 0).2, 3);
}

#[tokio::test]
async fn usage_comes_last_if_asked_for() {
    let setup = start(Script::says(TEXT)).await;
    let body = json!({
        "messages": [{"role": "user", "content": "x"}], "seed": 5, "n": 2,
        "stream": true, "stream_options": {"include_usage": true},
    });
    let mut events = setup
        .client()
        .post("/v1/chat/completions", &body)
        .await
        .events();
    let last = events.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert!(
        events
            .iter()
            .all(|event| event["usage"].is_null() && event.get("usage").is_some())
    );
    let mut whole_body = body.clone();
    whole_body["stream"] = json!(false);
    whole_body.as_object_mut().unwrap().remove("stream_options");
    let whole = setup
        .client()
        .post("/v1/chat/completions", &whole_body)
        .await
        .json();
    assert_eq!(last["usage"], whole["usage"]);
    assert_eq!(last["usage"]["foretoken"]["seed"], 5);
}

#[tokio::test]
async fn each_chunk_tells_its_choices_usage_if_asked_to() {
    let setup = start(Script::says(TEXT)).await;
    for path in ["/v1/completions", "/v1/chat/completions"] {
        let mut body = json!({
            "n": 2, "stream": true, "return_token_ids": true,
            "stream_options": {"include_usage": true, "continuous_usage_stats": true},
        });
        let asked = match path {
            "/v1/completions" => json!({"prompt": "x", "max_tokens": 100}),
            _ => json!({"messages": [{"role": "user", "content": "x"}]}),
        };
        body.as_object_mut()
            .unwrap()
            .extend(asked.as_object().unwrap().clone());
        let mut events = setup.client().post(path, &body).await.events();
        let all = events.pop().unwrap()["usage"].take();
        let prompt = all["prompt_tokens"].as_u64().unwrap();
        let mut told = [0_u64; 2];
        for event in events {
            let choice = &event["choices"][0];
            let told = &mut told[choice["index"].as_u64().unwrap() as usize];
            *told += choice["token_ids"].as_array().map_or(0, Vec::len) as u64;
            let usage = json!({
                "prompt_tokens": prompt, "completion_tokens": *told, "total_tokens": prompt + *told,
            });
            assert_eq!(event["usage"], usage, "{path}: {choice}");
        }
        assert!(told.iter().all(|&tokens| tokens > 1), "{told:?}");
        assert_eq!(all["completion_tokens"], told.iter().sum::<u64>());
    }
    // It includes the usage at the end, unless that is said not to be wanted.
    for (options, told) in [
        (json!({"continuous_usage_stats": true}), true),
        (
            json!({"continuous_usage_stats": true, "include_usage": false}),
            false,
        ),
    ] {
        let body = json!({"prompt": "x", "stream": true, "stream_options": options});
        let events = setup.client().post("/v1/completions", &body).await.events();
        let tells = |event: &Value| event.get("usage").is_some_and(Value::is_object);
        assert!(events.iter().all(|event| tells(event) == told), "{options}");
    }
}

#[tokio::test]
async fn the_first_chunk_of_a_chat_has_the_role() {
    let setup = start(Script::says(TEXT)).await;
    let body = json!({"messages": [{"role": "user", "content": "x"}], "stream": true});
    let events = setup
        .client()
        .post("/v1/chat/completions", &body)
        .await
        .events();
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(events[0]["object"], "chat.completion.chunk");
    assert!(
        events[1..]
            .iter()
            .all(|e| e["choices"][0]["delta"].get("role").is_none())
    );
}

#[tokio::test]
async fn logprobs_and_ids_of_chunks_join_to_those_of_a_whole_answer() {
    let setup = start(Script::says(TEXT)).await;
    let mut body = json!({
        "prompt": "x y", "max_tokens": 100, "logprobs": 1, "echo": true, "return_token_ids": true,
        "stop": "stop",
    });
    let whole = setup.client().post("/v1/completions", &body).await.json();
    body["stream"] = json!(true);
    let events = setup.client().post("/v1/completions", &body).await.events();
    let list = |pointer: &str| -> Value {
        let parts = events
            .iter()
            .filter_map(|event| event["choices"][0].pointer(pointer));
        Value::Array(
            parts
                .filter_map(Value::as_array)
                .flatten()
                .cloned()
                .collect(),
        )
    };
    let whole = &whole["choices"][0];
    for pointer in [
        "/logprobs/tokens",
        "/logprobs/token_logprobs",
        "/logprobs/text_offset",
        "/token_ids",
    ] {
        assert_eq!(list(pointer), *whole.pointer(pointer).unwrap(), "{pointer}");
    }
    assert_eq!(
        events[0]["choices"][0]["prompt_token_ids"],
        whole["prompt_token_ids"]
    );
    assert_eq!(joined(&events, 0).0, whole["text"].as_str().unwrap());
}
