//! `foretoken bench`: every benchmark runs to its end, and what it leaves can be drawn.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::fixture::{children, executable, is_running, machine, model, printed, signal, wait};

/// Benchmarks as short as they can be. What they measure that way means nothing.
const SHORTEST: [&str; 9] = [
    "verify --rounds 1",
    "protocol --blocks 1",
    "decode --threads 1 --dtypes int8 --lookaheads 3 --rounds 1 --prompts 1",
    "ssd --classes gsm8k --temperatures 0,1 --lookaheads 3 --sweep 1 --rounds 1 --prompts 1",
    "distant --temperatures 0 --delays-us 0 --lookaheads 4 --rounds 1 --prompts 1",
    "trees --temperatures 0 --dtypes int8 --agreements 0.75 --rounds 1 --prompts 1",
    "sharing --targets 2 --policies SSD --lookaheads 2 --rounds 1",
    "batch --layouts shared --streams 2 --rounds 1 --prompts 2 --requests 1",
    "router --streams 4 --tokens 8 --rounds 1",
];

/// Runs a benchmark and returns what it prints.
fn bench(arguments: &str, results: &Path) -> String {
    let results = results.to_str().unwrap();
    let mut all = vec!["bench", "--results", results];
    all.extend(arguments.split(' '));
    printed(&all)
}

#[test]
fn every_benchmark_runs_and_its_results_can_be_drawn() {
    let _machine = machine();
    let folder = TempDir::new().unwrap();
    let results = folder.path().join("results");
    for (number, arguments) in SHORTEST.into_iter().enumerate() {
        let table = match arguments.strip_prefix("verify") {
            // Its own model has 100 million parameters.
            Some(rest) => bench(
                &format!("verify --model {}{rest}", model("target")),
                &results,
            ),
            None => bench(arguments, &results),
        };
        assert!(table.contains("| --- |"), "{arguments}: {table}");
        let files = std::fs::read_dir(&results).unwrap();
        let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        assert_eq!(
            files.len(),
            number + 1,
            "{arguments} leaves a file: {files:?}"
        );
        for file in files {
            let text = std::fs::read(&file).unwrap();
            let result: Value = serde_json::from_slice(&text).unwrap();
            assert!(
                result["machine"].is_object(),
                "{}: {result}",
                file.display()
            );
        }
    }
    // The arm of the paper runs where tokens are drawn.
    let ssd = std::fs::read(results.join("ssd.json")).unwrap();
    let ssd: Value = serde_json::from_slice(&ssd).unwrap();
    let hits = ["0", "1"].map(|row| ssd.pointer(&format!("/data/{row}/paper/means/hit_rate")));
    assert!(hits[0].is_none(), "{ssd}");
    assert!(hits[1].is_some_and(Value::is_f64), "{ssd}");
    bench(
        &format!("plots --plots {}", folder.path().join("plots").display()),
        &results,
    );
}

#[test]
fn services_of_a_benchmark_end_when_it_is_killed() {
    let _machine = machine();
    let results = TempDir::new().unwrap();
    let mut bench = Command::new(executable())
        .args(["bench", "--results"])
        .arg(results.path())
        .args(["decode", "--threads", "1", "--dtypes", "int8"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = bench.id().into();
    // A target, a draft and a router.
    let services = wait("services", || {
        Some(children(pid)).filter(|pids| pids.len() >= 3)
    });
    signal(pid, "KILL");
    bench.wait().unwrap();
    for pid in services {
        wait("a service to end", || (!is_running(pid)).then_some(()));
    }
}
