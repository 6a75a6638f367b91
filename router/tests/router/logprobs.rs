//! Log-probabilities in both APIs.

use std::iter;

use foretoken_speculation::TokenId;
use serde_json::{Value, json};

use crate::{
    Script,
    completions::{chat, completion},
    start,
    target::{EOS, tokenizer},
};

/// Checks that each token's offset is where its text is in `text`; for a token without a text of its
/// own, that of what follows.
fn check_offsets(text: &str, logprobs: &Value) {
    let offsets: Vec<usize> = serde_json::from_value(logprobs["text_offset"].clone()).unwrap();
    let tokens = logprobs["tokens"].as_array().unwrap();
    assert_eq!(offsets.len(), tokens.len());
    let chars: Vec<char> = text.chars().collect();
    let ends = offsets.iter().skip(1).copied();
    let ends = ends.chain(iter::once(chars.len()));
    for ((&from, to), token) in offsets.iter().zip(ends).zip(tokens) {
        let own: String = chars[from..to].iter().collect();
        let token = token.as_str().unwrap();
        let is_left_out = own.is_empty() && matches!(token, "<s>" | "</s>");
        let is_part = token.contains('\u{fffd}') && own.chars().count() <= 1;
        assert!(
            own == token || is_left_out || is_part,
            "{own:?} is {token:?} in {logprobs}"
        );
    }
}

#[tokio::test]
async fn echo_puts_the_prompt_first_with_its_logprobs() {
    let setup = start(Script::says(" ok")).await;
    let body = completion(json!({"prompt": "Hello there", "echo": true, "logprobs": 2}));
    let json = setup.client().post("/v1/completions", &body).await.json();
    let choice = &json["choices"][0];
    assert_eq!(choice["text"], "Hello there ok");
    let request = setup.targets[0].request();
    assert!(request.prompt_logprobs);
    let logprobs = &choice["logprobs"];
    let tokens = logprobs["tokens"].as_array().unwrap();
    let emitted = tokenizer().encode(" ok", false).unwrap().len() + 1;
    assert_eq!(tokens.len(), request.prompt_len + emitted);
    assert_eq!(
        logprobs["token_logprobs"][0],
        Value::Null,
        "the first token has none"
    );
    assert_eq!(logprobs["top_logprobs"][0], Value::Null);
    assert_eq!(logprobs["token_logprobs"][1], -0.5);
    check_offsets("Hello there ok", logprobs);

    // In a chat's word.
    for (asked, told) in [(true, Some(1)), (false, None)] {
        let body = completion(json!({"logprobs": asked}));
        let answer = setup.client().post("/v1/completions", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(setup.targets[0].requests().last().unwrap().logprobs, told);
    }

    let by_id = completion(json!({
        "prompt": [0, 300], "echo": true, "logprobs": 1, "return_tokens_as_token_ids": true,
    }));
    let json = setup.client().post("/v1/completions", &by_id).await.json();
    let logprobs = &json["choices"][0]["logprobs"];
    assert_eq!(logprobs["tokens"][1], "token_id:300");
    assert_eq!(logprobs["top_logprobs"][1], json!({"token_id:300": -0.5}));

    let body =
        completion(json!({"prompt": [0, 300, 301], "echo": true, "max_tokens": 0, "logprobs": 0}));
    let json = setup.client().post("/v1/completions", &body).await.json();
    assert_eq!(json["usage"]["completion_tokens"], 0);
    assert_eq!(
        json["choices"][0]["logprobs"]["tokens"]
            .as_array()
            .unwrap()
            .len(),
        3
    );
}

#[tokio::test]
async fn offsets_are_places_in_the_text_that_is_returned_streamed_or_not() {
    let says = " é 漢 ok";
    let mut script = Script::says(says);
    // A special token that ends nothing and is not shown.
    script.output.insert(2, TokenId(0));
    let setup = start(script).await;
    let parts = tokenizer().encode("漢", false).unwrap();
    assert!(parts.len() > 1, "no character is spread over tokens");
    let mut ids = vec![TokenId(0)];
    ids.extend(tokenizer().encode("Hello 漢", false).unwrap());
    let ids = json!(ids.iter().map(|id| id.0).collect::<Vec<_>>());
    for (prompt, echoed) in [
        (json!("Hello 漢 there"), "Hello 漢 there"),
        (json!("<s>Hello</s> there"), "<s>Hello</s> there"),
        (ids.clone(), "Hello 漢"),
    ] {
        for echo in [true, false] {
            let body = json!({"prompt": prompt, "echo": echo, "logprobs": 0});
            let path = "/v1/completions";
            let whole = setup.client().post(path, &completion(body.clone())).await;
            let whole = whole.json();
            let choice = &whole["choices"][0];
            let want = if echo { echoed } else { "" }.to_owned() + says;
            assert_eq!(choice["text"], want);
            check_offsets(&want, &choice["logprobs"]);

            let mut body = completion(body);
            body["stream"] = json!(true);
            let streamed = setup.client().post(path, &body).await.events();
            let offsets: Vec<Value> = streamed
                .iter()
                .filter_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array())
                .flatten()
                .cloned()
                .collect();
            assert_eq!(json!(offsets), choice["logprobs"]["text_offset"]);
        }
    }

    let body = json!({
        "prompt": ids, "echo": true, "logprobs": 0, "skip_special_tokens": false, "ignore_eos": true,
    });
    let path = "/v1/completions";
    let json = setup.client().post(path, &completion(body)).await.json();
    let choice = &json["choices"][0];
    let text = choice["text"].as_str().unwrap();
    assert!(text.starts_with("<s>Hello"), "{text}");
    check_offsets(text, &choice["logprobs"]);
}

