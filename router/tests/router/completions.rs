//! What requests ask for reaches the target, and what it says reaches the user.

use foretoken_speculation::{Seed, TokenId};
use serde_json::{Value, json};

use crate::{
    Script, start,
    target::{EOS, tokenizer},
};

pub(crate) const TEXT: &str = " The answer is 42.\n\nQuestion: why?";

fn with(mut base: Value, extra: Value) -> Value {
    let Value::Object(extra) = extra else {
        panic!("an object")
    };
    base.as_object_mut().expect("an object").extend(extra);
    base
}

pub(crate) fn completion(extra: Value) -> Value {
    with(
        json!({"model": "tiny", "prompt": "Question: 6 * 7?\nAnswer:", "max_tokens": 200}),
        extra,
    )
}

pub(crate) fn chat(extra: Value) -> Value {
    let messages = json!([{"role": "user", "content": "Question: 6 * 7?\nAnswer:"}]);
    with(json!({"model": "tiny", "messages": messages}), extra)
}

#[tokio::test]
async fn text_comes_back_with_usage_that_counts_each_token_once() {
    let setup = start(Script::says(TEXT)).await;
    let answer = setup
        .client()
        .post("/v1/completions", &completion(json!({})))
        .await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let json = answer.json();
    assert_eq!(json["choices"][0]["text"], TEXT);
    assert_eq!(json["choices"][0]["finish_reason"], "stop");
    let request = setup.targets[0].request();
    assert_eq!(
        request.tokens[0],
        TokenId(0),
        "the beginning token is first"
    );
    assert_ne!(request.tokens[1], TokenId(0), "and once");
    let emitted = tokenizer().encode(TEXT, false).unwrap().len() + 1;
    assert_eq!(json["usage"]["prompt_tokens"], request.prompt_len);
    assert_eq!(json["usage"]["completion_tokens"], emitted);
    assert_eq!(json["usage"]["total_tokens"], request.prompt_len + emitted);
    assert_eq!(json["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
}

#[tokio::test]
async fn messages_become_the_prompt_that_the_default_template_makes() {
    let setup = start(Script::says(TEXT)).await;
    let messages = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]},
    ]);
    let body = json!({"messages": messages, "max_completion_tokens": 5});
    let answer = setup.client().post("/v1/chat/completions", &body).await;
    let message = &answer.json()["choices"][0]["message"];
    assert_eq!(message["role"], "assistant");
    let request = setup.targets[0].request();
    assert_eq!(
        tokenizer().decode(&request.tokens, true),
        "Be brief.\nOne\nTwo"
    );
    assert_eq!(request.max_tokens, 5);
    assert_eq!(answer.json()["choices"][0]["finish_reason"], "length");
    assert_eq!(answer.json()["usage"]["completion_tokens"], 5);
}

