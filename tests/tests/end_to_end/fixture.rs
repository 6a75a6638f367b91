//! A running `foretoken up`, and a client for it.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

use foretoken_tests::{eventually, repository, shipped_model};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A start, a restart and a drain are over long before this; it only ends a test that hangs.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// Steps of ten milliseconds and more, however quick the machine: what happens during a request does so
/// before its end, and drafts have time to work ahead.
pub(crate) const SLOW: &[(&str, &str)] = &[("FORETOKEN_ISA", "portable")];

/// Holds the machine: systems under test one at a time, or they starve each other.
static MACHINE: Mutex<()> = Mutex::new(());

/// Waits until no other system under test runs; none does while the guard lives.
pub(crate) fn machine() -> MutexGuard<'static, ()> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The executable: `FORETOKEN_EXECUTABLE`, or that of the profile under test, built if need be.
pub(crate) fn executable() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(path) = env::var_os("FORETOKEN_EXECUTABLE") {
            return path.into();
        }
        let this = env::current_exe().unwrap();
        let folder = this.ancestors().nth(2).unwrap();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--locked", "--quiet", "--package", "foretoken"]);
        build.arg("--target-dir").arg(folder.parent().unwrap());
        if folder.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success());
        folder.join("foretoken")
    })
}

/// Runs the executable with these arguments, which has to succeed, and returns what it prints.
pub(crate) fn printed(arguments: &[&str]) -> String {
    let output = Command::new(executable())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until `check` gives something.
pub(crate) fn wait<T>(what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        sleep(POLL);
    }
}

