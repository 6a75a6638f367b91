//! `foretoken draft`: a speculation endpoint.

use foretoken_draft::{BindError, DraftConfig, DraftService};
use foretoken_protocol::Address;
use serde::{Deserialize, Serialize};

use crate::{
    child::{self, ServiceArgs},
    failure::usage,
    model::{Loaded, ModelConfig},
};

/// Arguments of `foretoken draft`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    service: ServiceArgs,
    #[command(flatten)]
    model: ModelConfig,
    /// Name of this replica
    #[arg(long)]
    instance: Option<String>,
    /// Where targets connect, http://HOST:PORT or unix:/PATH; repeatable [default: any free port]
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<Address>,
    /// Where /metrics, /health and /ready are served, HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<String>,
    /// Most sessions at once
    #[arg(long, value_name = "N")]
    max_sessions: Option<usize>,
    /// Do not keep keys and values of finished sessions
    #[arg(long)]
    no_prefix_cache: bool,
}

/// Configuration file of a draft.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    /// The model.
    pub(crate) model: ModelConfig,
    /// The service.
    pub(crate) service: DraftConfig,
}

/// Loads the model and serves until told to stop.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let reporter = args.service.reporter();
    let stop = args.service.stop_token()?;
    let File {
        model,
        service: mut config,
    } = args.into_file()?;
    let runtime = child::small_runtime()?;
    let Loaded {
        runner,
        folder: _,
        eos: _,
        tokenizer_digest,
    } = model.load(&runtime, reporter)?;
    if config.tokenizer_digest.is_empty() {
        config.tokenizer_digest = tokenizer_digest;
    }
    let _context = runtime.enter();
    let service = DraftService::bind(config, runner).map_err(|error| match error {
        BindError::Config(problem) => usage(problem.to_string()),
        BindError::Listen(_) | BindError::Metrics(_) => error.into(),
    })?;
    reporter.ready(service.addresses().map(ToString::to_string).collect());
    child::run(&runtime, &stop, service.run(stop.clone()))
}

impl Args {
    fn into_file(self) -> anyhow::Result<File> {
        let Self {
            service,
            model: model_flags,
            instance,
            listen,
            metrics_listen,
            max_sessions,
            no_prefix_cache,
        } = self;
        let File {
            model,
            service: mut config,
        } = service.read::<File>()?;
        config.instance = instance.unwrap_or(config.instance);
        config.metrics_listen = metrics_listen.or(config.metrics_listen);
        config.max_sessions = max_sessions.unwrap_or(config.max_sessions);
        if !listen.is_empty() {
            config.listen = listen;
        }
        config.prefix_cache &= !no_prefix_cache;
        Ok(File {
            model: model.overridden_by(model_flags),
            service: config,
        })
    }
}