#[tokio::test]
async fn sampling_fields_arrive_at_the_target() {
    let setup = start(Script::says(TEXT)).await;
    let body = completion(json!({
        "temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "repetition_penalty": 1.1,
        "presence_penalty": -0.5, "frequency_penalty": 0.25, "logit_bias": {"9": 3, "5": -100},
        "seed": -2, "ignore_eos": true, "stop_token_ids": [17], "min_tokens": 3,
        "cache_prompt": false, "cache_salt": "mine alone", "foretoken": {"policy": "Autoregressive", "lookahead": 3},
    }));
    let answer = setup.client().post("/v1/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let request = setup.targets[0].request();
    let sampling = &request.sampling;
    assert_eq!(
        (sampling.temperature, sampling.top_p, sampling.min_p),
        (0.5, 0.9, 0.1)
    );
    assert_eq!((sampling.top_k, sampling.repetition_penalty), (7, 1.1));
    assert_eq!(
        (sampling.presence_penalty, sampling.frequency_penalty),
        (-0.5, 0.25)
    );
    assert_eq!(
        sampling.logit_bias,
        [(TokenId(5), -100.0), (TokenId(9), 3.0)]
    );
    assert_eq!(sampling.banned_until_min, [EOS, TokenId(17)]);
    assert_eq!(sampling.min_tokens, 3);
    assert_eq!(request.seed, Seed(-2_i64 as u64));
    assert!(request.ignore_eos && !request.cache_prompt);
    assert_eq!(request.cache_salt.as_deref(), Some("mine alone"));
    assert_eq!(request.stop_token_ids, [TokenId(17)]);
    assert_eq!(request.policy.as_deref(), Some("Autoregressive"));
    assert_eq!(request.lookahead, Some(3));
    assert_eq!(answer.json()["usage"]["foretoken"]["seed"], -2);
}

#[tokio::test]
async fn a_seed_is_drawn_and_told_if_the_request_has_none() {
    let setup = start(Script::says(TEXT)).await;
    let mut seeds = Vec::new();
    for body in [json!({}), json!({"seed": -1})] {
        let json = setup
            .client()
            .post("/v1/completions", &completion(body))
            .await
            .json();
        seeds.push(json["usage"]["foretoken"]["seed"].as_u64().expect("a seed"));
    }
    let sent: Vec<u64> = setup.targets[0]
        .requests()
        .iter()
        .map(|r| r.seed.0)
        .collect();
    assert_eq!(seeds, sent);
    assert_ne!(seeds[0], seeds[1]);
    assert!(
        seeds.iter().all(|&seed| seed < 1 << 53),
        "every JSON reader can keep them"
    );
}

#[tokio::test]
async fn what_speculation_did_is_in_usage_and_timings() {
    let setup = start(Script::says(TEXT)).await;
    let json = setup
        .client()
        .post("/v1/completions", &completion(json!({})))
        .await
        .json();
    let own = &json["usage"]["foretoken"];
    let (rounds, accepted) = (
        own["rounds"].as_f64().unwrap(),
        own["accepted"].as_f64().unwrap(),
    );
    assert_eq!(own["policy"], "Speculative");
    assert_eq!(own["drafted"].as_f64().unwrap(), rounds * 4.0);
    assert_eq!(
        own["acceptance_length"].as_f64().unwrap(),
        1.0 + accepted / rounds
    );
    let timings = &json["timings"];
    assert_eq!(timings["predicted_ms"], 50.0);
    assert_eq!(timings["prompt_ms"], 7.0);
    // All of the prompt: what had to be read, and what was there.
    let prompt = json["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(timings["cache_n"], 4);
    assert_eq!(timings["prompt_n"], prompt - 4);
    assert_eq!(timings["draft_n_accepted"], own["accepted"]);
    assert_eq!(timings["draft_n"], own["drafted"]);
    let batch = completion(json!({"prompt": [[0, 5, 6, 7, 8, 9], [0, 5, 6, 7, 8]]}));
    let both = setup.client().post("/v1/completions", &batch).await.json();
    let found = (&both["timings"]["prompt_n"], &both["timings"]["cache_n"]);
    assert_eq!(found, (&json!(3), &json!(8)));
    let tokens = json["usage"]["completion_tokens"].as_f64().unwrap();
    assert_eq!(timings["predicted_n"].as_f64(), Some(tokens));
    // In 50 ms after the first.
    let rate = timings["predicted_per_second"].as_f64().unwrap();
    assert!((rate - (tokens - 1.0) * 20.0).abs() < 1e-6, "{rate}");
}

#[tokio::test]
async fn prompts_come_as_text_or_ids_one_or_many() {
    let setup = start(Script::says(" ok")).await;
    for (prompt, want) in [
        (json!("A b"), vec![None]),
        (json!(["A b", "C"]), vec![None, None]),
        (json!([0, 5, 6]), vec![Some(vec![0, 5, 6])]),
        (json!([[7], [8, 9]]), vec![Some(vec![7]), Some(vec![8, 9])]),
    ] {
        let before = setup.targets[0].requests().len();
        let body = completion(json!({"prompt": prompt, "return_token_ids": true}));
        let json = setup.client().post("/v1/completions", &body).await.json();
        let requests = setup.targets[0].requests().split_off(before);
        assert_eq!(
            json["choices"].as_array().unwrap().len(),
            want.len(),
            "{prompt}"
        );
        assert_eq!(requests.len(), want.len());
        let total: usize = requests.iter().map(|r| r.prompt_len).sum();
        assert_eq!(json["usage"]["prompt_tokens"], total);
        for (i, want) in want.into_iter().enumerate() {
            let told = &json["choices"][i]["prompt_token_ids"];
            if let Some(ids) = want {
                assert_eq!(*told, json!(ids), "ids are taken as they are");
            }
        }
    }
}

#[tokio::test]
async fn choices_of_prompts_that_are_alike_have_seeds_of_their_own() {
    let setup = start(Script::says(" ok")).await;
    let body = json!({"prompt": ["x", "x"], "n": 2, "seed": 11});
    let answer = setup.client().post("/v1/completions", &body).await;
    assert_eq!(answer.status, 200);
    let requests = setup.targets[0].requests();
    let mut seeds: Vec<u64> = requests.iter().map(|request| request.seed.0).collect();
    seeds.sort_unstable();
    seeds.dedup();
    assert_eq!(seeds.len(), 4, "{seeds:?}");
    // The first prompt's are those that it has alone.
    for seed in [Seed(11), Seed(11).derive(1)] {
        assert!(seeds.contains(&seed.0), "{seeds:?}");
    }
}

#[tokio::test]
async fn several_choices_have_seeds_of_their_own_and_the_first_keeps_the_requests() {
    let setup = start(Script::says(" ok")).await;
    let body = chat(json!({"n": 3, "seed": 11}));
    let json = setup
        .client()
        .post("/v1/chat/completions", &body)
        .await
        .json();
    let indices: Vec<u64> = json["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["index"].as_u64().unwrap())
        .collect();
    assert_eq!(indices, [0, 1, 2]);
    let mut seeds: Vec<Seed> = setup.targets[0].requests().iter().map(|r| r.seed).collect();
    let mut want = vec![Seed(11), Seed(11).derive(1), Seed(11).derive(2)];
    seeds.sort_unstable_by_key(|s| s.0);
    want.sort_unstable_by_key(|s| s.0);
    assert_eq!(seeds, want);
    setup.client().post("/v1/chat/completions", &body).await;
    let requests = setup.targets[0].requests();
    let owners: Vec<u64> = requests.iter().map(|r| r.owner).collect();
    let [first, .., other] = owners[..] else {
        panic!("six choices")
    };
    assert_eq!(owners, [first, first, first, other, other, other]);
    assert!(first != other && first != 0 && other != 0, "{owners:?}");
    let one = json["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(
        one,
        setup.targets[0].requests()[0].prompt_len as u64,
        "the prompt counts once"
    );
    let emitted = tokenizer().encode(" ok", false).unwrap().len() + 1;
    assert_eq!(json["usage"]["completion_tokens"], 3 * emitted);
}

#[tokio::test]
async fn ids_come_back_under_both_names() {
    let setup = start(Script::says(" ok then")).await;
    let body = completion(json!({"return_token_ids": true, "return_tokens": true}));
    let json = setup.client().post("/v1/completions", &body).await.json();
    let mut want: Vec<u32> = tokenizer()
        .encode(" ok then", false)
        .unwrap()
        .iter()
        .map(|t| t.0)
        .collect();
    want.push(EOS.0);
    assert_eq!(json["choices"][0]["token_ids"], json!(want));
    assert_eq!(json["choices"][0]["tokens"], json!(want));
    let json = setup
        .client()
        .post("/v1/completions", &completion(json!({})))
        .await
        .json();
    assert!(
        json["choices"][0].get("token_ids").is_none(),
        "only if asked for"
    );
}

#[tokio::test]
async fn special_tokens_show_only_if_asked_for() {
    let setup = start(Script::says(" a<s>b")).await;
    let text = |skip: bool| {
        let client = setup.client();
        async move {
            let body = completion(json!({"skip_special_tokens": skip}));
            client.post("/v1/completions", &body).await.json()["choices"][0]["text"].clone()
        }
    };
    assert_eq!(text(true).await, " ab");
    assert_eq!(text(false).await, " a<s>b");
}

#[tokio::test]
async fn unknown_fields_and_nulls_are_ignored() {
    let setup = start(Script::says(" ok")).await;
    let body = completion(json!({
        "whatever": {"a": [1]}, "temperature": null, "stop": null, "seed": null, "user": "me",
        "logprobs": null, "best_of": 1, "n": 1.0, "response_format": {"type": "text"},
    }));
    let answer = setup.client().post("/v1/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(setup.targets[0].request().sampling.temperature, 1.0);
}

#[tokio::test]
async fn the_output_fits_into_what_the_model_has_room_for() {
    let setup = start(Script::says(TEXT)).await;
    let ids: Vec<u32> = vec![5; 1000];
    let body = completion(json!({"prompt": ids, "max_tokens": 500}));
    setup.client().post("/v1/completions", &body).await;
    assert_eq!(setup.targets[0].request().max_tokens, 24);
    let body = json!({"prompt": [5]});
    setup.client().post("/v1/completions", &body).await;
    assert_eq!(
        setup.targets[0].requests()[1].max_tokens,
        16,
        "the API's default"
    );
    setup
        .client()
        .post("/v1/chat/completions", &chat(json!({})))
        .await;
    let request = &setup.targets[0].requests()[2];
    assert_eq!(
        request.max_tokens as usize,
        1024 - request.prompt_len,
        "a chat's default"
    );
    for (path, body) in [
        ("/v1/completions", json!({"prompt": [5], "max_tokens": -1})),
        ("/v1/chat/completions", chat(json!({"max_tokens": -1}))),
        (
            "/v1/chat/completions",
            chat(json!({"max_completion_tokens": -1})),
        ),
    ] {
        setup.client().post(path, &body).await;
        let requests = setup.targets[0].requests();
        let request = requests.last().unwrap();
        let room = 1024 - request.prompt_len;
        assert_eq!(
            request.max_tokens as usize, room,
            "{path}: llama.cpp's word for all"
        );
    }
}
