//! Services die while tokens stream.

use foretoken_tests::eventually;
use serde_json::{Value, json};

use crate::fixture::{Frozen, Stream, Up, is_running, run, signal, wait};

/// Long enough to be killed in the middle.
fn request(seed: u64) -> Value {
    json!({
        "model": "story",
        "prompt": "Question: Tom has 3 apples and buys 5 more.",
        "max_tokens": 200,
        "ignore_eos": true,
        "temperature": 1,
        "seed": seed,
    })
}

/// Requests of every kind of sampling, long enough to be killed in the middle.
fn requests() -> [Value; 3] {
    let mut greedy = request(1);
    greedy["temperature"] = json!(0);
    let mut penalised = request(1);
    for (option, value) in [
        ("temperature", json!(0.8)),
        ("top_k", json!(50)),
        ("top_p", json!(0.95)),
        ("min_p", json!(0.02)),
        ("repetition_penalty", json!(1.1)),
        ("presence_penalty", json!(0.3)),
        ("frequency_penalty", json!(0.2)),
        ("logit_bias", json!({"100": 2})),
    ] {
        penalised[option] = value;
    }
    [request(1), greedy, penalised]
}

/// What `up` says of a service that was killed for the first time.
fn restarting(name: &str) -> String {
    // The names of all processes take as many columns as the longest.
    let width = "draft-tiny-0".len();
    format!("{name:width$} | ended (signal: 9 (SIGKILL)); starting again in 100ms")
}

