//! The product as a user runs it: router, target and drafts as processes of their own.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use foretoken_protocol::Address;
use serde_json::{Value, json};

use crate::client::Client;

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
    /// Cores of target and router, as `taskset` reads them; empty binds nothing.
    pub cores: String,
    /// Cores of the draft.
    pub draft_cores: String,
    /// Whether target and draft meet over TCP instead of a Unix socket.
    pub tcp: bool,
}

impl Setup {
    /// The shipped pair in `dtype`, the target with `threads` threads and the draft with one, all
    /// on the first `threads` cores.
    pub fn shipped(binary: PathBuf, models: &Path, dtype: &str, threads: usize) -> Self {
        let cores = format!("0-{}", threads.max(1) - 1);
        Self {
            binary,
            target: models.join("target"),
            draft: Some(models.join("draft")),
            target_model: json!({"dtype": dtype, "threads": threads, "kv_mib": 64}),
            draft_model: json!({"dtype": dtype, "threads": 1, "kv_mib": 64}),
            service: json!({"policy": "Speculative", "prefix_cache": false}),
            draft_cores: cores.clone(),
            cores,
            tcp: false,
        }
    }

    /// Starts everything and waits until a token can be served.
    pub async fn start(&self) -> anyhow::Result<Stack> {
        let folder = tempfile::tempdir()?;
        let mut stack = Stack {
            children: Vec::new(),
            base: String::new(),
            target: Address::loopback(0),
            folder,
        };
        let at = |name: &str| -> anyhow::Result<String> {
            Ok(if self.tcp {
                format!("http://127.0.0.1:{}", free_port()?)
            } else {
                format!("unix:{}", stack.folder.path().join(name).display())
            })
        };
        let (target, draft) = (at("target.sock")?, at("draft.sock")?);
        let mut service = self.service.clone();
        stack.target = target.parse()?;
        service["instance"] = json!("target");
        service["listen"] = json!([target]);
        if let Some(model) = &self.draft {
            let config = json!({"model": section(&self.draft_model, model),
                "service": {"instance": "draft", "listen": [draft]}});
            stack.spawn(self, "draft", &self.draft_cores, &config)?;
            service["endpoints"] = json!([{"name": "draft", "address": draft}]);
        }
        let config =
            json!({"model": section(&self.target_model, &self.target), "service": service});
        stack.spawn(self, "target", &self.cores, &config)?;
        let listen = format!("127.0.0.1:{}", free_port()?);
        let config = json!({"listen": listen, "models": [{"name": MODEL, "folder": self.target}],
            "targets": [{"name": "target", "model": MODEL, "address": target}]});
        stack.spawn(self, "router", &self.cores, &config)?;
        stack.base = format!("http://{listen}");
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

fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Running processes; they end when it is dropped.
#[derive(Debug)]
pub struct Stack {
    children: Vec<(&'static str, Child)>,
    base: String,
    target: Address,
    folder: tempfile::TempDir,
}

impl Stack {
    /// Where the target listens.
    pub fn target(&self) -> &Address {
        &self.target
    }

    /// A client of its router.
    pub fn client(&self) -> Client {
        Client::new(&self.base, MODEL)
    }

    /// CPU time (user and system) that a service has used so far.
    pub fn cpu_time(&self, service: &str) -> anyhow::Result<Duration> {
        let (_, child) = self
            .children
            .iter()
            .find(|(name, _)| *name == service)
            .context("no such service")?;
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id()))?;
        let after_name = stat.rsplit_once(')').context("unexpected /proc stat")?.1;
        let ticks: u64 = after_name
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|f| f.parse::<u64>().ok())
            .sum();
        Ok(Duration::from_millis(ticks * 10)) // Linux reports hundredths of a second
    }

    fn spawn(
        &mut self,
        setup: &Setup,
        service: &'static str,
        cores: &str,
        config: &Value,
    ) -> anyhow::Result<()> {
        let path = self.folder.path().join(format!("{service}.json"));
        fs::write(&path, config.to_string())?;
        let log = fs::File::create(self.folder.path().join(format!("{service}.log")))?;
        let mut command = if cores.is_empty() {
            Command::new(&setup.binary)
        } else {
            let mut pinned = Command::new("taskset");
            pinned.args(["-c", cores]).arg(&setup.binary);
            pinned
        };
        command
            .arg(service)
            .arg("--config")
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", setup.binary.display()))?;
        self.children.push((service, child));
        Ok(())
    }

    async fn wait_ready(&mut self) -> anyhow::Result<()> {
        let http = reqwest::Client::new();
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            for (name, child) in &mut self.children {
                if let Some(status) = child.try_wait()? {
                    let log = fs::read_to_string(self.folder.path().join(format!("{name}.log")));
                    bail!("{name} ended with {status}: {}", log.unwrap_or_default());
                }
            }
            let answer = http.get(format!("{}/ready", self.base)).send().await;
            if answer.is_ok_and(|a| a.status().is_success()) {
                // The target meets its draft on its own time; windows flow from the second request.
                tokio::time::sleep(Duration::from_millis(500)).await;
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "the router is not ready after 60 s; logs are in {}",
                    self.folder.path().display()
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        for (_, child) in self.children.iter_mut().rev() {
            // Already gone is as good as killed.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
