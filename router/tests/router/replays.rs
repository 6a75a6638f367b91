//! Who may go on with an output whose target is lost, and when nobody has to.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};

use crate::{
    Script, Setup,
    client::Answer,
    config,
    faults::soon,
    start, start_with,
    target::{DRAFTED, EOS, Target},
};

const TEXT: &str = " one two three four five six seven eight nine ten";
const OTHER: &str = " something else";

/// A router with a target that `first` makes of one that says [`TEXT`] slowly, and with one of other
/// weights that is there and full.
async fn with_another(first: impl FnOnce(&mut Script)) -> Setup {
    let mut dying = Script::says(TEXT);
    dying.pause = Duration::from_millis(200);
    first(&mut dying);
    let mut other = Script::says(OTHER);
    (other.digest, other.busy) = ("other".into(), true);
    let mut config = config();
    config.replay = Duration::from_secs(5);
    start_with(config, vec![dying, other]).await
}

/// Asks; the other target has room as soon as the first one is at it.
async fn ask(setup: &Setup, body: &Value) -> Answer {
    let (client, body) = (setup.client(), body.clone());
    let asking = tokio::spawn(async move { client.post("/v1/completions", &body).await });
    soon("it is at it", || setup.targets[0].running() == 1).await;
    setup.targets[1].change(|script| script.busy = false);
    asking.await.unwrap()
}

#[tokio::test]
async fn a_replay_goes_only_to_a_target_with_the_same_weights() {
    let setup = with_another(|script| script.dies_after = Some(2)).await;
    let body = json!({"prompt": "x", "max_tokens": 100});
    let json = ask(&setup, &body).await.json();
    assert_eq!(json["choices"][0]["text"], TEXT, "the first one came back");
    assert_eq!(setup.targets[0].requests().len(), 2);
    let asked = setup.targets[1].requests();
    let replayed = asked
        .iter()
        .filter(|asked| asked.tokens.len() > asked.prompt_len);
    assert_eq!(replayed.count(), 0, "the other one is not asked to go on");
    setup.targets[0].change(|script| script.busy = true);
    let answer = setup.client().post("/v1/completions", &body).await;
    assert_eq!(answer.json()["choices"][0]["text"], OTHER, "it had room");
}

/// Whether a target that has room for 64 tokens is asked to go on with an output of up to `max_tokens`.
async fn a_smaller_one_goes_on(max_tokens: u32) -> bool {
    let mut slow = Script::says(TEXT);
    slow.pause = Duration::from_secs(1);
    let mut config = config();
    (config.replay, config.probe) = (Duration::from_secs(5), Duration::from_millis(10));
    let setup = start_with(config, vec![slow.clone(), slow]).await;
    let body = json!({"prompt": "x", "max_tokens": max_tokens});
    let asking = {
        let client = setup.client();
        tokio::spawn(async move { client.post("/v1/completions", &body).await })
    };
    let is_at_it = |target: &&Arc<Target>| target.running() == 1;
    soon("one is at it", || {
        setup.targets.iter().any(|t| is_at_it(&t))
    })
    .await;
    let (first, second): (Vec<_>, Vec<_>) = setup.targets.iter().partition(is_at_it);
    let (first, second) = (first[0], second[0]);
    second.change(|script| (script.max_positions, script.pause) = (64, Duration::ZERO));
    while setup.client().get("/v1/models").await.json()["data"][0]["max_model_len"] != 64 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    first.change(|script| (script.dies_after, script.pause) = (Some(0), Duration::ZERO));
    let json = asking.await.unwrap().json();
    assert_eq!(json["choices"][0]["text"], TEXT);
    assert_eq!(json["choices"][0]["finish_reason"], "stop");
    !second.requests().is_empty()
}

#[tokio::test]
async fn a_replay_goes_only_to_a_target_with_room_for_all_of_the_output() {
    assert!(a_smaller_one_goes_on(62).await);
    // The first one comes back.
    assert!(!a_smaller_one_goes_on(63).await);
}

#[tokio::test]
async fn before_its_first_token_a_request_goes_to_whoever_has_the_model() {
    for stream in [false, true] {
        let setup = with_another(|script| script.dies_reading = true).await;
        let body = json!({"prompt": "x", "max_tokens": 100, "stream": stream});
        let answer = ask(&setup, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let events = if stream {
            answer.events()
        } else {
            vec![answer.json()]
        };
        let texts = events
            .iter()
            .filter_map(|event| event["choices"][0]["text"].as_str());
        assert_eq!(texts.collect::<String>(), OTHER);
        for event in &events {
            let fingerprint = event["system_fingerprint"].as_str().unwrap();
            assert!(
                fingerprint.contains("other"),
                "whose tokens they are: {event}"
            );
        }
    }
}

#[tokio::test]
async fn a_target_lost_after_its_last_token_is_not_missed() {
    let whole = Script::says(TEXT).output.len();
    for (count, finish_reason) in [(whole - 1, "length"), (whole, "stop")] {
        let mut script = Script::says(TEXT);
        assert_eq!(script.output[whole - 1], EOS);
        script.dies_after = Some(count);
        let setup = start(script).await;
        let most = if finish_reason == "length" {
            count
        } else {
            100
        };
        let body = json!({"prompt": "x", "max_tokens": most});
        let json = setup.client().post("/v1/completions", &body).await.json();
        assert_eq!(json["choices"][0]["text"], TEXT);
        assert_eq!(json["choices"][0]["finish_reason"], finish_reason);
        assert_eq!(json["usage"]["completion_tokens"], count);
        assert_eq!(
            setup.metric("foretoken_replays_total").await,
            1.0,
            "it died"
        );
        setup.targets[0].request();
    }
}

#[tokio::test]
async fn rounds_in_which_nothing_is_verified_are_no_drafts() {
    let mut script = Script::says(TEXT);
    script.plain_rounds = 2;
    let setup = start(script).await;
    let body = json!({"prompt": "x", "max_tokens": 100});
    let json = setup.client().post("/v1/completions", &body).await.json();
    let rounds = json["usage"]["foretoken"]["rounds"].as_u64().unwrap() as f64;
    assert!(rounds > 2.0, "{rounds}");
    let counted = setup.metric("vllm:spec_decode_num_drafts_total").await;
    assert_eq!(counted, rounds - 2.0);
    let tokens = setup
        .metric("vllm:spec_decode_num_draft_tokens_total")
        .await;
    assert_eq!(tokens, counted * f64::from(DRAFTED));
}
