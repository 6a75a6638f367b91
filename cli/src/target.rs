//! `foretoken target`: the model that decides every token.

use std::net::SocketAddr;

use foretoken_engine::runner::ModelRunner;
use foretoken_protocol::Address;
use foretoken_target::{
    AnnounceConfig, BindError, EndpointConfig, LookaheadConfig, PolicyName, TargetConfig,
    TargetService,
};
use foretoken_telemetry::Tracer;
use tokio_util::sync::CancellationToken;

use crate::{
    failure::usage,
    group::GroupArgs,
    model::Dtype,
    registry::RegistryArgs,
    report::Reporter,
    service::{self, Fields, Service},
};

/// Arguments of `foretoken target`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("instance", |arg| arg.help("Name of this replica [default: target]")))]
pub(crate) struct Args {
    #[command(flatten)]
    service: service::EngineArgs,
    /// Policy of requests that name none: Autoregressive, Speculative or SSD [default: Speculative]
    #[arg(long, value_parser = parse_policy)]
    policy: Option<PolicyName>,
    /// Lookahead of requests that name none: a number, or adaptive:MAX [default: adaptive:12,
    /// adaptive:15 with SSD]
    #[arg(long, value_name = "K")]
    lookahead: Option<LookaheadConfig>,
    /// Speculation endpoint as NAME=ADDRESS, or ADDRESS; repeatable, best first
    #[arg(long, value_name = "ENDPOINT", value_parser = parse_endpoint)]
    endpoint: Vec<EndpointConfig>,
    #[command(flatten)]
    registry: RegistryArgs,
    /// Make itself known in the registry, which has to be etcd, as a target of the model that users
    /// call so
    #[arg(long, value_name = "MODEL")]
    announce: Option<String>,
    /// Where routers dial it then [default: the first --listen]
    #[arg(long, value_name = "ADDRESS", requires = "announce")]
    announce_address: Option<Address>,
    /// Show token ids to listeners of /rounds that ask for them: what users said and were answered
    #[arg(long)]
    observe_tokens: bool,
    #[command(flatten)]
    group: GroupArgs,
}

/// Configuration file of a target.
pub(crate) type File = service::File<TargetConfig>;

/// Loads the model and serves until told to stop.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        service,
        policy,
        lookahead,
        endpoint,
        registry,
        announce,
        announce_address,
        observe_tokens,
        group,
    } = args;
    service::run::<TargetService>(service, group.group()?, |config| {
        config.policy = policy.unwrap_or(config.policy);
        set_lookahead(config, lookahead);
        config.observe_tokens |= observe_tokens;
        if !endpoint.is_empty() {
            config.endpoints = endpoint;
        }
        config.registry = registry.over(config.registry.take())?;
        if let Some(model) = announce {
            config.announce = Some(AnnounceConfig {
                model,
                address: announce_address,
                lease: AnnounceConfig::LEASE,
            });
        }
        Ok(())
    })
}

/// Both policies that look ahead do as they are told: a request may name either.
fn set_lookahead(config: &mut TargetConfig, lookahead: Option<LookaheadConfig>) {
    let Some(lookahead) = lookahead else { return };
    config.lookahead = lookahead;
    config.ssd.lookahead = lookahead;
}

impl Service for TargetService {
    type Config = TargetConfig;

    const NAME: &str = "target";
    const DTYPE: Dtype = Dtype::Bf16;

    fn fields(config: &mut TargetConfig) -> Fields<'_> {
        Fields {
            instance: &mut config.instance,
            listen: &mut config.listen,
            metrics_listen: &mut config.metrics_listen,
            tls: &mut config.tls,
            prefix_cache: &mut config.prefix_cache,
            tokenizer_digest: &mut config.tokenizer_digest,
            eos: Some(&mut config.eos),
        }
    }

    fn bind(config: TargetConfig, runner: Box<dyn ModelRunner>) -> anyhow::Result<Self> {
        Self::bind(config, runner).map_err(|error| match error {
            BindError::Config(problem) => usage(problem.to_string()),
            BindError::Listen(_) | BindError::Metrics(_) | BindError::Tls(_) => error.into(),
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

    async fn run(self, reporter: Reporter, stop: CancellationToken) -> anyhow::Result<()> {
        tokio::spawn(reporter.follow(self.links()));
        Ok(self.run(stop).await?)
    }
}

fn parse_policy(text: &str) -> Result<PolicyName, String> {
    PolicyName::parse(text).ok_or_else(|| format!("must be one of {}", PolicyName::ALL.join(", ")))
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
    fn a_lookahead_is_that_of_whichever_policy_a_request_has() {
        let mut config = TargetConfig::default();
        set_lookahead(&mut config, None);
        assert_eq!(config, TargetConfig::default());
        set_lookahead(&mut config, Some(LookaheadConfig::Fixed(3)));
        for policy in ["Speculative", "SSD"] {
            let asked = config.policy_of(Some(policy), Some(3));
            assert_eq!(config.policy_of(Some(policy), None), asked, "{policy}");
        }
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
