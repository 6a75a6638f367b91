//! What targets count of speculation is in `usage.foretoken`, by the names that are documented.

use std::time::Duration;

use foretoken_protocol::generate::{AheadStats, EndpointStats, GenerationStats, RoundStats};
use foretoken_speculation::{
    bounds::{Bound, BoundCounts},
    control, fanout,
};
use serde_json::{Value, json};

use crate::{Script, completions::completion, start};

/// Nine hits and three misses, of which the first verdict was one.
fn counted() -> GenerationStats {
    GenerationStats {
        hits: 9,
        misses: 3,
        late: 2,
        bytes: 9000,
        ahead: AheadStats {
            first_hits: 0,
            first_misses: 1,
            alone: 1,
            local: 3,
            remote: 2,
            received: 700,
            used: 45,
            late: 50,
            placed: 8,
            places: 20,
        },
        saguaro_c: Some(0.812_34),
        measured: RoundStats {
            bytes: 6600,
            weighed: 12,
            hit: Duration::from_millis(84),
            hit_verification: Duration::from_millis(80),
            awaited: Duration::from_micros(7500),
            limits: bound(&[(control::Limit::Maximum, 10), (control::Limit::Margin, 2)]),
        },
        endpoint: EndpointStats {
            judged: 12,
            ranked: 10,
            ranks: 25,
            ahead: Duration::from_millis(57),
            awaited: Duration::from_millis(3),
            limits: bound(&[(fanout::Limit::Time, 9), (fanout::Limit::Budget, 2)]),
        },
        ..GenerationStats::default()
    }
}

fn bound<B: Bound>(times: &[(B, usize)]) -> BoundCounts<B> {
    let mut counts = BoundCounts::default();
    let each = times.iter().flat_map(|&(bound, times)| vec![bound; times]);
    each.for_each(|bound| counts.add(bound));
    counts
}

fn says(counted: GenerationStats) -> Script {
    Script {
        counted,
        ..Script::says(" The answer is 42.")
    }
}

async fn own_usage(counted: GenerationStats, extra: Value) -> Value {
    let setup = start(says(counted)).await;
    let body = completion(extra);
    let answer = setup.client().post("/v1/completions", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["usage"]["foretoken"].take()
}

fn near(found: &Value, expected: f64) {
    let number = found.as_f64().unwrap_or(f64::NAN);
    assert!((number - expected).abs() < 1e-9, "{found} {expected}");
}

#[tokio::test]
async fn all_that_a_target_counts_of_drafting_ahead_is_told() {
    let own = own_usage(counted(), json!({})).await;
    for (field, count) in [("hits", 9), ("misses", 3), ("late", 2), ("bytes", 9000)] {
        assert_eq!(own[field], count, "{field}");
    }
    near(&own["bytes_per_round"], 550.0);
    near(&own["awaited_ms"], 7.5);
    assert_eq!(own["lookahead_limits"], json!({"maximum": 10, "margin": 2}));
    let ahead = &own["ahead"];
    near(&ahead["hit_rate"], 0.75);
    near(&ahead["later_hit_rate"], 9.0 / 11.0);
    near(&ahead["hit_place"], 2.5);
    near(&ahead["hit_round_extra"], 0.05);
    let fallbacks = json!({"none": 1, "local": 3, "remote": 2});
    assert_eq!(ahead["fallbacks"], fallbacks);
    for (field, tokens) in [
        ("tokens_pushed", 750),
        ("tokens_received", 700),
        ("tokens_used", 45),
        ("tokens_late", 50),
    ] {
        assert_eq!(ahead[field], tokens, "{field}");
    }
    assert_eq!(ahead["saguaro_c"], 0.812);
    near(&ahead["verdict_rank"], 2.5);
    assert_eq!(
        (&ahead["verdicts_judged"], &ahead["verdicts_ranked"]),
        (&json!(12), &json!(10))
    );
    near(&ahead["draft_ahead_ms"], 57.0);
    near(&ahead["draft_awaited_ms"], 3.0);
    near(&ahead["draft_hidden"], 0.95);
    assert_eq!(ahead["build_limits"], json!({"time": 9, "budget": 2}));
}

#[tokio::test]
async fn choices_add_up_and_rates_are_those_of_the_sums() {
    let own = own_usage(counted(), json!({"n": 2, "temperature": 1.0})).await;
    assert_eq!((&own["hits"], &own["bytes"]), (&json!(18), &json!(18_000)));
    near(&own["bytes_per_round"], 550.0);
    near(&own["awaited_ms"], 15.0);
    assert_eq!(own["lookahead_limits"], json!({"maximum": 20, "margin": 4}));
    let ahead = &own["ahead"];
    near(&ahead["later_hit_rate"], 9.0 / 11.0);
    near(&ahead["hit_place"], 2.5);
    near(&ahead["hit_round_extra"], 0.05);
    assert_eq!(ahead["fallbacks"]["local"], 6);
    assert_eq!(ahead["tokens_late"], 100);
    near(&ahead["verdict_rank"], 2.5);
    near(&ahead["draft_ahead_ms"], 114.0);
    near(&ahead["draft_hidden"], 0.95);
    assert_eq!(ahead["build_limits"]["time"], 18);
}

#[tokio::test]
async fn what_did_not_happen_is_null_or_not_there() {
    let own = own_usage(GenerationStats::default(), json!({})).await;
    for field in ["ahead", "bytes_per_round", "awaited_ms", "lookahead_limits"] {
        assert!(own.get(field).is_none(), "{field}: {own}");
    }
    // All that was drafted came too late.
    let late = GenerationStats {
        ahead: AheadStats {
            late: 7,
            ..AheadStats::default()
        },
        ..GenerationStats::default()
    };
    let own = own_usage(late, json!({})).await;
    let ahead = &own["ahead"];
    for field in ["hit_rate", "later_hit_rate", "hit_place", "hit_round_extra"] {
        assert_eq!(ahead.get(field), Some(&Value::Null), "{field}");
    }
    // No endpoint said anything.
    for field in [
        "verdict_rank",
        "verdicts_judged",
        "draft_hidden",
        "build_limits",
    ] {
        assert!(ahead.get(field).is_none(), "{field}: {ahead}");
    }
    assert!(ahead.get("saguaro_c").is_none());
    assert_eq!(ahead["tokens_late"], 7);
}

#[tokio::test]
async fn an_output_that_a_stop_string_ends_tells_what_it_took_until_then() {
    let own = own_usage(counted(), json!({"stop": "is"})).await;
    assert_eq!((&own["hits"], &own["bytes"]), (&json!(9), &json!(9000)));
    near(&own["ahead"]["hit_rate"], 0.75);
    near(&own["bytes_per_round"], 550.0);
}

#[tokio::test]
async fn a_stream_tells_the_same_at_its_end() {
    let setup = start(says(counted())).await;
    let body = completion(json!({"stream": true, "stream_options": {"include_usage": true}}));
    let answer = setup.client().post("/v1/completions", &body).await;
    let events = answer.events();
    let last = events.last().expect("it has events");
    let streamed = &last["usage"]["foretoken"];
    let whole = own_usage(counted(), json!({})).await;
    for field in ["ahead", "bytes_per_round", "awaited_ms", "lookahead_limits"] {
        assert_eq!(streamed[field], whole[field], "{field}");
    }
}
