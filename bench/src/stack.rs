//! The product as a user runs it: router, target and drafts as processes of their own.

use std::{
    collections::BTreeSet,
    fs,
    hash::{BuildHasher as _, RandomState},
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use foretoken_protocol::Address;
use serde_json::{Value, json};

use crate::{
    client::Client,
    metrics::Counts,
    relay::{self, Passed},
    target::TargetClient,
};

/// How long services may take to be ready.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often they are asked.
const LOOK: Duration = Duration::from_millis(50);

/// What to start.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The `foretoken` executable.
    pub binary: PathBuf,
    /// Folder of the tokenizer, and of the target's weights unless it is simulated.
    pub target: PathBuf,
    /// Folder of the draft's weights; `None` starts no draft.
    pub draft: Option<PathBuf>,
    /// `model` section of the target's configuration, besides the folder.
    pub target_model: Value,
    /// The same of the draft.
    pub draft_model: Value,
    /// `service` section of the target's configuration, besides addresses.
    pub service: Value,
    /// The same of the draft.
    pub draft_service: Value,
    /// Cores of target and router, as `taskset` reads them; empty binds nothing.
    pub cores: String,
    /// Cores of the draft.
    pub draft_cores: String,
    /// Whether target and draft meet over TCP instead of a Unix socket.
    pub tcp: bool,
    /// Whether there is a router; without one, clients ask the target.
    pub router: bool,
    /// A draft that runs already; it is used instead of one of its own.
    pub endpoint: Option<Address>,
    /// Puts a relay between target and draft that delays every byte by so much each way and counts
    /// it. Only with Unix sockets.
    pub relay: Option<Duration>,
}

impl Setup {
    /// The shipped pair, the target in `dtype` and the draft in its default, the target with
    /// `threads` threads and the draft with one, all on the first `threads` cores.
    pub fn shipped(binary: PathBuf, models: &Path, dtype: &str, threads: usize) -> Self {
        let cores = format!("0-{}", threads.max(1) - 1);
        Self {
            binary,
            target: models.join("target"),
            draft: Some(models.join("draft")),
            target_model: json!({"dtype": dtype, "threads": threads, "kv_mib": 64}),
            draft_model: json!({"threads": 1, "kv_mib": 64}),
            service: json!({"policy": "Speculative", "prefix_cache": false}),
            draft_service: json!({}),
            draft_cores: cores.clone(),
            cores,
            tcp: false,
            router: true,
            endpoint: None,
            relay: None,
        }
    }

    /// The shipped pair in `dtype` with a thread and a core each; clients ask the target. Where
    /// rounds are timed they are to keep to the draft's core ([`crate::machine::keep_to`]): each verdict
    /// wakes them, and on the target's core that would look like time of its rounds.
    pub fn apart(binary: PathBuf, models: &Path, dtype: &str) -> Self {
        Self {
            cores: "0".to_owned(),
            draft_cores: "1".to_owned(),
            router: false,
            ..Self::shipped(binary, models, dtype, 1)
        }
    }

    /// A simulated pair, bound to no cores since it only waits; clients ask the target. The values
    /// are what `simulated` of a model's configuration takes.
    pub fn simulated(binary: PathBuf, target: &Value, draft: &Value) -> Self {
        Self {
            target_model: json!({"simulated": target}),
            draft_model: json!({"simulated": draft}),
            cores: String::new(),
            draft_cores: String::new(),
            router: false,
            ..Self::shipped(binary, Path::new(""), "bf16", 1)
        }
    }

    /// Starts everything and waits until a token can be served.
    pub async fn start(&self) -> anyhow::Result<Stack> {
        let mut stack = Stack {
            children: Vec::new(),
            base: String::new(),
            target: Address::loopback(0),
            draft: self.endpoint.clone(),
            passed: None,
            folder: tempfile::tempdir()?,
            http: reqwest::Client::new(),
        };
        if let (Some(model), None) = (&self.draft, &self.endpoint) {
            let address = stack.address(self, "draft.sock")?;
            let mut service = self.draft_service.clone();
            service["instance"] = json!("draft");
            service["listen"] = json!([address.to_string()]);
            let model = section(&self.draft_model, model);
            stack.spawn_engine(self, "draft", &self.draft_cores, &model, service)?;
            stack.draft = Some(address);
        }
        stack.target = stack.address(self, "target.sock")?;
        let mut service = self.service.clone();
        service["instance"] = json!("target");
        service["listen"] = json!([stack.target.to_string()]);
        if let Some(draft) = stack.detour(self.relay)? {
            service["endpoints"] = json!([{"name": "draft", "address": draft.to_string()}]);
        }
        let model = section(&self.target_model, &self.target);
        stack.spawn_engine(self, "target", &self.cores, &model, service)?;
        if self.router {
            let listen = format!("127.0.0.1:{}", free_port()?);
            let config = json!({"listen": listen, "models": [{"name": MODEL, "folder": self.target}],
                "targets": [{"name": "target", "model": MODEL, "address": stack.target.to_string()}]});
            stack.spawn(self, "router", &self.cores, &config, None)?;
            stack.base = format!("http://{listen}");
        }
        stack.wait_ready().await?;
        Ok(stack)
    }
}

/// Name under which the model is served.
pub const MODEL: &str = "bench";

fn section(model: &Value, folder: &Path) -> Value {
    let mut section = model.clone();
    if section.get("simulated").is_none_or(Value::is_null) {
        section["model"] = json!(folder);
    }
    section
}

