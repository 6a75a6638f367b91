//! Speculative output is autoregressive output, byte for byte, whatever happens on the link between
//! target and draft.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::MutexGuard,
};

use foretoken_tests::shipped_model;
use futures::future::{join_all, join3};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    fixture::{SLOW, complete, executable, machine, run, wait},
    options::{requests, rounds_of, under},
    relay::Relay,
};

/// A service that is started by itself.
struct Service {
    process: Child,
    /// What it says on standard error.
    log: PathBuf,
    /// Where it serves.
    url: String,
}

impl Service {
    /// Starts `foretoken` with these arguments and waits until it serves.
    fn start(folder: &Path, arguments: &[&str]) -> Self {
        let file = |kind: &str| folder.join(format!("{}.{kind}", arguments[0]));
        let (reports, log) = (file("reports"), file("log"));
        let mut process = Command::new(executable())
            .args(arguments)
            .arg("--child")
            .envs(SLOW.iter().copied())
            .stdin(Stdio::piped())
            .stdout(fs::File::create(&reports).unwrap())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let url = wait(arguments[0], || {
            let ended = process.try_wait().unwrap();
            assert!(ended.is_none(), "{:?}", fs::read_to_string(&log));
            let reports = fs::read_to_string(&reports).unwrap();
            let mut reports = reports.lines().flat_map(serde_json::from_str::<Value>);
            reports.find_map(|report| {
                let url = report["ready"]["addresses"][0].as_str()?;
                Some(url.to_owned())
            })
        });
        Self { process, log, url }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

/// The shipped pair as processes of their own: the target reaches the draft through a relay.
struct Pair {
    url: String,
    relay: Relay,
    _services: [Service; 3],
    _folder: TempDir,
    _machine: MutexGuard<'static, ()>,
}

impl Pair {
    fn start(seed: u32) -> Self {
        let machine = machine();
        let folder = TempDir::new().unwrap();
        let model = |name: &str| shipped_model(name).to_str().unwrap().to_owned();
        let start = |arguments: &[&str]| Service::start(folder.path(), arguments);
        let draft = start(&["draft", "--model", &model("draft"), "--threads", "1"]);
        let relay = Relay::start(&draft.url, seed);
        let target = start(&[
            "target",
            "--model",
            &model("target"),
            "--threads",
            "1",
            "--endpoint",
            &relay.url,
        ]);
        let router = start(&[
            "router",
            "--model",
            &model("target"),
            "--model-name",
            "story",
            "--target",
            &target.url,
            "--listen",
            "127.0.0.1:0",
        ]);
        let url = router.url.clone();
        let ready = format!("{url}/ready");
        wait("the router", || {
            let answer = run(reqwest::get(&ready));
            answer
                .is_ok_and(|answer| answer.status().is_success())
                .then_some(())
        });
        Self {
            url,
            relay,
            _services: [router, target, draft],
            _folder: folder,
            _machine: machine,
        }
    }
}

/// What speculation gained in all answers of a policy.
#[derive(Debug, Default)]
struct Gain {
    accepted: u64,
    hits: u64,
}

impl Gain {
    fn add(&mut self, answer: &Value) {
        let told = &answer["usage"]["foretoken"];
        self.accepted += told["accepted"].as_u64().unwrap();
        self.hits += told["hits"].as_u64().unwrap();
    }
}

/// What speculation gains in requests of every kind, in turn and ahead.
async fn gains(pair: &Pair) -> [Gain; 2] {
    let (mut in_turn, mut ahead) = (Gain::default(), Gain::default());
    for draws in rounds_of(1) {
        for row in requests(draws) {
            let ask = async |policy, lookahead| {
                let asked = row
                    .each_ref()
                    .map(|request| under(request, policy, lookahead));
                join_all(asked.iter().map(|request| complete(&pair.url, request))).await
            };
            // All at once: frames have messages of several sessions.
            let (plain, drafted, prepared) = join3(
                ask("Autoregressive", 0),
                ask("Speculative", 5),
                ask("SSD", 4),
            )
            .await;
            for (answers, gain) in [(drafted, &mut in_turn), (prepared, &mut ahead)] {
                for ((answer, plain), request) in answers.iter().zip(&plain).zip(&row) {
                    assert_eq!(answer["choices"], plain["choices"], "{request}");
                    assert_eq!(plain["usage"]["foretoken"]["drafted"], 0, "{plain}");
                    gain.add(answer);
                }
            }
        }
        if in_turn.accepted > 400 && ahead.hits > 60 {
            break;
        }
    }
    [in_turn, ahead]
}

#[test]
fn whatever_becomes_of_frames_no_byte_changes_under_any_sampling_options() {
    let pair = Pair::start(7);
    let [in_turn, ahead] = run(gains(&pair));
    let tally = pair.relay.tally();
    assert!(in_turn.accepted > 400, "{in_turn:?} with {tally:?}");
    assert!(ahead.hits > 60, "{ahead:?} with {tally:?}");
    tally.assert_all();
}
