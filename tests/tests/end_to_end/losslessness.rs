//! Speculative output is autoregressive output, byte for byte.

use std::pin::pin;

use foretoken_tests::eventually;
use futures::future::{Either, join, join_all, select};
use serde_json::{Value, json};

use crate::{
    faults::shown,
    fixture::{SLOW, Up, manifest, run},
    options::{PROMPTS, requests, rounds_of, under},
};

/// Answers to the same request for all prompts at once: they share steps.
async fn ask(up: &Up, row: &[Value], policy: &str, lookahead: u32) -> Vec<Value> {
    let row = row.iter().map(|request| async move {
        let request = under(request, policy, lookahead);
        up.complete(&request).await
    });
    join_all(row).await
}

/// Asks for a row plainly and drafted for; how many tokens of it were accepted.
async fn accepted(up: &Up, row: &[Value], prompt: usize) -> u64 {
    let mut accepted = 0;
    let plain = ask(up, row, "Autoregressive", 0).await;
    let drafted = ask(up, row, "Speculative", 5).await;
    for ((plain, drafted), request) in plain.iter().zip(&drafted).zip(row) {
        assert_eq!(drafted["choices"], plain["choices"], "{request}");
        assert_eq!(plain["usage"]["foretoken"]["accepted"], 0, "{plain}");
        accepted += drafted["usage"]["foretoken"]["accepted"].as_u64().unwrap();
    }
    let request = &row[prompt];
    if request.get("n").is_none() {
        let streamed = up.stream(&under(request, "Speculative", 5)).await;
        let text = &plain[prompt]["choices"][0]["text"];
        assert_eq!(*text, streamed.finish().await, "{request}");
    }
    accepted
}

#[test]
fn speculation_changes_no_byte_under_any_sampling_options() {
    let up = Up::start(1);
    run(async {
        let mut all = 0;
        for draws in rounds_of(3) {
            for (index, row) in requests(draws).iter().enumerate() {
                all += accepted(&up, row, index % PROMPTS.len()).await;
            }
            if all > 500 {
                break;
            }
        }
        assert!(
            all > 500,
            "only {all} tokens were accepted: nothing was tested"
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
        // Where it may not pay endpoints are asked not to draft ahead, and tell of windows alone.
        let is_ahead = number("draft_ahead_ms") > Some(0.0);
        assert!(is_ahead || judged == 0.0, "{told}");
        assert!(number("verdicts_ranked") <= Some(judged), "{told}");
        assert!(
            number("verdict_rank").is_none_or(|rank| rank >= 1.0),
            "{told}"
        );
        assert!(judged <= count("rounds") + 1.0, "{told}");
    }
}

/// Asks for a row plainly and drafted ahead: as long as pays, as the deployment has it, or this long, whether
/// it pays or not. Answers to the latter.
async fn drafted_ahead(up: &Up, row: &[Value], as_long_as_pays: bool) -> Vec<Value> {
    let ahead = async {
        if as_long_as_pays {
            join_all(row.iter().map(|request| up.complete(request))).await
        } else {
            ask(up, row, "SSD", 4).await
        }
    };
    // All at once: branches share steps with plain decoding.
    let (plain, ahead) = join(ask(up, row, "Autoregressive", 0), ahead).await;
    for ((plain, ahead), request) in plain.iter().zip(&ahead).zip(row) {
        assert_eq!(ahead["choices"], plain["choices"], "{request}");
        assert!(plain["usage"]["foretoken"]["ahead"].is_null());
        assert_eq!(plain["usage"]["foretoken"]["hits"], 0);
        check_counts(&ahead["usage"]["foretoken"]);
    }
    ahead
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
        let mut judged = 0;
        // At first one seed for each length of windows.
        for draws in rounds_of(2) {
            for (index, row) in requests(draws).iter().enumerate() {
                answers.extend(drafted_ahead(&up, row, index % 2 == 0).await);
            }
            let told =
                |answer: &Value| answer["usage"]["foretoken"]["ahead"]["verdicts_judged"].as_u64();
            judged = answers.iter().filter_map(told).sum();
            if hits(&answers).0 > 20 && judged > 20 {
                break;
            }
        }
        let (hits, verdicts) = hits(&answers);
        assert!(hits > 20, "{hits} hits of {verdicts} verdicts");
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
