//! Services that are started one by one, by their flags.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, Stdio},
};

use foretoken_tests::eventually;
use serde_json::{Value, json};

use crate::{
    fixture::{Up, complete, executable, machine, manifest, model, run, wait},
    options::PROMPTS,
};

/// A service that ends when this is dropped.
struct Service {
    process: Child,
    /// Read from as long as it lives: it ends if nobody listens.
    _reports: BufReader<ChildStdout>,
    /// Its first address.
    address: String,
    /// URL of its metrics.
    metrics: String,
}

impl Service {
    /// Starts a target or draft on the shipped draft model, which is quick to load.
    fn with_model(name: &str, arguments: &[&str]) -> Self {
        Self::in_environment(&[], name, arguments)
    }

    /// The same in an environment with these variables.
    fn in_environment(variables: &[(&str, &str)], name: &str, arguments: &[&str]) -> Self {
        let model = model("draft");
        let own = [
            "--model",
            &model,
            "--threads",
            "1",
            "--metrics-listen",
            "127.0.0.1:0",
        ];
        Self::start(variables, &[&[name], &own[..], arguments].concat())
    }

    /// Starts a service and waits until it serves.
    fn start(variables: &[(&str, &str)], arguments: &[&str]) -> Self {
        let mut process = Command::new(executable())
            .args(arguments)
            .arg("--child")
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut reports = BufReader::new(process.stdout.take().unwrap());
        let ready = loop {
            let mut line = String::new();
            assert!(
                reports.read_line(&mut line).unwrap() > 0,
                "{arguments:?} ended"
            );
            let report: Value = serde_json::from_str(&line).unwrap();
            if report["ready"].is_object() {
                break report["ready"].clone();
            }
        };
        Self {
            process,
            _reports: reports,
            address: ready["addresses"][0].as_str().unwrap().to_owned(),
            metrics: format!("http://{}", ready["metrics"].as_str().unwrap()),
        }
    }