/// Sends a signal to a process that this test started.
pub(crate) fn signal(pid: u64, name: &str) {
    let status = Command::new("kill")
        .args([format!("-{name}"), pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}

/// What the system says of a process.
fn status(pid: u64) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/status")).ok()
}

/// Whether that is of a process, and of no zombie that nobody has buried yet.
fn runs(status: &str) -> bool {
    !status.contains("State:\tZ")
}

/// Whether a process runs.
pub(crate) fn is_running(pid: u64) -> bool {
    status(pid).is_some_and(|status| runs(&status))
}

/// The processes that a process has started, of those that run.
pub(crate) fn children(parent: u64) -> Vec<u64> {
    let line = format!("PPid:\t{parent}\n");
    let all = fs::read_dir("/proc").unwrap();
    let pids = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let is_child = |status: String| runs(&status) && status.contains(&line);
    pids.filter(|&pid| status(pid).is_some_and(is_child))
        .collect()
}

/// Folder of a model of the shipped pair, `target` or `draft`.
pub(crate) fn model(name: &str) -> String {
    let folder = shipped_model(name);
    folder.into_os_string().into_string().unwrap()
}

/// Runs a Python script of this folder, which uses the executable on a terminal, with these variables.
pub(crate) fn play(script: &str, arguments: &[&OsStr], variables: &[(&str, &OsStr)]) {
    let folder = repository().join("tests/tests/end_to_end");
    let mut python = Command::new("python3");
    // What it imports is not to be left beside it.
    python.arg("-B").arg(folder.join(script)).arg(executable());
    python.args(arguments).envs(variables.iter().copied());
    let output = python.output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
}

/// A manifest of the shipped pair with this many targets.
pub(crate) fn manifest(targets: u32) -> String {
    let models = repository().join("models");
    let models = models.display();
    format!(
        "apiVersion: foretoken.io/v1alpha1
kind: SpecDecodeDeployment
metadata: {{name: story}}
spec:
  model: {{uri: \"file://{models}/target\"}}
  target: {{replicas: {targets}}}
  speculation:
    policy: {{type: Speculative, speculative: {{lookahead: 5, adaptive: false}}}}
    endpoints: [{{name: tiny}}]
---
apiVersion: foretoken.io/v1alpha1
kind: SpeculationEndpoint
metadata: {{name: tiny}}
spec:
  model: {{uri: \"file://{models}/draft\"}}
"
    )
}

/// The manifest of one target, with weights of the `target` or `draft` that are none, kept in `folder`.
pub(crate) fn with_broken(model: &str, folder: &Path) -> String {
    let sound = shipped_model(model);
    let broken = folder.join("broken");
    fs::create_dir(&broken).unwrap();
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(sound.join(name), broken.join(name)).unwrap();
    }
    fs::write(broken.join("model.safetensors"), b"nothing").unwrap();
    let text = manifest(1);
    let name = format!("/{model}\"");
    let uri = text.lines().find(|line| line.contains(&name)).unwrap();
    let other = format!("  model: {{uri: \"file://{}\"}}", broken.display());
    text.replace(uri, &other)
}

/// `foretoken up`, killed when dropped.
pub(crate) struct Up {
    process: Child,
    folder: TempDir,
    pub(crate) url: String,
    _machine: MutexGuard<'static, ()>,
}

impl Up {
    /// Starts the shipped pair and waits until it serves.
    pub(crate) fn start(targets: u32) -> Self {
        Self::serving(&manifest(targets), &[])
    }

    /// The same with [`SLOW`] steps.
    pub(crate) fn slow(targets: u32) -> Self {
        Self::serving(&manifest(targets), SLOW)
    }

    /// Starts what `manifest` says, in an environment with these variables, and waits until it
    /// serves.
    pub(crate) fn serving(manifest: &str, variables: &[(&str, &str)]) -> Self {
        Self::told(Some(manifest), variables, &[])
    }

    /// The same with these flags besides; without a manifest it is told no file.
    pub(crate) fn told(manifest: Option<&str>, variables: &[(&str, &str)], flags: &[&str]) -> Self {
        let machine = machine();
        let folder = TempDir::new().unwrap();
        let mut command = Command::new(executable());
        command.args(["up", "--port", "0", "--target-threads", "1"]);
        command.args(["--draft-threads", "1"]).args(flags);
        if let Some(manifest) = manifest {
            let file = folder.path().join("story.yaml");
            fs::write(&file, manifest).unwrap();
            command.arg("-f").arg(file);
        }
        let process = command
            .arg("--state-dir")
            .arg(folder.path())
            .envs(variables.iter().copied())
            .stdout(fs::File::create(folder.path().join("out")).unwrap())
            .stderr(fs::File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut up = Self {
            process,
            folder,
            url: String::new(),
            _machine: machine,
        };
        up.url = wait("the start", || {
            let ended = up.process.try_wait().unwrap();
            assert!(ended.is_none(), "up ended: {}", up.log());
            let state = up.state()?;
            (state["ready"] == true).then(|| state["url"].as_str().unwrap().to_owned())
        });
        up
    }

    /// What `state.json` says; none while it is not there.
    pub(crate) fn state(&self) -> Option<Value> {
        let text = fs::read_to_string(self.state_folder().join("state.json")).ok()?;
        serde_json::from_str(&text).ok()
    }

    pub(crate) fn state_folder(&self) -> &Path {
        self.folder.path()
    }

    /// What it printed on standard output, which comes a moment after `state.json` says ready.
    pub(crate) fn greeting(&self) -> String {
        wait("the greeting", || {
            let printed = fs::read_to_string(self.folder.path().join("out")).unwrap();
            printed.ends_with('\n').then_some(printed)
        })
    }

    /// What it printed on standard error.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Process ids of all services.
    pub(crate) fn pids(&self) -> Vec<u64> {
        let state = self.state().unwrap();
        let services = state["services"].as_array().unwrap();
        services
            .iter()
            .filter_map(|service| service["pid"].as_u64())
            .collect()
    }

    /// A service, as `state.json` describes it.
    pub(crate) fn service(&self, name: &str) -> Option<Value> {
        let state = self.state()?;
        state["services"]
            .as_array()?
            .iter()
            .find(|service| service["name"] == name)
            .cloned()
    }

    /// Holds a service still, as a machine that hangs would, until the guard is dropped.
    pub(crate) fn freeze(&self, name: &str) -> Frozen {
        let service = self.service(name).unwrap();
        let pid = service["pid"].as_u64().unwrap();
        signal(pid, "STOP");
        Frozen(pid)
    }

    /// Whether `up` itself runs.
    pub(crate) fn is_running(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// Kills a service as a crash would, without waiting for anything.
    pub(crate) fn kill(&self, name: &str) {
        let service = wait(name, || {
            self.service(name)
                .filter(|service| service["ready"] == true)
        });
        signal(service["pid"].as_u64().unwrap(), "KILL");
    }

    /// Waits until a killed service serves again.
    pub(crate) fn wait_for_restart(&self, name: &str, restarts: u64) {
        wait(name, || {
            let service = self.service(name)?;
            (service["ready"] == true && service["restarts"] == restarts).then_some(())
        });
    }

    /// Process id of `up` itself.
    pub(crate) fn pid(&self) -> u64 {
        self.process.id().into()
    }

    /// Waits for the end.
    pub(crate) fn end(&mut self) -> ExitStatus {
        wait("the end", || self.process.try_wait().unwrap())
    }

    /// A completion, not streamed.
    pub(crate) async fn complete(&self, request: &Value) -> Value {
        complete(&self.url, request).await
    }

    /// Asks the same until the draft was of use, which depends on what else this machine does; `check` sees
    /// every answer.
    pub(crate) async fn complete_with_draft(&self, request: &Value, check: impl Fn(&Value)) {
        let answered = async |_| {
            let answer = self.complete(request).await;
            check(&answer);
            let accepted = answer["usage"]["foretoken"]["accepted"].as_u64();
            (accepted > Some(0)).then_some(())
        };
        eventually("is the draft of use", answered).await;
    }

    /// Starts a streamed completion.
    pub(crate) async fn stream(&self, request: &Value) -> Stream {
        let mut request = request.clone();
        request["stream"] = json!(true);
        let url = format!("{}/v1/completions", self.url);
        let answer = reqwest::Client::new()
            .post(url)
            .json(&request)
            .send()
            .await
            .unwrap();
        assert!(answer.status().is_success(), "{}", answer.status());
        Stream {
            answer,
            buffer: String::new(),
            text: String::new(),
            ended: false,
        }
    }
}

/// Starts `up` until it says at its start what is expected. It waits five seconds for links to be known,
/// which on a busy machine may be too few; whatever it says before that has to be it.
pub(crate) fn greeting(expected: &str, start: impl Fn() -> Up) -> Up {
    let mut tries = (0..5).map(|_| {
        let begun = Instant::now();
        let up = start();
        let greeting = up.greeting();
        let is_said = greeting.starts_with(expected);
        assert!(
            is_said || begun.elapsed() > Duration::from_secs(5),
            "{greeting}"
        );
        is_said.then_some(up)
    });
    let up = tries.find_map(|up| up);
    up.unwrap()
}

/// A service that stands still.
pub(crate) struct Frozen(u64);

impl Drop for Frozen {
    fn drop(&mut self) {
        // It may have been killed meanwhile.
        let pid = self.0.to_string();
        let thawed = Command::new("kill").args(["-CONT", &pid]).output();
        assert!(thawed.is_ok());
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // The services end with it.
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// A streamed completion.
pub(crate) struct Stream {
    answer: reqwest::Response,
    buffer: String,
    /// Text so far.
    pub(crate) text: String,
    ended: bool,
}

impl Stream {
    /// Reads until the text has at least `len` bytes, or to the end.
    pub(crate) async fn read_to(&mut self, len: usize) {
        while self.text.len() < len && !self.ended && self.read_on().await.unwrap() {}
    }

    /// Reads what comes next. False if nothing does any more.
    async fn read_on(&mut self) -> reqwest::Result<bool> {
        let Some(bytes) = self.answer.chunk().await? else {
            return Ok(false);
        };
        self.buffer.push_str(std::str::from_utf8(&bytes).unwrap());
        while let Some(end) = self.buffer.find("\n\n") {
            let event: String = self.buffer.drain(..end + 2).collect();
            let Some(data) = event.trim().strip_prefix("data: ") else {
                continue;
            };
            if data == "[DONE]" {
                self.ended = true;
                continue;
            }
            let chunk: Value = serde_json::from_str(data).unwrap();
            assert!(chunk.get("error").is_none(), "{chunk}");
            if let Some(piece) = chunk["choices"][0]["text"].as_str() {
                self.text.push_str(piece);
            }
        }
        Ok(true)
    }

    /// What came of the text before the stream broke off, which it must, without saying that it is whole.
    pub(crate) async fn broken_off(mut self) -> String {
        while let Ok(true) = self.read_on().await {}
        assert!(!self.ended, "a stream that was cut off says it is whole");
        self.text
    }

    /// The whole text. The stream must end as promised.
    pub(crate) async fn finish(mut self) -> String {
        self.read_to(usize::MAX).await;
        assert!(self.ended, "the stream broke off after {:?}", self.text);
        self.text
    }
}

/// A completion, not streamed, by the router at `url`.
pub(crate) async fn complete(url: &str, request: &Value) -> Value {
    let url = format!("{url}/v1/completions");
    let answer = reqwest::Client::new()
        .post(url)
        .json(request)
        .send()
        .await
        .unwrap();
    let status = answer.status();
    let body: Value = answer.json().await.unwrap();
    assert!(status.is_success(), "{status}: {body}");
    body
}

/// Runs a test's asynchronous part.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(test)
}
