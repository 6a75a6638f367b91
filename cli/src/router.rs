//! `foretoken router`: `OpenAI`'s HTTP API in front of targets.

use anyhow::Context as _;
use foretoken_protocol::Address;
use foretoken_registry::TargetEntry;
use foretoken_router::{BindError, ModelConfig, Router, RouterConfig};

use crate::{
    child::{self, HttpArgs, ServiceArgs, TlsArgs},
    failure::usage,
    model::{Part, resolve},
    registry::RegistryArgs,
};

/// Arguments of `foretoken router`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    service: ServiceArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    http: HttpArgs,
    /// Where HTTP is served, HOST:PORT [default: 127.0.0.1:8000]
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Model whose tokenizer and chat template are used: a folder, file:///path or hf://owner/name
    #[arg(long, value_name = "URI")]
    model: Option<String>,
    /// Name that clients use for the model [default: target]
    #[arg(long, value_name = "NAME", requires = "model")]
    model_name: Option<String>,
    /// Address of a target, http://HOST:PORT or unix:/PATH; repeatable
    #[arg(long, value_name = "ADDRESS")]
    target: Vec<Address>,
    #[command(flatten)]
    registry: RegistryArgs,
}

/// Serves until told to stop.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let reporter = args.service.reporter();
    let stop = args.service.stop_token()?;
    let runtime = tokio::runtime::Runtime::new().context("cannot start the runtime")?;
    let config = runtime.block_on(args.into_config())?;
    let router = runtime
        .block_on(Router::bind(config))
        .map_err(|error| match error {
            BindError::Config(_) => usage(error.to_string()),
            BindError::Model(_)
            | BindError::Registry(_)
            | BindError::Tls(_)
            | BindError::Keys(_)
            | BindError::Listen { .. } => error.into(),
        })?;
    let address = router.address().to_string();
    let _context = runtime.enter();
    let (tracer, exporting) = child::traces("router", &address);
    let router = router.traced_by(tracer);
    reporter.ready(vec![format!("http://{address}")], Some(address));
    let served = async {
        let served = router.run(stop.clone()).await;
        exporting.finish().await;
        served
    };
    child::run(&runtime, &stop, served)
}

impl Args {
    async fn into_config(self) -> anyhow::Result<RouterConfig> {
        let Self {
            service,
            tls,
            http,
            listen,
            model,
            model_name,
            target,
            registry,
        } = self;
        let mut config = service.read::<RouterConfig>()?;
        config.listen = listen.unwrap_or(config.listen);
        tls.overrides(&mut config.tls);
        http.overrides(&mut config)?;
        config.registry = registry.over(config.registry)?;
        if model.is_none() && config.models.is_empty() {
            return Err(usage("no model is given: use --model"));
        }
        let model = model.map(|uri| (model_name.unwrap_or_else(|| "target".to_owned()), uri));
        if let Some(twice) = repeated(&target) {
            return Err(usage(format!("--target {twice} is given twice")));
        }
        if !target.is_empty() {
            let name = match (&model, config.models.as_slice()) {
                (Some((name, _)), _) => name,
                (None, [model]) => &model.name,
                (None, _) => {
                    return Err(usage(
                        "--target is of one model, and the configuration has several: list targets there",
                    ));
                }
            };
            // Not by numbers: those of a registry may have these.
            let entry = |address: Address| TargetEntry {
                name: address.to_string(),
                model: name.clone(),
                address,
                serves: None,
            };
            config.targets = target.into_iter().map(entry).collect();
        }
        has_targets(&config)?;
        if let Some((name, uri)) = model {
            let folder = resolve(&uri, Part::Text).await?;
            config.models = vec![ModelConfig { name, folder }];
        }
        Ok(config)
    }
}

/// The first that is there before, if any.
fn repeated(addresses: &[Address]) -> Option<&Address> {
    let mut others = addresses.iter().enumerate();
    let found = others.find(|(i, address)| addresses[..*i].contains(address));
    found.map(|(_, address)| address)
}

/// Refuses what could only ever answer that there is no target.
fn has_targets(config: &RouterConfig) -> anyhow::Result<()> {
    if config.targets.is_empty() && config.registry.is_none() {
        return Err(usage(
            "no target is given: use --target ADDRESS for each, or --registry, where targets are found",
        ));
    }
    Ok(())
}
