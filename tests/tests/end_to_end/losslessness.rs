//! Speculative output is autoregressive output, byte for byte.

use std::pin::pin;

use foretoken_tests::eventually;
use futures::future::{Either, join, join_all, select};
use serde_json::{Value, json};

use crate::{
    faults::shown,
    fixture::{SLOW, Up, manifest, run},
    options::{PROMPTS, requests, under},
};

/// Answers to the same request for all prompts at once: they share steps.
async fn ask(up: &Up, row: &[Value], policy: &str, lookahead: u32) -> Vec<Value> {
    let row = row.iter().map(|request| async move {
        let request = under(request, policy, lookahead);
        up.complete(&request).await
    });
    join_all(row).await
}

#[test]
fn speculation_changes_no_byte_under_any_sampling_options() {
    let up = Up::start(1);
    run(async {
        let mut accepted = 0;
        for (index, row) in requests(3).iter().enumerate() {
            let plain = ask(&up, row, "Autoregressive", 0).await;
            let drafted = ask(&up, row, "Speculative", 5).await;
            for ((plain, drafted), request) in plain.iter().zip(&drafted).zip(row) {
                assert_eq!(drafted["choices"], plain["choices"], "{request}");
                assert_eq!(plain["usage"]["foretoken"]["accepted"], 0, "{plain}");
                accepted += drafted["usage"]["foretoken"]["accepted"].as_u64().unwrap();
            }
            let prompt = index % PROMPTS.len();
            let request = &row[prompt];
            if request.get("n").is_none() {
                let streamed = up.stream(&under(request, "Speculative", 5)).await;
                let text = &plain[prompt]["choices"][0]["text"];
                assert_eq!(*text, streamed.finish().await, "{request}");
            }
        }
        assert!(
            accepted > 500,
            "only {accepted} tokens were accepted: nothing was tested"
        );
    });
}

/// How many verdicts had been drafted for, of how many.
fn hits(answers: &[Value]) -> (u64, u64) {
    let sum = |field: &str| -> u64 {
        let of = |answer: &Value| answer["usage"]["foretoken"][field].as_u64().unwrap();
        answers.iter().map(of).sum()
    };
    (sum("hits"), sum("hits") + sum("misses"))
}

/// What an answer tells of drafting ahead fits together.
fn check_counts(told: &Value) {
    assert_eq!(told["policy"], "SSD");
    let count = |field: &str| told[field].as_f64().unwrap();
    let hits =
        told["ahead"]["hit_rate"].as_f64().unwrap_or(0.0) * (count("hits") + count("misses"));
    assert!((hits - count("hits")).abs() < 1e-9, "{told}");
    // An output may end with its first verdict, for which nothing was drafted.
    let could_hit = count("hits") + count("misses") > 0.0;
    assert!(!could_hit || count("bytes") > 0.0, "{told}");
    assert!(
        !could_hit || told["ahead"]["tokens_received"].is_u64(),
        "{told}"
    );
    let number = |field: &str| told["ahead"][field].as_f64();
    if let Some(judged) = number("verdicts_judged") {
        assert!(number("draft_ahead_ms") > Some(0.0), "{told}");
        assert!(number("verdicts_ranked") <= Some(judged), "{told}");
        assert!(
            number("verdict_rank").is_none_or(|rank| rank >= 1.0),
            "{told}"
        );
        assert!(judged <= count("rounds") + 1.0, "{told}");
    }
}

#[test]
fn drafting_ahead_changes_no_byte_under_any_sampling_options() {
    let manifest = manifest(1).replace(
        "{type: Speculative, speculative: {lookahead: 5, adaptive: false}}",
        "{type: SSD, ssd: {lookahead: 4, budget: 16}}",
    );
    let up = Up::serving(&manifest, SLOW);
    run(async {
        let mut answers = Vec::new();
        // One seed for each length of windows.
        for (index, row) in requests(2).iter().enumerate() {
            let ahead = async {
                // As long as pays, as the deployment has it; or this long, whether it pays or not.
                match index % 2 {
                    0 => join_all(row.iter().map(|request| up.complete(request))).await,
                    _ => ask(&up, row, "SSD", 4).await,
                }
            };
            // All at once: branches share steps with plain decoding.
            let plain = ask(&up, row, "Autoregressive", 0);
            let (plain, ahead) = join(plain, ahead).await;
            for ((plain, ahead), request) in plain.into_iter().zip(ahead).zip(row) {
                assert_eq!(ahead["choices"], plain["choices"], "{request}");
                assert!(plain["usage"]["foretoken"]["ahead"].is_null());
                assert_eq!(plain["usage"]["foretoken"]["hits"], 0);
                check_counts(&ahead["usage"]["foretoken"]);
                answers.push(ahead);
            }
        }
        let (hits, verdicts) = hits(&answers);
        assert!(hits > 20, "{hits} hits of {verdicts} verdicts");
        let judged =
            |answer: &Value| answer["usage"]["foretoken"]["ahead"]["verdicts_judged"].as_u64();
        let judged: u64 = answers.iter().filter_map(judged).sum();
        assert!(judged > 20, "{judged} of {verdicts} verdicts were judged");
    });
}

#[test]
fn a_draft_killed_while_it_drafts_ahead_changes_no_byte() {
    let up = Up::slow(1);
    run(async {
        for (restarts, temperature) in [(1, 0), (2, 1)] {
            let mut request = json!({
                "model": "story", "prompt": PROMPTS[1], "max_tokens": 200,
                "temperature": temperature, "seed": 12, "ignore_eos": true,
                "foretoken": {"policy": "Autoregressive"},
            });
            let plain = up.complete(&request).await;
            request["foretoken"] = json!({"policy": "SSD", "lookahead": 4});
            let hits = || shown(&up, "target-0", "foretoken_hits_total");
            let killed_amid = async |_| {
                let before = hits().await;
                let hit = async |_| (hits().await > before).then_some(());
                let hit = eventually("a hit", hit);
                let ended = match select(pin!(up.complete(&request)), pin!(hit)).await {
                    Either::Left((ahead, _)) => (ahead, false),
                    Either::Right(((), rest)) => {
                        up.kill("draft-tiny-0");
                        (rest.await, true)
                    }
                };
                let (ahead, is_killed) = ended;
                assert_eq!(ahead["choices"], plain["choices"]);
                is_killed.then_some(())
            };
            eventually("killed amid an output", killed_amid).await;
            up.wait_for_restart("draft-tiny-0", restarts);
        }
    });
}
