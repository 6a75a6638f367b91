//! The configuration of every process.

use std::{fs::File, io::Write as _, num::NonZeroUsize, os::unix::fs::OpenOptionsExt as _};

use anyhow::Context as _;
use foretoken_configuration::{SIMULATED_DRAFT, SIMULATED_TARGET};
use foretoken_draft::DraftConfig;
use foretoken_protocol::Address;
use foretoken_registry::{Directory, EndpointEntry, TargetEntry, write_directory};
use foretoken_router::RouterConfig;
use foretoken_speculation::policy::Policy;
use foretoken_target::TargetConfig;
use serde::Serialize;

use super::{
    plan::{Draft, Plan, Replicas},
    state::StateFolder,
};
use crate::{draft, failure::usage, model::ModelConfig, target};

/// Where services show their metrics and rounds: on this machine, at any free port, which
/// `state.json` names.
const OBSERVATION: &str = "127.0.0.1:0";

/// What flags add to the plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning {
    /// Threads of each target.
    pub(super) target_threads: Option<usize>,
    /// Threads of each draft.
    pub(super) draft_threads: Option<usize>,
    /// MiB of keys and values of each target.
    pub(super) target_kv_mib: Option<u64>,
    /// MiB of keys and values of each draft.
    pub(super) draft_kv_mib: Option<u64>,
    /// Whether keys and values are kept between requests.
    pub(super) prefix_cache: bool,
}

/// A process to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Program {
    /// Name, unique among the processes.
    pub(super) name: String,
    /// Arguments of this executable.
    pub(super) arguments: Vec<String>,
    /// Variables that its environment gets, unless they are there.
    pub(super) environment: Vec<(&'static str, String)>,
    /// What it is.
    pub(super) role: Role,
}

/// What a process is to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// It talks to clients, and drains first.
    Router,
    /// It decides.
    Target,
    /// It proposes.
    Draft {
        /// Where targets reach it.
        address: Address,
        /// Its share of sessions.
        weight: u32,
    },
}

impl Role {
    /// The command that runs it.
    fn command(&self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Target => "target",
            Self::Draft { .. } => "draft",
        }
    }
}

/// Writes all configurations and returns the processes; the router comes last, because it needs
/// the others. `router` is what it is told besides who exists.
pub(super) fn render(
    plan: &Plan,
    state: &StateFolder,
    router: RouterConfig,
    tuning: Tuning,
) -> anyhow::Result<Vec<Program>> {
    let mut directory = Directory::default();
    let mut programs = Vec::new();
    for pool in &plan.drafts {
        let called = plan.name_of(pool);
        for replica in 0..pool.replicas.count {
            let name = format!("draft-{called}-{replica}");
            let listen = Address::Unix(state.socket(&name)?);
            let file = draft_file(pool, &name, &listen, tuning)?;
            let weight = pool.weight;
            let role = Role::Draft {
                address: listen.clone(),
                weight,
            };
            programs.push(program(state, &name, (role, &pool.traces), &file)?);
            directory.endpoints.push(EndpointEntry {
                name,
                address: listen,
                weight,
                serves: None,
            });
        }
    }
    let registry = state.file("registry.json");
    for replica in 0..plan.target.count {
        let name = format!("target-{replica}");
        let listen = Address::Unix(state.socket(&name)?);
        let mut file = target_file(plan, &name, &listen, tuning)?;
        file.service.registry = Some(registry.clone().into());
        programs.push(program(state, &name, (Role::Target, &plan.traces), &file)?);
        let model = plan.served_name.clone();
        directory.targets.push(TargetEntry {
            name,
            model,
            address: listen,
            serves: None,
        });
    }
    write_directory(&registry, &directory)?;
    let router = RouterConfig {
        models: vec![foretoken_router::ModelConfig {
            name: plan.served_name.clone(),
            folder: plan.target.uri.clone().into(),
        }],
        registry: Some(registry.into()),
        ..router
    };
    programs.push(program(
        state,
        "router",
        (Role::Router, &plan.traces),
        &router,
    )?);
    Ok(programs)
}

fn target_file(
    plan: &Plan,
    name: &str,
    listen: &Address,
    tuning: Tuning,
) -> anyhow::Result<target::File> {
    let threads = tuning
        .target_threads
        .or_else(|| beside_drafts(plan, tuning));
    Ok(target::File {
        model: model(&plan.target, SIMULATED_TARGET)?.overridden_by(ModelConfig {
            threads,
            kv_mib: tuning.target_kv_mib,
            ..ModelConfig::default()
        }),
        service: TargetConfig {
            instance: name.to_owned(),
            listen: vec![listen.clone()],
            metrics_listen: Some(OBSERVATION.to_owned()),
            prefix_cache: tuning.prefix_cache,
            ..plan.service.clone()
        },
    })
}

fn draft_file(
    pool: &Draft,
    name: &str,
    listen: &Address,
    tuning: Tuning,
) -> anyhow::Result<draft::File> {
    let threads = tuning.draft_threads.unwrap_or_else(draft_threads);
    Ok(draft::File {
        model: model(&pool.replicas, SIMULATED_DRAFT)?.overridden_by(ModelConfig {
            threads: Some(threads),
            kv_mib: tuning.draft_kv_mib,
            ..ModelConfig::default()
        }),
        service: DraftConfig {
            instance: name.to_owned(),
            listen: vec![listen.clone()],
            metrics_listen: Some(OBSERVATION.to_owned()),
            prefix_cache: tuning.prefix_cache,
            ..pool.service.clone()
        },
    })
}

