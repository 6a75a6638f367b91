//! Services die while tokens stream.

use std::path::Path;

use serde_json::{Value, json};

use crate::fixture::{Stream, Up, run, signal, wait};

/// Long enough to be killed in the middle.
fn request(seed: u64) -> Value {
    json!({
        "model": "story",
        "prompt": "Question: Tom has 3 apples and buys 5 more.",
        "max_tokens": 120,
        "ignore_eos": true,
        "temperature": 1,
        "seed": seed,
    })
}

/// What `up` says of a service that was killed for the first time.
fn restarting(name: &str) -> String {
    // The names of all processes take as many columns as the longest.
    let width = "draft-tiny-0".len();
    format!("{name:width$} | ended (signal: 9 (SIGKILL)); starting again in 100ms")
}

async fn undisturbed(up: &Up, seed: u64) -> String {
    let mut request = request(seed);
    request["foretoken"] = json!({"policy": "Autoregressive"});
    up.complete(&request).await["choices"][0]["text"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// A stream that has begun.
async fn begun(up: &Up, seed: u64) -> Stream {
    let mut stream = up.stream(&request(seed)).await;
    stream.read_to(40).await;
    stream
}

#[test]
fn a_killed_draft_or_target_changes_no_byte_of_a_stream() {
    let up = Up::slow(2);
    run(async {
        let expected = undisturbed(&up, 1).await;
        for name in ["draft-tiny-0", "target-0", "target-1"] {
            // Streams on both targets, so that the victim serves one of them.
            let (first, second) = (begun(&up, 1).await, begun(&up, 1).await);
            up.kill(name);
            assert_eq!(first.finish().await, expected, "{name} was killed");
            assert_eq!(second.finish().await, expected, "{name} was killed");
            up.wait_for_restart(name, 1);
            assert!(up.log().contains(&restarting(name)), "{}", up.log());
        }
    });
}

#[test]
fn a_killed_router_comes_back_and_answers_the_same() {
    let up = Up::slow(1);
    run(async {
        let expected = undisturbed(&up, 2).await;
        let _broken = begun(&up, 2).await;
        up.kill("router");
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
        let expected = undisturbed(&up, 3).await;
        let stream = begun(&up, 3).await;
        signal(up.pid(), "INT");
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
        let _unfinished = begun(&up, 4).await;
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

/// Whether a process exists and is no zombie that nobody has buried yet.
fn is_running(pid: u64) -> bool {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}
