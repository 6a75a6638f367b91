//! What `foretoken target` and `foretoken draft` have in common: a model, and a service around it.

use std::net::SocketAddr;

use foretoken_engine::runner::ModelRunner;
use foretoken_protocol::{Address, tls::TlsFiles};
use foretoken_telemetry::Tracer;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio_util::sync::CancellationToken;

use crate::{
    child::{self, ServiceArgs, TlsArgs},
    group::{Group, Next},
    model::{Dtype, Loaded, ModelConfig},
    report::Reporter,
};

/// Flags of both.
#[derive(Debug, clap::Args)]
pub(crate) struct EngineArgs {
    #[command(flatten)]
    process: ServiceArgs,
    #[command(flatten)]
    model: ModelConfig,
    /// Name of this replica
    #[arg(long)]
    instance: Option<String>,
    /// Where it listens, http://HOST:PORT or unix:/PATH; repeatable [default: any free port]
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<Address>,
    #[command(flatten)]
    tls: TlsArgs,
    /// Where /metrics, /health, /ready, /status and /rounds are served, HOST:PORT [default: nowhere]
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<String>,
    /// Do not keep keys and values of what has ended
    #[arg(long)]
    no_prefix_cache: bool,
}

/// Configuration file of a service with a model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(
    deny_unknown_fields,
    default,
    bound(deserialize = "C: Deserialize<'de> + Default")
)]
pub(crate) struct File<C> {
    /// The model.
    pub(crate) model: ModelConfig,
    /// The service.
    pub(crate) service: C,
}

/// Fields that the configurations of both have.
pub(crate) struct Fields<'a> {
    pub(crate) instance: &'a mut String,
    pub(crate) listen: &'a mut Vec<Address>,
    pub(crate) metrics_listen: &'a mut Option<String>,
    pub(crate) tls: &'a mut Option<TlsFiles>,
    pub(crate) prefix_cache: &'a mut bool,
    pub(crate) tokenizer_digest: &'a mut String,
    /// Tokens that end an output, where that matters.
    pub(crate) eos: Option<&'a mut Vec<u32>>,
}

/// A service around a model.
pub(crate) trait Service: Sized {
    /// What it is told.
    type Config: Default + DeserializeOwned;

    /// What it is, as traces call it.
    const NAME: &str;

    /// How weights are kept unless somebody says otherwise.
    const DTYPE: Dtype;

    /// The fields of `config` that both have.
    fn fields(config: &mut Self::Config) -> Fields<'_>;

    /// Binds its sockets. A configuration that cannot be served is a usage error.
    fn bind(config: Self::Config, runner: Box<dyn ModelRunner>) -> anyhow::Result<Self>;

    /// The same, with somebody to record what is done for requests.
    fn traced_by(self, tracer: Tracer) -> Self;

    /// Where it listens.
    fn addresses(&self) -> Vec<String>;

    /// Where it shows its metrics.
    fn metrics_address(&self) -> Option<SocketAddr>;

    /// Serves until `stop`, and drains.
    async fn run(self, reporter: Reporter, stop: CancellationToken) -> anyhow::Result<()>;
}

/// Loads the model and serves until told to stop, as one of a `group` of processes if there is one.
/// `adjust` sets what flags of the service's own say.
pub(crate) fn run<S: Service>(
    args: EngineArgs,
    group: Option<Group>,
    adjust: impl FnOnce(&mut S::Config) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let reporter = args.process.reporter();
    let stop = args.process.stop_token()?;
    let File {
        mut model,
        service: mut config,
    } = args.into_file::<S>()?;
    model.dtype.get_or_insert(S::DTYPE);
    adjust(&mut config)?;
    let runtime = child::small_runtime()?;
    if let Some(group) = group {
        let observed = S::fields(&mut config).metrics_listen.clone();
        let is_simulated = model.simulated.is_some();
        match group.join(&runtime, is_simulated, observed.as_deref(), &stop)? {
            Next::Serve => {}
            Next::End => return Ok(()),
        }
    }
    let Loaded {
        runner,
        longest,
        folder: _,
        eos,
        tokenizer_digest,
    } = model.load(&runtime, reporter)?;
    let served = runner.info().max_positions;
    if served < longest {
        tracing::warn!(
            "sequences have {served} tokens at most, of the model's {longest}: there is no more \
             memory for keys and values (kvCacheMemory of its object, or --kv-mib)"
        );
    }
    let fields = S::fields(&mut config);
    if fields.tokenizer_digest.is_empty() {
        *fields.tokenizer_digest = tokenizer_digest;
    }
    if let Some(known) = fields.eos.filter(|known| known.is_empty()) {
        *known = eos;
    }
    let _context = runtime.enter();
    let (tracer, exporting) = child::traces(S::NAME, fields.instance);
    let service = S::bind(config, runner)?.traced_by(tracer);
    let metrics = service.metrics_address().map(|address| address.to_string());
    reporter.ready(service.addresses(), metrics);
    let served = async {
        let served = service.run(reporter, stop.clone()).await;
        exporting.finish().await;
        served
    };
    child::run(&runtime, &stop, served)
}

impl EngineArgs {
    /// The configuration: what the file says, unless a flag says otherwise.
    fn into_file<S: Service>(self) -> anyhow::Result<File<S::Config>> {
        let Self {
            process,
            model: model_flags,
            instance,
            listen,
            tls,
            metrics_listen,
            no_prefix_cache,
        } = self;
        let File { model, mut service } = process.read::<File<S::Config>>()?;
        let fields = S::fields(&mut service);
        if let Some(instance) = instance {
            *fields.instance = instance;
        }
        if !listen.is_empty() {
            *fields.listen = listen;
        }
        if metrics_listen.is_some() {
            *fields.metrics_listen = metrics_listen;
        }
        tls.overrides(fields.tls);
        *fields.prefix_cache &= !no_prefix_cache;
        Ok(File {
            model: model.overridden_by(model_flags),
            service,
        })
    }
}

#[cfg(test)]
mod tests;