/// Threads of a draft on a machine that it shares with its targets: a draft is small, its steps
/// are short, and more threads would take cores from the target for nothing.
fn draft_threads() -> usize {
    cores().div_ceil(4)
}

/// Threads of a target whose drafts compute while it does: the cores that one of them leaves. None: one per
/// core, since target and draft take turns, or there is no draft.
fn beside_drafts(plan: &Plan, tuning: Tuning) -> Option<usize> {
    let at_once = matches!(plan.policy, Policy::Ssd(_)) && !plan.drafts.is_empty();
    let drafts = tuning.draft_threads.unwrap_or_else(draft_threads);
    at_once.then(|| cores().saturating_sub(drafts).max(1))
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// A model, with these settings if it is simulated.
fn model(replicas: &Replicas, simulated: &str) -> anyhow::Result<ModelConfig> {
    let Replicas {
        uri,
        dtype,
        kv_mib,
        count: _,
        is_simulated,
    } = replicas;
    let simulated = is_simulated.then(|| simulated.parse().map_err(usage));
    Ok(ModelConfig {
        model: Some(uri.clone()),
        dtype: Some(*dtype),
        kv_mib: *kv_mib,
        simulated: simulated.transpose()?,
        ..ModelConfig::default()
    })
}

/// Writes the configuration of a process.
fn program(
    state: &StateFolder,
    name: &str,
    (role, environment): (Role, &[(&'static str, String)]),
    config: &impl Serialize,
) -> anyhow::Result<Program> {
    let path = state.file(&format!("{name}.json"));
    let text = serde_json::to_string_pretty(config)?;
    // API keys are in one of them.
    let mut options = File::options();
    options.write(true).create(true).truncate(true).mode(0o600);
    options
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    let path = path
        .to_str()
        .context("the path of the state folder must be UTF-8")?
        .to_owned();
    Ok(Program {
        name: name.to_owned(),
        arguments: vec![
            role.command().to_owned(),
            "--config".to_owned(),
            path,
            "--child".to_owned(),
        ],
        environment: environment.to_vec(),
        role,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use foretoken_crds::Manifest;

    use super::*;

    const BOTH: &str = "
apiVersion: foretoken.io/v1alpha1
kind: SpecDecodeDeployment
metadata: {name: story}
spec:
  model: {uri: /target}
  target: {kvCacheMemory: 2Gi}
  speculation:
    policy: {type: Speculative}
    endpoints: [{name: tiny}]
---
apiVersion: foretoken.io/v1alpha1
kind: SpeculationEndpoint
metadata: {name: tiny}
spec: {model: {uri: /draft}, kvCacheMemory: 100Mi}
";

    /// How the target and the draft of these objects compute.
    fn told(objects: &str, tuning: Tuning) -> [ModelConfig; 2] {
        let manifest = Manifest::parse(objects).unwrap();
        let plan = Plan::new(&manifest, Path::new("/"), None).unwrap();
        let listen = Address::loopback(1);
        let target = target_file(&plan, "target-0", &listen, tuning).unwrap();
        let draft = draft_file(&plan.drafts[0], "draft-0", &listen, tuning).unwrap();
        [target.model, draft.model]
    }

    /// No flags.
    const UNTUNED: Tuning = Tuning {
        target_threads: None,
        draft_threads: None,
        target_kv_mib: None,
        draft_kv_mib: None,
        prefix_cache: true,
    };

    #[test]
    fn a_target_leaves_cores_to_a_draft_that_computes_while_it_does() {
        let ahead = BOTH.replace("Speculative", "SSD");
        let [target, draft] = told(&ahead, UNTUNED).map(|model| model.threads.unwrap());
        assert!(target + draft == cores() || cores() == 1);
        let of_target = |objects: &str, tuning| told(objects, tuning)[0].threads;
        let whole = Tuning {
            draft_threads: Some(cores()),
            ..UNTUNED
        };
        assert_eq!(of_target(&ahead, whole), Some(1));
        let given = Tuning {
            target_threads: Some(7),
            ..UNTUNED
        };
        assert_eq!(of_target(&ahead, given), Some(7));
        assert_eq!(of_target(BOTH, UNTUNED), None, "they take turns");
    }

    #[test]
    fn memory_for_keys_and_values_is_what_a_flag_says_or_the_file_or_nobody() {
        let flags = |target_kv_mib, draft_kv_mib| Tuning {
            target_kv_mib,
            draft_kv_mib,
            ..UNTUNED
        };
        let told = |objects, tuning| told(objects, tuning).map(|model| model.kv_mib);
        assert_eq!(told(BOTH, flags(None, None)), [Some(2048), Some(100)]);
        assert_eq!(told(BOTH, flags(Some(3), None)), [Some(3), Some(100)]);
        assert_eq!(told(BOTH, flags(None, Some(4))), [Some(2048), Some(4)]);
        let neither = BOTH.replace("{kvCacheMemory: 2Gi}", "{}");
        let neither = neither.replace(", kvCacheMemory: 100Mi", "");
        assert_eq!(told(&neither, flags(None, None)), [None, None]);
    }
}