/// A port that nobody listens on, that was not given out before and is none of those that systems give to
/// whoever asks for any: who gets it may take a while to listen.
fn free_port() -> anyhow::Result<u16> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..10_000 {
        let port = 15_000 + (RandomState::new().hash_one(()) % 15_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() && given.insert(port) {
            return Ok(port);
        }
    }
    bail!("no port of 127.0.0.1 is free from 15000 to 29999");
}

/// Running processes; they end when it is dropped.
#[derive(Debug)]
pub struct Stack {
    children: Vec<Service>,
    base: String,
    target: Address,
    draft: Option<Address>,
    passed: Option<Arc<Passed>>,
    folder: tempfile::TempDir,
    /// Asks services for what they say of themselves; load has connections of its own.
    http: reqwest::Client,
}

#[derive(Debug)]
struct Service {
    name: &'static str,
    child: Child,
    /// Port of its `/metrics`; none for routers.
    metrics: Option<u16>,
}

impl Stack {
    /// Where the target listens.
    pub fn target(&self) -> &Address {
        &self.target
    }

    /// Where the draft listens, if there is one.
    pub fn draft(&self) -> Option<&Address> {
        self.draft.as_ref()
    }

    /// What has passed the relay, if there is one.
    pub fn passed(&self) -> Option<&Passed> {
        self.passed.as_deref()
    }

    /// A client of its router.
    pub fn client(&self) -> Client {
        Client::new(&self.base, MODEL)
    }

    /// A client of its target.
    pub fn target_client(&self) -> TargetClient {
        TargetClient::new(self.target.clone())
    }

    /// What a service has counted so far; nothing if there is no such service here.
    pub async fn counts(&self, service: &str) -> anyhow::Result<Counts> {
        let found = self.children.iter().find(|child| child.name == service);
        let Some(port) = found.and_then(|child| child.metrics) else {
            return Ok(Counts::default());
        };
        let url = format!("http://127.0.0.1:{port}/metrics");
        let answer = self.http.get(url).send().await?;
        Counts::parse(&answer.error_for_status()?.text().await?)
    }

    /// CPU time (user and system) that a service has used so far.
    pub fn cpu_time(&self, service: &str) -> anyhow::Result<Duration> {
        let found = self.children.iter().find(|child| child.name == service);
        let id = found.context("no such service")?.child.id();
        let stat = fs::read_to_string(format!("/proc/{id}/stat"))?;
        let after_name = stat.rsplit_once(')').context("unexpected /proc stat")?.1;
        let ticks: u64 = after_name
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|f| f.parse::<u64>().ok())
            .sum();
        Ok(Duration::from_millis(ticks * 10)) // Linux reports hundredths of a second
    }

    fn address(&self, setup: &Setup, name: &str) -> anyhow::Result<Address> {
        Ok(if setup.tcp {
            Address::loopback(free_port()?)
        } else {
            Address::Unix(self.folder.path().join(name))
        })
    }

    /// Where the target is to look for the draft.
    fn detour(&mut self, relay: Option<Duration>) -> anyhow::Result<Option<Address>> {
        let (Some(delay), Some(Address::Unix(upstream))) = (relay, &self.draft) else {
            return Ok(self.draft.clone());
        };
        let path = self.folder.path().join("relay.sock");
        self.passed = Some(relay::start(&path, upstream.clone(), delay)?);
        Ok(Some(Address::Unix(path)))
    }

    /// Starts a target or a draft, with a port for its metrics.
    fn spawn_engine(
        &mut self,
        setup: &Setup,
        name: &'static str,
        cores: &str,
        model: &Value,
        mut service: Value,
    ) -> anyhow::Result<()> {
        let port = free_port()?;
        service["metrics_listen"] = json!(format!("127.0.0.1:{port}"));
        let config = json!({"model": model, "service": service});
        self.spawn(setup, name, cores, &config, Some(port))
    }

    fn spawn(
        &mut self,
        setup: &Setup,
        name: &'static str,
        cores: &str,
        config: &Value,
        metrics: Option<u16>,
    ) -> anyhow::Result<()> {
        let path = self.folder.path().join(format!("{name}.json"));
        fs::write(&path, config.to_string())?;
        let log = fs::File::create(self.folder.path().join(format!("{name}.log")))?;
        let mut command = if cores.is_empty() {
            Command::new(&setup.binary)
        } else {
            let mut pinned = Command::new("taskset");
            pinned.args(["-c", cores]).arg(&setup.binary);
            pinned
        };
        command
            .arg(name)
            .arg("--config")
            .arg(&path)
            // It ends when this process does, however that comes: the pipe is open as long as the child is kept.
            .arg("--child")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", setup.binary.display()))?;
        self.children.push(Service {
            name,
            child,
            metrics,
        });
        Ok(())
    }

    async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !self.is_ready().await {
            for Service { name, child, .. } in &mut self.children {
                if let Some(status) = child.try_wait()? {
                    let log = fs::read_to_string(self.folder.path().join(format!("{name}.log")));
                    bail!("{name} ended with {status}: {}", log.unwrap_or_default());
                }
            }
            if Instant::now() > deadline {
                bail!("the services are not ready after {PATIENCE:?}");
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Whether a token can be served, and the target has met its draft.
    async fn is_ready(&self) -> bool {
        let served = if self.base.is_empty() {
            self.target_client().answers().await
        } else {
            let answer = self.http.get(format!("{}/ready", self.base)).send().await;
            answer.is_ok_and(|answer| answer.status().is_success())
        };
        let wanted = if self.draft.is_some() { 1.0 } else { 0.0 };
        let counts = self.counts("target").await;
        served && counts.is_ok_and(|counts| counts.sum("foretoken_links_up", "") >= wanted)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        for Service { child, .. } in self.children.iter_mut().rev() {
            // Already gone is as good as killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