#[tokio::test]
async fn chat_logprobs_have_tokens_bytes_and_alternatives() {
    let setup = start(Script::says(" é")).await;
    let body = chat(json!({"logprobs": true, "top_logprobs": 2}));
    let json = setup
        .client()
        .post("/v1/chat/completions", &body)
        .await
        .json();
    let content = json["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(setup.targets[0].request().logprobs, Some(2));
    let bytes: Vec<u8> = content
        .iter()
        .flat_map(|entry| entry["bytes"].as_array().unwrap())
        .map(|byte| byte.as_u64().unwrap() as u8)
        .collect();
    assert_eq!(bytes, " é</s>".as_bytes());
    for entry in &content {
        assert_eq!(entry["logprob"], -0.5);
        assert_eq!(entry["top_logprobs"].as_array().unwrap().len(), 2);
        assert_eq!(entry["top_logprobs"][0]["token"], entry["token"]);
    }
    let body = chat(json!({"logprobs": true}));
    let json = setup
        .client()
        .post("/v1/chat/completions", &body)
        .await
        .json();
    assert_eq!(
        json["choices"][0]["logprobs"]["content"][0]["top_logprobs"],
        json!([])
    );
}

#[tokio::test]
async fn alternatives_come_in_order_of_probability_in_both_apis_streamed_or_not() {
    /// Where each of `words` begins in `text`, all of them after `start`.
    fn places(text: &str, start: &str, words: &[String]) -> Vec<usize> {
        let from = text.find(start).expect("it is told");
        let place = |word: &String| text[from..].find(word).expect("it is told");
        words.iter().map(place).collect()
    }
    // The scripted target gives token t the alternatives t, t + 1, ... in this order.
    let first = (300..4000)
        .find(|&id| {
            let word = |i: u32| tokenizer().decode(&[TokenId(id + i)], false);
            let plain = |i| {
                word(i)
                    .bytes()
                    .all(|b| b.is_ascii_alphabetic() || b == b' ')
            };
            (0..5).all(plain) && !(1..5).map(word).is_sorted()
        })
        .expect("there are five words out of order");
    let mut script = Script::says("");
    script.output = vec![TokenId(first), EOS];
    let setup = start(script).await;
    let words: Vec<String> = (first..first + 5)
        .map(|id| json!(tokenizer().decode(&[TokenId(id)], false)).to_string())
        .collect();
    for stream in [false, true] {
        let body = completion(json!({"logprobs": 5, "stream": stream}));
        let answer = setup.client().post("/v1/completions", &body).await;
        let keys: Vec<String> = words.iter().map(|word| format!("{word}:")).collect();
        let found = places(answer.text(), "\"top_logprobs\"", &keys);
        assert!(found.is_sorted(), "{found:?} in {}", answer.text());
        let body = chat(json!({"logprobs": true, "top_logprobs": 5, "stream": stream}));
        let answer = setup.client().post("/v1/chat/completions", &body).await;
        let found = places(answer.text(), "\"top_logprobs\"", &words);
        assert!(found.is_sorted(), "{found:?} in {}", answer.text());
    }
}
