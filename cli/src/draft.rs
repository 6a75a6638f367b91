//! `foretoken draft`: a speculation endpoint.

use std::net::SocketAddr;

use foretoken_draft::{AnnounceConfig, BindError, DraftConfig, DraftService};
use foretoken_engine::runner::ModelRunner;
use foretoken_protocol::Address;
use foretoken_telemetry::Tracer;
use tokio_util::sync::CancellationToken;

use crate::{
    failure::usage,
    model::Dtype,
    registry::RegistryArgs,
    report::Reporter,
    service::{self, Fields, Service},
};

/// Arguments of `foretoken draft`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("instance", |arg| arg.help("Name of this replica [default: draft]")))]
#[command(mut_arg("dtype", |arg| arg.help("How weights are kept [default: int8]")))]
pub(crate) struct Args {
    #[command(flatten)]
    service: service::EngineArgs,
    /// Most sessions at once [default: 64]
    #[arg(long, value_name = "N")]
    max_sessions: Option<usize>,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Make itself known in the registry, which has to be etcd
    #[arg(long)]
    announce: bool,
    /// Where targets dial it then [default: the first --listen]
    #[arg(long, value_name = "ADDRESS", requires = "announce")]
    announce_address: Option<Address>,
    /// Its share of sessions relative to others' [default: 1]
    #[arg(long, value_name = "N", requires = "announce")]
    weight: Option<u32>,
}

/// Configuration file of a draft.
pub(crate) type File = service::File<DraftConfig>;

/// Loads the model and serves until told to stop.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        service,
        max_sessions,
        registry,
        announce,
        announce_address,
        weight,
    } = args;
    service::run::<DraftService>(service, None, |config| {
        config.max_sessions = max_sessions.unwrap_or(config.max_sessions);
        config.registry = registry.over(config.registry.take())?;
        if announce {
            let default = AnnounceConfig::default();
            config.announce = Some(AnnounceConfig {
                address: announce_address,
                weight: weight.unwrap_or(default.weight),
                ..default
            });
        }
        Ok(())
    })
}

impl Service for DraftService {
    type Config = DraftConfig;

    const NAME: &str = "draft";
    const DTYPE: Dtype = Dtype::OF_DRAFTS;

    fn fields(config: &mut DraftConfig) -> Fields<'_> {
        Fields {
            instance: &mut config.instance,
            listen: &mut config.listen,
            metrics_listen: &mut config.metrics_listen,
            tls: &mut config.tls,
            prefix_cache: &mut config.prefix_cache,
            tokenizer_digest: &mut config.tokenizer_digest,
            eos: None,
        }
    }

    fn bind(config: DraftConfig, runner: Box<dyn ModelRunner>) -> anyhow::Result<Self> {
        Self::bind(config, runner).map_err(|error| match error {
            BindError::Config(problem) => usage(problem.to_string()),
            BindError::Listen(_)
            | BindError::Metrics(_)
            | BindError::Tls(_)
            | BindError::Grants(_) => error.into(),
        })
    }

    fn traced_by(self, tracer: Tracer) -> Self {
        self.traced_by(tracer)
    }

    fn addresses(&self) -> Vec<String> {
        self.addresses().map(ToString::to_string).collect()
    }

    fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address()
    }

    async fn run(self, _reporter: Reporter, stop: CancellationToken) -> anyhow::Result<()> {
        Ok(self.run(stop).await?)
    }
}
