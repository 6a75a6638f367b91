//! The router from outside: HTTP on one side, scripted targets on the other, all on loopback.

#![expect(
    clippy::float_cmp,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test is to fail where it stands, and its numbers are exact"
)]

mod bodies;
mod client;
mod completions;
mod ends;
mod errors;
mod faults;
mod golden;
mod limits;
mod logprobs;
mod origins;
mod pages;
mod replays;
mod slow_clients;
mod streams;
mod target;
mod unsupported;
mod usage;

use std::{net::SocketAddr, path::PathBuf, sync::Arc};

use foretoken_protocol::Address;
use foretoken_registry::TargetEntry;
use foretoken_router::{ModelConfig, Router, RouterConfig};
use tokio_util::sync::CancellationToken;

use client::Client;
use target::{Script, Target};

/// A router with its targets; all end when it is dropped.
struct Setup {
    address: SocketAddr,
    targets: Vec<Arc<Target>>,
    stop: CancellationToken,
}

impl Drop for Setup {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The folder of the model that the project ships: its tokenizer is what text goes through.
fn model_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/target")
}

fn entry(name: &str, address: Address) -> TargetEntry {
    TargetEntry {
        name: name.into(),
        model: "tiny".into(),
        address,
        serves: None,
    }
}

fn config() -> RouterConfig {
    RouterConfig {
        listen: "127.0.0.1:0".into(),
        models: vec![ModelConfig {
            name: "tiny".into(),
            folder: model_folder(),
        }],
        replay: std::time::Duration::from_secs(10),
        grace: std::time::Duration::ZERO,
        ..RouterConfig::default()
    }
}

/// Starts a router with `config` and waits until its targets are ready.
async fn start_with(mut config: RouterConfig, scripts: Vec<Script>) -> Setup {
    let stop = CancellationToken::new();
    let mut targets = Vec::new();
    for (i, script) in scripts.into_iter().enumerate() {
        let name = format!("target-{i}");
        let target = Target::start(&name, script, stop.clone());
        config.targets.push(entry(&name, target.address.clone()));
        targets.push(target);
    }
    let router = Router::bind(config).await.expect("binds");
    let setup = Setup {
        address: router.address(),
        targets,
        stop: stop.clone(),
    };
    tokio::spawn(router.run(stop));
    if !setup.targets.is_empty() {
        setup.wait_ready().await;
    }
    setup
}

async fn start(script: Script) -> Setup {
    start_with(config(), vec![script]).await
}

impl Setup {
    fn client(&self) -> Client {
        Client::new(self.address)
    }

    async fn wait_ready(&self) {
        loop {
            let ready = self.client().get("/ready").await;
            let listed = &ready.json()["models"][0];
            if listed["targets_ready"] == listed["targets_listed"] {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    async fn metric(&self, name: &str) -> f64 {
        let page = self.client().get("/metrics").await;
        let line = page
            .text()
            .lines()
            .find(|line| line.starts_with(name))
            .map(str::to_owned);
        line.and_then(|line| line.rsplit(' ').next()?.parse().ok())
            .unwrap_or(0.0)
    }
}
