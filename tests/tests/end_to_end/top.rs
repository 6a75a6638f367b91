//! `foretoken top` beside a running `foretoken up`.

use std::{
    process::{Command, Output},
    time::Instant,
};

use foretoken_tests::{PATIENT, eventually};
use serde_json::{Value, json};

use crate::fixture::{Up, executable, play, run};

fn top(arguments: &[&str]) -> Output {
    let output = Command::new(executable())
        .arg("top")
        .args(arguments)
        .output();
    output.unwrap()
}

/// Keeps the services busy with drafting ahead until `done`.
async fn busy<T>(up: &Up, done: impl Future<Output = T>) -> T {
    let request = json!({
        "model": "story", "prompt": "Question: Tom has 3 apples.", "max_tokens": 400,
        "ignore_eos": true, "foretoken": {"policy": "SSD", "lookahead": 4},
    });
    let ask = async {
        loop {
            up.complete(&request).await;
        }
    };
    tokio::select! {
        () = ask => unreachable!("it asks for ever"),
        done = done => done,
    }
}

/// Figures of drafting ahead that are 1 or more.
const COUNTS: [&str; 3] = ["decided_rank", "bytes_per_round", "outcomes_per_build"];
/// Figures of drafting ahead that are parts of a whole.
const SHARES: [&str; 3] = ["hit_rate", "hidden_share", "used_share"];

/// Whether figures of drafting ahead are there.
fn are_there(figures: &Value) -> bool {
    let mut names = COUNTS.iter().chain(&SHARES);
    let limits = figures["build_limits"].as_object();
    names.all(|name| figures[name].is_number())
        && figures["entry_tokens"]["pushed"].as_f64() > Some(0.0)
        && limits.is_some_and(|limits| !limits.is_empty())
}

/// They are, and are what they can be.
fn check_figures(figures: &Value) {
    assert!(are_there(figures), "{figures}");
    for name in COUNTS {
        assert!(figures[name].as_f64() >= Some(1.0), "{name}: {figures}");
    }
    for name in SHARES {
        let share = figures[name].as_f64();
        assert!(
            share >= Some(0.0) && share <= Some(1.0),
            "{name}: {figures}"
        );
    }
}

#[test]
fn what_runs_is_told_once_in_json_and_in_words() {
    let up = Up::slow(1);
    let folder = up.state_folder().to_str().unwrap().to_owned();
    let watch = |json: bool| {
        let folder = folder.clone();
        tokio::task::spawn_blocking(move || {
            let mut arguments = vec!["--once", "--interval", "0.5", "--state-dir", &folder];
            if json {
                arguments.push("--json");
            }
            top(&arguments)
        })
    };
    run(async {
        // Until a verdict has found its window, and others follow.
        let look = async {
            let mut told = Value::Null;
            let begun = Instant::now();
            while begun.elapsed() < 2 * PATIENT {
                let output = watch(true).await.unwrap();
                let log = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{log}");
                told = serde_json::from_slice(&output.stdout).unwrap();
                let goes_on = told["now"]["tokens_per_second"].as_f64() > Some(0.0)
                    && told["now"]["acceptance_length"].is_number();
                let is_hit = told["all"]["hit_rate"].as_f64() > Some(0.0);
                let of_session = &told["sessions"][0]["figures"];
                let is_told = are_there(of_session) && are_there(&told["all"]);
                let is_weighed = told["now"]["bytes_per_round"].as_f64() > Some(0.0);
                let mut services = told["services"].as_array().unwrap().iter();
                let all_answer = services
                    .all(|service| service["trouble"].is_null() && service["kind"].is_string());
                if goes_on && is_hit && is_told && is_weighed && all_answer {
                    break;
                }
            }
            told
        };
        let told = busy(&up, look).await;
        assert!(
            told["now"]["tokens_per_second"].as_f64() > Some(0.0),
            "{told}"
        );
        assert!(
            told["now"]["acceptance_length"].as_f64() >= Some(1.0),
            "{told}"
        );
        assert!(told["all"]["hit_rate"].as_f64() > Some(0.0), "{told}");
        assert!(
            told["now"]["bytes_per_round"].as_f64() > Some(0.0),
            "{told}"
        );
        let kinds: Vec<&str> = told["services"]
            .as_array()
            .unwrap()
            .iter()
            .map(|service| {
                assert!(service["trouble"].is_null(), "{service}");
                service["kind"].as_str().unwrap()
            })
            .collect();
        for kind in ["target", "draft", "router"] {
            assert_eq!(kinds.iter().filter(|found| **found == kind).count(), 1);
        }
        let session = &told["sessions"][0];
        assert_eq!(
            (&session["policy"], &session["target"]),
            (&"SSD".into(), &"target-0".into())
        );
        assert!(!session["recent"].as_array().unwrap().is_empty());
        // Of the request alone, what its endpoint tells included.
        for figures in [&session["figures"], &told["all"]] {
            check_figures(figures);
        }

        let says_all = async |_| {
            let output = watch(false).await.unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            let words = ["1 running", "hit rate", "draft-tiny-0", "accepted by round"];
            words.iter().all(|word| text.contains(word)).then_some(())
        };
        // Between two requests none runs.
        busy(&up, eventually("is all of it said", says_all)).await;
    });
}

#[test]
fn a_terminal_is_a_screen_and_afterwards_what_it_was() {
    let up = Up::start(1);
    play(
        "top.py",
        &[up.state_folder().as_ref(), up.url.as_ref()],
        &[],
    );
}

#[test]
fn what_cannot_be_watched_is_named_with_its_reason() {
    let output = top(&["--once", "--interval", "0.1", "--address", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    let expected = "cannot watch 127.0.0.1:1 at http://127.0.0.1:1: Connection refused";
    assert!(log.contains(expected), "{log}");

    let folder = tempfile::tempdir().unwrap();
    let output = top(&["--once", "--state-dir", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        log.contains("no `foretoken up` uses") && log.contains("--address"),
        "{log}"
    );
    let bad = top(&["--interval", "0"]);
    assert_eq!(bad.status.code(), Some(64));
}
