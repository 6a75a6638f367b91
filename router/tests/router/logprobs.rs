//! Log-probabilities in both APIs.

use foretoken_speculation::TokenId;
use serde_json::{Value, json};

use crate::{
    Script,
    completions::{chat, completion},
    start,
    target::{EOS, tokenizer},
};

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
    let mut offset = 0;
    for (i, token) in tokens.iter().enumerate() {
        assert_eq!(logprobs["text_offset"][i], offset);
        offset += token.as_str().unwrap().chars().count();
    }

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