    /// Prompt tokens that it found in its cache.
    fn cached(&self) -> u64 {
        cached(&self.metrics)
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a service shows.
async fn get(shown_at: &str, what: &str) -> String {
    let answer = reqwest::get(format!("{shown_at}/{what}")).await.unwrap();
    answer.text().await.unwrap()
}

/// Prompt tokens that the service with these metrics found in its cache.
fn cached(metrics: &str) -> u64 {
    let text = run(get(metrics, "metrics"));
    let mut lines = text.lines();
    let line = lines.find(|line| line.starts_with("vllm:prefix_cache_hits_total"));
    let count = line.and_then(|line| line.rsplit_once(' ')).unwrap().1;
    count.parse().unwrap()
}

/// The same long prompt twice, and again until it is enough; how many of its tokens were there already, all
/// times together.
fn ask_again(url: &str, model: &str, is_enough: impl Fn() -> bool) -> u64 {
    let request = json!({
        "model": model, "prompt": PROMPTS[0].repeat(8), "max_tokens": 24, "temperature": 0,
        "foretoken": {"policy": "Speculative", "lookahead": 4},
    });
    let drafts = async |number| {
        let mut other = request.clone();
        // Nothing of it is there already.
        other["prompt"] = format!("{number}. {}", PROMPTS[1]).into();
        let answer = complete(url, &other).await;
        let drafted = answer["usage"]["foretoken"]["drafted"].as_u64();
        (drafted > Some(0)).then_some(())
    };
    let ready = async |_| {
        let answer = reqwest::get(format!("{url}/ready")).await.unwrap();
        answer.status().is_success().then_some(())
    };
    run(eventually("ready", ready));
    run(eventually("does the draft draft", drafts));
    run(complete(url, &request));
    let mut found = 0;
    wait("enough", || {
        let answer = run(complete(url, &request));
        let usage = &answer["usage"]["prompt_tokens_details"];
        found += usage["cached_tokens"].as_u64().unwrap();
        is_enough().then_some(())
    });
    found
}

#[test]
fn targets_and_drafts_keep_keys_and_values_unless_they_are_told_not_to() {
    let _machine = machine();
    for (flags, is_kept) in [(&[][..], true), (&["--no-prefix-cache"], false)] {
        let draft = Service::with_model("draft", flags);
        let endpoint = ["--endpoint", &draft.address];
        let target = Service::with_model("target", &[&endpoint[..], flags].concat());
        let folder = model("draft");
        let router = Service::start(
            &[],
            &[
                "router",
                "--model",
                &folder,
                "--listen",
                "127.0.0.1:0",
                "--target",
                &target.address,
            ],
        );
        // A target may be done before its draft has read the prompt.
        let is_enough = || !is_kept || draft.cached() > 0;
        let found = ask_again(&router.address, "target", is_enough);
        assert_eq!(found > 0, is_kept, "{flags:?}: {found} tokens");
        assert_eq!(target.cached(), found);
        assert_eq!(draft.cached() > 0, is_kept, "{flags:?}");
    }
}

#[test]
fn up_tells_its_services_not_to_keep_keys_and_values() {
    let up = Up::told(Some(&manifest(1)), &[], &["--no-prefix-cache"]);
    assert_eq!(ask_again(&up.url, "story", || true), 0);
    for service in ["target-0", "draft-tiny-0"] {
        let service = up.service(service).unwrap();
        assert_eq!(cached(service["metrics"].as_str().unwrap()), 0, "{service}");
    }
}

/// Cores that a thread may run on, by its folder in `/proc`.
fn cores(thread: impl AsRef<Path>) -> Option<String> {
    let status = fs::read_to_string(thread.as_ref().join("status")).ok()?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(list.trim().to_owned())
}

/// The folder of the thread of a process that is called so.
fn thread(process: u32, name: &str) -> Option<PathBuf> {
    // Names are cut there.
    let name = &name[..name.len().min(15)];
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut threads = threads.filter_map(|entry| Some(entry.ok()?.path()));
    let is_it = |path: &PathBuf| {
        fs::read_to_string(path.join("comm")).is_ok_and(|found| found.trim() == name)
    };
    threads.find(is_it)
}

#[test]
fn the_thread_that_computes_is_bound_to_the_first_core_and_no_other_is() {
    let _machine = machine();
    let all = cores("/proc/thread-self").unwrap();
    let core = all.rsplit([',', '-']).next().unwrap();
    let flags = ["--cores", core];
    let main_thread = |process: u32| cores(format!("/proc/{process}"));
    for (name, engine) in [("target", "foretoken-target"), ("draft", "foretoken-draft")] {
        let service = Service::with_model(name, &flags);
        let process = service.process.id();
        wait("the engine's thread on its core", || {
            (cores(thread(process, engine)?)? == core).then_some(())
        });
        assert_eq!(main_thread(process).as_ref(), Some(&all), "{name}");
    }
    let mut process = Command::new(executable())
        .args(["generate", "--model", &model("draft"), "--threads", "1"])
        .args(flags)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // It computes once it has its prompt.
    wait("the thread that computes on its core", || {
        (main_thread(process.id())? == core).then_some(())
    });
    process.stdin.take().unwrap().write_all(b"Once").unwrap();
    assert!(process.wait().unwrap().success());
}

#[test]
fn instructions_are_those_that_the_environment_names() {
    let _machine = machine();
    let model = model("draft");
    for command in [
        &["target", "--model", &model][..],
        &["draft", "--model", &model],
        &["generate", "--model", &model, "Once"],
        &["up"],
    ] {
        let output = Command::new(executable())
            .args(command)
            .env("FORETOKEN_ISA", "nonsense")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{command:?}: {said}");
        let message =
            "FORETOKEN_ISA: unknown instruction path \"nonsense\", use one of portable, avx2";
        assert!(said.contains(message), "{command:?}: {said}");
    }
    let portable = Service::in_environment(&[("FORETOKEN_ISA", "portable")], "target", &[]);
    let status = run(get(&portable.metrics, "status"));
    assert!(status.contains("\"cpu/portable/"), "{status}");
}
