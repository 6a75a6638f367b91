//! Where outputs end: stop strings and stop tokens.

use serde_json::{Value, json};

use crate::{
    Script,
    completions::{TEXT, completion},
    start,
    target::{DRAFTED, tokenizer},
};

#[tokio::test]
async fn a_stop_string_cuts_the_text_and_cancels_the_target() {
    let mut script = Script::says(TEXT);
    script.pause = std::time::Duration::from_millis(20);
    let setup = start(script).await;
    for (include, want) in [
        (false, " The answer is 42."),
        (true, " The answer is 42.\n\n"),
    ] {
        let body =
            completion(json!({"stop": ["never", "\n\n"], "include_stop_str_in_output": include}));
        let json = setup.client().post("/v1/completions", &body).await.json();
        let choice = &json["choices"][0];
        assert_eq!(choice["text"], want);
        assert_eq!(choice["finish_reason"], "stop");
        assert_eq!(choice["stop_reason"], "\n\n");
        let all = tokenizer().encode(TEXT, false).unwrap().len() as u64;
        assert!(json["usage"]["completion_tokens"].as_u64().unwrap() < all);
        let own = &json["usage"]["foretoken"];
        let rounds = own["rounds"].as_u64().unwrap();
        assert!(rounds > 0);
        assert_eq!(own["drafted"], rounds * u64::from(DRAFTED));
        assert_eq!(own["policy"], "Speculative");
        let timings = &json["timings"];
        assert_eq!(timings["draft_n"], own["drafted"]);
        // By the router's clock: the target cannot say any more.
        assert!(timings["prompt_ms"].as_f64().unwrap() > 0.0);
        assert_ne!(timings["prompt_ms"], 7.0);
        assert!(timings["predicted_ms"].as_f64().unwrap() > 0.0);
    }
}

#[tokio::test]
async fn where_the_text_ends_does_not_depend_on_how_many_tokens_a_round_had() {
    let setup = start(Script::says(TEXT)).await;
    let mut seen = Vec::new();
    for round in [1, 2, 3, 5, 40] {
        setup.targets[0].change(|script| script.round = round);
        let body = completion(json!({"stop": "42", "return_token_ids": true, "logprobs": 1}));
        let json = setup.client().post("/v1/completions", &body).await.json();
        let choice = &json["choices"][0];
        let ids = choice["token_ids"].clone();
        assert_eq!(
            choice["logprobs"]["tokens"].as_array().unwrap().len(),
            ids.as_array().unwrap().len()
        );
        seen.push((
            choice["text"].clone(),
            ids,
            json["usage"]["completion_tokens"].clone(),
        ));
    }
    assert!(seen.iter().all(|one| *one == seen[0]), "{seen:?}");
    assert_eq!(seen[0].0, " The answer is ");
}

#[tokio::test]
async fn a_thousand_stop_strings_are_fine() {
    let setup = start(Script::says(TEXT)).await;
    let mut stop: Vec<String> = (0..999).map(|i| format!("<<stop {i}>>")).collect();
    stop.push("Question".into());
    let body = completion(json!({"stop": stop}));
    let json = setup.client().post("/v1/completions", &body).await.json();
    assert_eq!(json["choices"][0]["text"], " The answer is 42.\n\n");
    assert_eq!(json["choices"][0]["stop_reason"], "Question");
}

#[tokio::test]
async fn stop_strings_are_not_looked_for_before_min_tokens() {
    let setup = start(Script::says(TEXT)).await;
    let count = tokenizer()
        .encode(" The answer is 42.", false)
        .unwrap()
        .len();
    let body = completion(json!({"stop": ["answer", "why"], "min_tokens": count}));
    let json = setup.client().post("/v1/completions", &body).await.json();
    assert_eq!(
        json["choices"][0]["text"],
        " The answer is 42.\n\nQuestion: "
    );
}

#[tokio::test]
async fn a_stop_string_that_ends_after_min_tokens_counts_wherever_it_begins() {
    let setup = start(Script::says(TEXT)).await;
    let count = |text| tokenizer().encode(text, false).unwrap().len();
    for (stop, passed, include, want) in [
        ("is 42", " The answer is", false, " The answer "),
        ("is 42", " The answer is", true, " The answer is 42"),
        // It is complete with the last token that is passed.
        ("answer is", " The answer is", false, TEXT),
        // One that does not count does not hide another that begins in it.
        ("answer", " The answer", false, TEXT),
        ("answer is", " The answer", false, " The "),
    ] {
        let body = json!({
            "stop": [stop, "answer"], "min_tokens": count(passed), "include_stop_str_in_output": include,
        });
        let mut body = completion(body);
        let json = setup.client().post("/v1/completions", &body).await.json();
        assert_eq!(json["choices"][0]["text"], want, "{stop}");
        body["stream"] = json!(true);
        let chunks = setup.client().post("/v1/completions", &body).await.events();
        let texts = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["text"].as_str());
        assert_eq!(texts.collect::<String>(), want, "{stop}");
    }
}

#[tokio::test]
async fn an_end_that_is_ignored_is_a_stop_token_like_others() {
    let setup = start(Script::says(TEXT)).await;
    // The model's own end, which comes last.
    for (ignore_eos, reason) in [(true, json!(1)), (false, Value::Null)] {
        let body = completion(json!({"stop_token_ids": [1], "ignore_eos": ignore_eos}));
        let json = setup.client().post("/v1/completions", &body).await.json();
        let choice = &json["choices"][0];
        let found = (&choice["finish_reason"], &choice["stop_reason"]);
        assert_eq!(found, (&json!("stop"), &reason));
    }
}

#[tokio::test]
async fn a_stop_token_ends_the_output_and_is_not_shown() {
    let setup = start(Script::says(TEXT)).await;
    let stop = tokenizer()
        .encode(" The answer", false)
        .unwrap()
        .pop()
        .unwrap();
    for (include, want) in [(false, " The"), (true, " The answer")] {
        let body = completion(json!({
            "stop_token_ids": [stop.0], "include_stop_str_in_output": include,
            "return_token_ids": true,
        }));
        let json = setup.client().post("/v1/completions", &body).await.json();
        let choice = &json["choices"][0];
        assert_eq!(
            (&choice["text"], &choice["stop_reason"]),
            (&json!(want), &json!(stop.0))
        );
        assert_eq!(
            choice["token_ids"].as_array().unwrap().last(),
            Some(&json!(stop.0))
        );
        assert!(
            json["usage"]["foretoken"]["drafted"].is_u64(),
            "the target's account is whole"
        );
    }
}
