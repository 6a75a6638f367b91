//! `foretoken target`: the model that decides every token.

use foretoken_protocol::Address;
use foretoken_target::{
    BindError, EndpointConfig, LookaheadConfig, PolicyName, TargetConfig, TargetService,
};
use serde::{Deserialize, Serialize};

use crate::{
    child::{self, ServiceArgs},
    failure::usage,
    model::{Loaded, ModelConfig},
};

/// Arguments of `foretoken target`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    service: ServiceArgs,
    #[command(flatten)]
    model: ModelConfig,
    /// Name of this replica
    #[arg(long)]
    instance: Option<String>,
    /// Where routers connect, http://HOST:PORT or unix:/PATH; repeatable [default: any free port]
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<Address>,
    /// Where /metrics, /health and /ready are served, HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<String>,
    /// Policy of requests that name none: Autoregressive or Speculative
    #[arg(long, value_parser = parse_policy)]
    policy: Option<PolicyName>,
    /// Lookahead of requests that name none: a number, or adaptive:MAX
    #[arg(long, value_name = "K", value_parser = parse_lookahead)]
    lookahead: Option<LookaheadConfig>,
    /// Speculation endpoint as NAME=ADDRESS, or ADDRESS; repeatable, best first
    #[arg(long, value_name = "ENDPOINT", value_parser = parse_endpoint)]
    endpoint: Vec<EndpointConfig>,
    /// Do not keep keys and values of finished prompts
    #[arg(long)]
    no_prefix_cache: bool,
}

/// Configuration file of a target.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct File {
    /// The model.
    pub(crate) model: ModelConfig,
    /// The service.
    pub(crate) service: TargetConfig,
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
        eos,
        tokenizer_digest,
    } = model.load(&runtime, reporter)?;
    if config.eos.is_empty() {
        config.eos = eos;
    }
    if config.tokenizer_digest.is_empty() {
        config.tokenizer_digest = tokenizer_digest;
    }
    let _context = runtime.enter();
    let service = TargetService::bind(config, runner).map_err(|error| match error {
        BindError::Config(problem) => usage(problem.to_string()),
        BindError::Listen(_) | BindError::Metrics(_) => error.into(),
    })?;
    tokio::spawn(reporter.follow(service.links()));
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
            policy,
            lookahead,
            endpoint,
            no_prefix_cache,
        } = self;
        let File {
            model,
            service: mut config,
        } = service.read::<File>()?;
        config.instance = instance.unwrap_or(config.instance);
        config.metrics_listen = metrics_listen.or(config.metrics_listen);
        config.policy = policy.unwrap_or(config.policy);
        config.lookahead = lookahead.unwrap_or(config.lookahead);
        if !listen.is_empty() {
            config.listen = listen;
        }
        if !endpoint.is_empty() {
            config.endpoints = endpoint;
        }
        config.prefix_cache &= !no_prefix_cache;
        Ok(File {
            model: model.overridden_by(model_flags),
            service: config,
        })
    }
}

fn parse_policy(text: &str) -> Result<PolicyName, String> {
    match text {
        "Autoregressive" => Ok(PolicyName::Autoregressive),
        "Speculative" => Ok(PolicyName::Speculative),
        _ => Err("must be Autoregressive or Speculative".into()),
    }
}

fn parse_lookahead(text: &str) -> Result<LookaheadConfig, String> {
    let message = || "must be a whole number, or adaptive:MAX".to_owned();
    match text.strip_prefix("adaptive:") {
        Some(max) => Ok(LookaheadConfig::Adaptive {
            max: max.parse().map_err(|_| message())?,
        }),
        None => Ok(LookaheadConfig::Fixed(text.parse().map_err(|_| message())?)),
    }
}

fn parse_endpoint(text: &str) -> Result<EndpointConfig, String> {
    let (name, address) = match text.split_once('=') {
        Some((name, address)) => (name, address),
        None => (text, text),
    };
    let address = address.parse().map_err(|error| format!("{error}"))?;
    Ok(EndpointConfig {
        name: name.to_owned(),
        address,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookahead_is_fixed_or_adaptive() {
        assert_eq!(parse_lookahead("5"), Ok(LookaheadConfig::Fixed(5)));
        assert_eq!(
            parse_lookahead("adaptive:7"),
            Ok(LookaheadConfig::Adaptive { max: 7 })
        );
        assert!(parse_lookahead("many").is_err());
    }

    #[test]
    fn an_endpoint_without_a_name_is_called_by_its_address() {
        let named = parse_endpoint("d=http://127.0.0.1:1").unwrap();
        assert_eq!(named.name, "d");
        let bare = parse_endpoint("unix:/d.sock").unwrap();
        assert_eq!(bare.name, "unix:/d.sock");
        assert_eq!(named.address, "http://127.0.0.1:1".parse().unwrap());
        assert!(parse_endpoint("d=nowhere").is_err());
    }
}