async fn undisturbed(up: &Up, request: &Value) -> String {
    let mut request = request.clone();
    request["foretoken"] = json!({"policy": "Autoregressive"});
    up.complete(&request).await["choices"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// A stream that has begun.
async fn begun(up: &Up, request: &Value) -> Stream {
    let mut stream = up.stream(request).await;
    stream.read_to(40).await;
    stream
}

/// What a metric of a service is, all labels together.
pub(crate) async fn shown(up: &Up, service: &str, metric: &str) -> u64 {
    let service = up.service(service).unwrap();
    let url = format!("{}/metrics", service["metrics"].as_str().unwrap());
    let text = reqwest::get(url).await.unwrap().text().await.unwrap();
    let values = text.lines().filter_map(|line| {
        let (_, value) = line
            .strip_prefix(metric)?
            .strip_prefix('{')?
            .rsplit_once("} ")?;
        value.parse::<u64>().ok()
    });
    values.sum()
}

/// Asks until the draft is of use.
async fn drafted_for(up: &Up, expected: &str) {
    let is_expected = |answer: &Value| assert_eq!(answer["choices"][0]["text"], expected);
    up.complete_with_draft(&request(1), is_expected).await;
}

/// Streams that have begun, and what each will have said.
async fn all_begun<'a>(up: &Up, asked: &'a [(Value, String)]) -> Vec<(Stream, &'a str)> {
    let mut streams = Vec::new();
    for (request, expected) in asked {
        streams.push((begun(up, request).await, expected.as_str()));
    }
    streams
}

/// The same, not all of which have come to their end: all `targets` stand still.
async fn held<'a>(
    up: &Up,
    targets: &[&str],
    asked: &'a [(Value, String)],
) -> (Vec<(Stream, &'a str)>, Vec<Frozen>) {
    let begun_in_time = async |_| {
        let streams = all_begun(up, asked).await;
        let frozen = targets.iter().map(|target| up.freeze(target)).collect();
        let running = shown(up, "router", "vllm:num_requests_running").await;
        (running > 0).then_some((streams, frozen))
    };
    eventually("begun in time", begun_in_time).await
}

/// The same, of which the target `victim` serves some. It stands still, so that it has not come to their
/// end when it is killed.
async fn begun_at<'a>(
    up: &Up,
    (victim, heir): (&str, &str),
    asked: &'a [(Value, String)],
) -> (Vec<(Stream, &'a str)>, Frozen) {
    let mut streams = all_begun(up, asked).await;
    // Where a stream goes is the router's choice, and targets take turns.
    for (request, expected) in asked.iter().cycle() {
        let frozen = up.freeze(victim);
        let kinds = ["vllm:num_requests_running", "vllm:num_requests_waiting"];
        let of_heir = shown(up, heir, kinds[0]).await + shown(up, heir, kinds[1]).await;
        if shown(up, "router", kinds[0]).await > of_heir {
            return (streams, frozen);
        }
        drop(frozen);
        assert!(streams.len() < 20, "nothing goes to {victim}");
        streams.push((begun(up, request).await, expected.as_str()));
    }
    unreachable!("it goes round and round")
}

#[test]
fn a_killed_draft_or_target_changes_no_byte_of_a_stream() {
    let up = Up::slow(2);
    run(async {
        let mut asked = Vec::new();
        for request in requests() {
            let expected = undisturbed(&up, &request).await;
            asked.push((request, expected));
        }
        for (name, heir) in [
            ("draft-tiny-0", None),
            ("target-0", Some("target-1")),
            ("target-1", Some("target-0")),
        ] {
            drafted_for(&up, &asked[0].1).await;
            let replays = shown(&up, "router", "foretoken_replays_total").await;
            let (streams, frozen) = match heir {
                Some(heir) => {
                    let (streams, frozen) = begun_at(&up, (name, heir), &asked).await;
                    (streams, vec![frozen])
                }
                None => held(&up, &["target-0", "target-1"], &asked).await,
            };
            let finished = match heir {
                Some(heir) => shown(&up, heir, "vllm:request_success_total").await,
                None => 0,
            };
            up.kill(name);
            drop(frozen);
            for (stream, expected) in streams {
                assert_eq!(stream.finish().await, expected, "{name} was killed");
            }
            let replayed = shown(&up, "router", "foretoken_replays_total").await - replays;
            assert_eq!(replayed > 0, heir.is_some(), "{replayed} after {name}");
            if let Some(heir) = heir {
                let finished = shown(&up, heir, "vllm:request_success_total").await - finished;
                assert!(finished >= replayed, "{heir} went on with what {name} left");
            }
            up.wait_for_restart(name, 1);
            assert!(up.log().contains(&restarting(name)), "{}", up.log());
        }
    });
}

#[test]
fn a_killed_router_comes_back_and_answers_the_same() {
    let up = Up::slow(1);
    run(async {
        let expected = undisturbed(&up, &request(2)).await;
        let asked = [(request(2), expected.clone())];
        let (mut streams, frozen) = held(&up, &["target-0"], &asked).await;
        up.kill("router");
        drop(frozen);
        let (broken, _) = streams.remove(0);
        let had = broken.broken_off().await;
        assert!(
            expected.starts_with(&had),
            "{had:?} is no part of {expected:?}"
        );
        up.wait_for_restart("router", 1);
        assert!(up.log().contains(&restarting("router")), "{}", up.log());
        let url = format!("{}/ready", up.url);
        loop {
            let answer = reqwest::get(&url).await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert_eq!(up.stream(&request(2)).await.finish().await, expected);
    });
}

#[test]
fn an_interrupt_lets_streams_finish_and_ends_well() {
    let mut up = Up::slow(1);
    let text = run(async {
        let expected = undisturbed(&up, &request(3)).await;
        let asked = [(request(3), expected.clone())];
        let (mut streams, frozen) = held(&up, &["target-0"], &asked).await;
        signal(up.pid(), "INT");
        drop(frozen);
        let (stream, _) = streams.remove(0);
        (stream.finish().await, expected)
    });
    assert_eq!(text.0, text.1);
    assert!(up.end().success(), "{}", up.log());
    assert!(!up.log().contains("panicked"), "{}", up.log());
    assert!(
        up.state().is_none(),
        "nothing runs, yet state.json is there"
    );
}

#[test]
fn a_second_interrupt_stops_at_once_even_what_hangs() {
    let mut up = Up::slow(1);
    let pids = up.pids();
    run(async {
        let _unfinished = begun(&up, &request(4)).await;
        let _hangs = up.freeze("target-0");
        signal(up.pid(), "INT");
        wait("the drain", || {
            up.log().contains("press Ctrl-C again").then_some(())
        });
        assert!(up.is_running(), "a stream was given up: {}", up.log());
        signal(up.pid(), "INT");
        assert_eq!(up.end().code(), Some(1), "{}", up.log());
    });
    assert!(up.log().contains("stopping at once"), "{}", up.log());
    assert!(!up.log().contains("some services hang"), "{}", up.log());
    assert!(pids.into_iter().all(|pid| !is_running(pid)));
}

#[test]
fn services_end_when_up_is_killed() {
    let mut up = Up::start(1);
    let pids = up.pids();
    assert_eq!(pids.len(), 3);
    signal(up.pid(), "KILL");
    up.end();
    for pid in pids {
        wait("a service to end", || (!is_running(pid)).then_some(()));
    }
}
