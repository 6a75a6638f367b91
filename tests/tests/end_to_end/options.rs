//! Sampling options that a request can have.

use std::{iter, ops::Range};

use foretoken_speculation::noise::philox;
use serde_json::{Value, json};

/// Each shape of text that the shipped pair was trained on.
pub(crate) const PROMPTS: [&str; 2] = [
    "Question: Tom has 3 apples and buys 5 more.",
    "And it came to pass in those days, that",
];

/// One combination each. Seeds are drawn by [`requests`].
fn options() -> Vec<Value> {
    vec![
        json!({"temperature": 0}),
        json!({"temperature": 0, "logprobs": 3}),
        json!({"temperature": 0, "repetition_penalty": 1.3}),
        json!({"temperature": 0, "presence_penalty": 0.8, "frequency_penalty": 0.6}),
        json!({"temperature": 0, "logit_bias": {"20": 2.0, "16": -100.0}}),
        json!({"temperature": 0, "n": 2, "stop": [" the", "."]}),
        json!({"temperature": 1}),
        json!({"temperature": 1, "top_k": 1}),
        json!({"temperature": 1, "top_k": 20}),
        json!({"temperature": 1, "top_p": 0.9, "min_p": 0.02}),
        json!({"temperature": 0.7, "repetition_penalty": 1.2}),
        json!({"temperature": 1, "presence_penalty": 0.5, "frequency_penalty": 0.5}),
        json!({"temperature": 1, "logit_bias": {"20": 3.0, "16": -100.0}}),
        json!({
            "temperature": 0.9, "repetition_penalty": 1.1, "presence_penalty": -0.4,
            "frequency_penalty": 0.7, "logit_bias": {"20": 2.0, "33": -3.0}, "top_p": 0.95,
        }),
        json!({"temperature": 1, "n": 2, "stop": ["apples", "\n\n"]}),
        json!({"temperature": 1, "min_tokens": 30, "ignore_eos": true}),
        json!({"temperature": 1, "echo": true, "logprobs": 2}),
    ]
}

/// All combinations with the seeds of these draws each, for every prompt: requests of one row differ in
/// nothing but the prompt. Seeds are the same in every run.
pub(crate) fn requests(draws: Range<u32>) -> Vec<[Value; PROMPTS.len()]> {
    let mut requests = Vec::new();
    for (index, options) in (0..).zip(options()) {
        // Nothing is drawn at temperature 0, whatever the seed.
        let is_drawn = options["temperature"] != 0;
        for draw in draws.clone().filter(|&draw| is_drawn || draw == 0) {
            let seed = philox([index, draw, 0, 0], [0x5eed, 0])[0];
            requests.push(PROMPTS.map(|prompt| {
                let mut request = options.clone();
                request["model"] = json!("story");
                request["prompt"] = json!(prompt);
                request["max_tokens"] = json!(48);
                request["seed"] = json!(seed);
                request
            }));
        }
    }
    requests
}

/// The first `draws` of each, and after them one more at a time, for whom too little has happened: on a busy
/// machine few drafts are of use.
pub(crate) fn rounds_of(draws: u32) -> impl Iterator<Item = Range<u32>> {
    iter::once(0..draws).chain((draws..4 * draws).map(|draw| draw..draw + 1))
}

/// The same request under a policy, with windows of this length where it has any.
pub(crate) fn under(request: &Value, policy: &str, lookahead: u32) -> Value {
    let mut request = request.clone();
    request["foretoken"] = json!({"policy": policy});
    if policy != "Autoregressive" {
        request["foretoken"]["lookahead"] = json!(lookahead);
    }
    request
}
