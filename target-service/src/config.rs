//! What a target is told when it starts.

mod lookahead;
mod policy;

use std::time::Duration;

use foretoken_protocol::{Address, link::TransportOptions, tls::TlsFiles};
use foretoken_registry::RegistryConfig;
use foretoken_service::config::{OutOfRange, at_least_one, seconds};
use foretoken_speculation::{
    TokenId,
    policy::{Lookahead, Policy, draft::MAX_BRANCHES},
    proposal::Proposer,
};
use serde::{Deserialize, Serialize};

pub use self::{
    lookahead::{InvalidLookahead, LookaheadConfig},
    policy::{
        DeliveryName, FallbackName, FanOutName, OnLossName, PolicyName, SsdConfig, TreesName,
        VerificationConfig,
    },
};

/// Everything a target needs besides its model. Every field has a default, so a file names only
/// what differs; unknown fields are errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TargetConfig {
    /// Name of this replica, in logs, metrics and answers. Default `target`.
    pub instance: String,
    /// Namespace of the deployment it belongs to: endpoints give shares and quotas by it. Default
    /// none.
    pub namespace: String,
    /// Name of that deployment. Default none: the target stands for itself.
    pub deployment: String,
    /// Where routers connect: `http://host:port` (port 0: any free one) or `unix:/path`; several
    /// are served at once. Default `http://127.0.0.1:0`.
    pub listen: Vec<Address>,
    /// Its certificate, and whose it accepts, for everything that goes over TCP: routers have to be of
    /// its namespace, and endpoints be endpoints. Default none: clear text.
    pub tls: Option<TlsFiles>,
    /// Where `/metrics`, `/health`, `/ready`, `/status` and `/rounds` are served, `host:port`; none:
    /// nowhere. Default none.
    pub metrics_listen: Option<String>,
    /// Show token ids to listeners of `/rounds` that ask for them. They are what users said and
    /// were answered. Default false.
    pub observe_tokens: bool,
    /// Digest of the tokenizer. An endpoint with another one is refused; empty: not compared.
    pub tokenizer_digest: String,
    /// Tokens that end an output. Default none.
    pub eos: Vec<u32>,
    /// Policy of requests that name none. Default `Speculative`.
    pub policy: PolicyName,
    /// Lookahead of requests that name none. Default adaptive up to 12.
    pub lookahead: LookaheadConfig,
    /// Parameters of requests with policy `SSD`.
    pub ssd: SsdConfig,
    /// What requests that want speculation do while no endpoint serves them. Default `Plain`.
    pub on_loss: OnLossName,
    /// The rule by which proposals are accepted. Default `Coupled`.
    pub verification: VerificationConfig,
    /// Whether endpoints may propose trees of tokens. Default `Off`.
    pub trees: TreesName,
    /// Longest that a request waits for a window, whatever was learned of the endpoint; then it
    /// goes on without. Usually it waits for little more than the slowest of recent answers.
    /// Default 500 ms.
    #[serde(rename = "patience_seconds", with = "seconds")]
    pub patience: Duration,
    /// Most requests that decode at once. Default 64.
    pub max_running: usize,
    /// Most requests that wait for a place; more are turned away as busy. At least
    /// 1, since all requests come by it. Default 1024.
    pub max_waiting: usize,
    /// Most token rows in one step; 0: what the runner can do. Default 0.
    pub max_step_rows: usize,
    /// Most rows of a step that prefill may take, so that running requests are not held up;
    /// 0: half of the step's. Default 0.
    pub prefill_rows: usize,
    /// Keep KV of finished prompts for later ones. Default true.
    pub prefix_cache: bool,
    /// Speculation endpoints, best first; a request may name its own order among them.
    pub endpoints: Vec<EndpointConfig>,
    /// Where further endpoints are found, after those of `endpoints`: a file that is read again when
    /// it changes, the Services of a cluster, or etcd. Default none.
    pub registry: Option<RegistryConfig>,
    /// How the target makes itself known there, which has to be etcd then. Default not at all.
    pub announce: Option<AnnounceConfig>,
    /// How long running requests may take to finish once the target is told to stop.
    /// Default 30 s.
    #[serde(rename = "grace_seconds", with = "seconds")]
    pub grace: Duration,
    /// How long the engine thread looks for messages before it sleeps, at most, while they come that
    /// soon and nobody else wants its core. Default 1 ms.
    #[serde(rename = "spin_seconds", with = "seconds")]
    pub spin: Duration,
    /// Measure step costs before serving (well under a second). Default true.
    pub warm_up: bool,
}

impl Default for TargetConfig {
    fn default() -> Self {
        Self {
            instance: "target".into(),
            namespace: String::new(),
            deployment: String::new(),
            listen: vec![Address::loopback(0)],
            tls: None,
            metrics_listen: None,
            observe_tokens: false,
            tokenizer_digest: String::new(),
            eos: Vec::new(),
            policy: PolicyName::Speculative,
            lookahead: LookaheadConfig::Adaptive { max: 12 },
            ssd: SsdConfig::default(),
            on_loss: OnLossName::Plain,
            verification: VerificationConfig::Coupled,
            trees: TreesName::Off,
            patience: Duration::from_millis(500),
            max_running: 64,
            max_waiting: 1024,
            max_step_rows: 0,
            prefill_rows: 0,
            prefix_cache: true,
            endpoints: Vec::new(),
            registry: None,
            announce: None,
            grace: Duration::from_secs(30),
            spin: TransportOptions::default().spin,
            warm_up: true,
        }
    }
}

/// A speculation endpoint and where it listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointConfig {
    /// Name by which requests ask for it.
    pub name: String,
    /// `http://host:port` or `unix:/path`.
    pub address: Address,
}

/// How a target makes itself known to routers. Its name is that of the instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnnounceConfig {
    /// Name under which users ask for its model.
    pub model: String,
    /// Where routers dial it. Default: the first address of `listen`.
    #[serde(default)]
    pub address: Option<Address>,
    /// How long it is missed before it is taken for dead. Default 10 s.
    #[serde(rename = "lease_seconds", with = "seconds", default = "default_lease")]
    pub lease: Duration,
}

fn default_lease() -> Duration {
    AnnounceConfig::LEASE
}

impl AnnounceConfig {
    /// How long it is missed before it is taken for dead, unless something else is configured.
    pub const LEASE: Duration = Duration::from_secs(10);
}

/// Why a configuration cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A value outside its range.
    #[error(transparent)]
    Range(#[from] OutOfRange),
    /// A policy that does not exist.
    #[error("unknown policy {0:?}; known are Autoregressive, Speculative and SSD")]
    Policy(String),
}

/// Largest window that is ever asked for: a window's rows and the one before it fit one ancestor
/// word of a tree step, and longer windows never pay.
pub const MAX_LOOKAHEAD: u32 = 32;

impl TargetConfig {
    /// Checks the fields that have a range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        at_least_one(&[
            ("listen", self.listen.len()),
            ("max_running", self.max_running),
            ("max_waiting", self.max_waiting),
        ])?;
        check_lookahead(self.lookahead.most())?;
        check_lookahead(self.ssd.lookahead.most())?;
        if let VerificationConfig::Rejection { support } = self.verification
            && !(1..=Proposer::MAX_SUPPORT).contains(&support)
        {
            let allowed = format!("1 to {}", Proposer::MAX_SUPPORT);
            return Err(OutOfRange::new("verification.support", support, allowed).into());
        }
        if self.announce.is_some() && !matches!(self.registry, Some(RegistryConfig::Etcd(_))) {
            let allowed = "left out unless registry is etcd";
            return Err(OutOfRange::new("announce", "given", allowed).into());
        }
        let budget = self.ssd.budget;
        if budget > MAX_BRANCHES {
            let allowed = format!("0 to {MAX_BRANCHES}");
            return Err(OutOfRange::new("ssd.budget", budget, allowed).into());
        }
        let SsdConfig {
            fallback, delivery, ..
        } = self.ssd;
        let asks = matches!(fallback, FallbackName::Auto | FallbackName::Remote);
        if delivery == DeliveryName::Pull && !asks {
            // Only the endpoint knows what it prepared.
            let allowed = "Auto or Remote with delivery Pull";
            return Err(OutOfRange::new("ssd.fallback", format!("{fallback:?}"), allowed).into());
        }
        Ok(())
    }

    /// The policy of requests that name none.
    pub fn default_policy(&self) -> Policy {
        match self.policy {
            PolicyName::Autoregressive => Policy::Autoregressive,
            PolicyName::Speculative => Policy::Speculative(self.lookahead.into()),
            PolicyName::Ssd => Policy::Ssd(self.ssd.into()),
        }
    }

    /// The policy of a request that may name its own policy and lookahead.
    pub fn policy_of(
        &self,
        policy: Option<&str>,
        lookahead: Option<u32>,
    ) -> Result<Policy, ConfigError> {
        if let Some(k) = lookahead {
            check_lookahead(k)?;
        }
        let name = match policy {
            None => self.policy,
            Some(name) => {
                PolicyName::parse(name).ok_or_else(|| ConfigError::Policy(name.into()))?
            }
        };
        Ok(match name {
            PolicyName::Autoregressive => Policy::Autoregressive,
            PolicyName::Speculative => Policy::Speculative(
                lookahead.map_or_else(|| self.lookahead.into(), Lookahead::Fixed),
            ),
            PolicyName::Ssd => Policy::Ssd(
                SsdConfig {
                    lookahead: lookahead.map_or(self.ssd.lookahead, LookaheadConfig::Fixed),
                    ..self.ssd
                }
                .into(),
            ),
        })
    }

    /// The end-of-sequence tokens.
    pub fn eos_tokens(&self) -> Vec<TokenId> {
        self.eos.iter().copied().map(TokenId).collect()
    }
}

fn check_lookahead(k: u32) -> Result<(), ConfigError> {
    if k <= MAX_LOOKAHEAD {
        return Ok(());
    }
    let allowed = format!("0 to {MAX_LOOKAHEAD}");
    Err(OutOfRange::new("lookahead", k, allowed).into())
}

#[cfg(test)]
mod tests {
    use foretoken_speculation::{fallback::OnMiss, fanout::FanOut, policy::SsdOptions};

    use super::*;

    #[test]
    fn a_request_may_override_policy_and_lookahead() {
        let config = TargetConfig::default();
        assert_eq!(
            config.policy_of(None, None),
            Ok(Policy::Speculative(Lookahead::Adaptive { max: 12 }))
        );
        assert_eq!(
            config.policy_of(None, Some(3)),
            Ok(Policy::Speculative(Lookahead::Fixed(3)))
        );
        assert_eq!(
            config.policy_of(Some("Autoregressive"), Some(3)),
            Ok(Policy::Autoregressive)
        );
        let ssd = |lookahead| {
            Ok(Policy::Ssd(SsdOptions {
                lookahead,
                ..SsdOptions::default()
            }))
        };
        let adaptive = ssd(Lookahead::Adaptive { max: 15 });
        assert_eq!(config.policy_of(Some("SSD"), None), adaptive);
        let fixed = ssd(Lookahead::Fixed(3));
        assert_eq!(config.policy_of(Some("SSD"), Some(3)), fixed);
        let unknown = config
            .policy_of(Some("ssd"), None)
            .expect_err("no such name");
        assert_eq!(
            unknown.to_string(),
            "unknown policy \"ssd\"; known are Autoregressive, Speculative and SSD"
        );
        assert!(config.policy_of(None, Some(MAX_LOOKAHEAD + 1)).is_err());
    }

    #[test]
    fn a_value_out_of_range_is_named() {
        let config = TargetConfig {
            max_running: 0,
            ..TargetConfig::default()
        };
        let message = config
            .validate()
            .expect_err("nothing could run")
            .to_string();
        assert_eq!(message, "max_running is 0; it must be at least 1");
        assert_eq!(TargetConfig::default().validate(), Ok(()));
        let mut config = TargetConfig::default();
        config.ssd.budget = MAX_BRANCHES + 1;
        assert!(config.validate().is_err());
        for (fallback, is_allowed) in [
            (FallbackName::Auto, true),
            (FallbackName::Remote, true),
            (FallbackName::Local, false),
            (FallbackName::Nothing, false),
            (FallbackName::LockStep, false),
        ] {
            let mut config = TargetConfig::default();
            config.ssd.fallback = fallback;
            assert_eq!(config.validate(), Ok(()));
            config.ssd.delivery = DeliveryName::Pull;
            assert_eq!(config.validate().is_ok(), is_allowed, "{fallback:?}");
        }
    }

    #[test]
    fn options_of_ssd_are_what_was_configured() {
        let config = SsdConfig {
            lookahead: LookaheadConfig::Fixed(7),
            budget: 12,
            fan_out: FanOutName::Uniform,
            fallback: FallbackName::Local,
            delivery: DeliveryName::Pull,
        };
        assert_eq!(SsdConfig::from(SsdOptions::from(config)), config);
    }

    #[test]
    fn names_of_options_of_ssd_mean_what_they_say() {
        for (fan_out, means) in [
            (FanOutName::Learned, FanOut::Learned),
            (FanOutName::Geometric, FanOut::Geometric),
            (FanOutName::Uniform, FanOut::Uniform),
        ] {
            let config = SsdConfig {
                fan_out,
                ..SsdConfig::default()
            };
            assert_eq!(SsdOptions::from(config).fan_out, means);
        }
        for (fallback, means) in [
            (FallbackName::Nothing, OnMiss::Nothing),
            (FallbackName::Local, OnMiss::Local),
            (FallbackName::Remote, OnMiss::Remote),
            (FallbackName::Auto, OnMiss::Auto),
            (FallbackName::LockStep, OnMiss::LockStep),
        ] {
            let config = SsdConfig {
                fallback,
                ..SsdConfig::default()
            };
            assert_eq!(SsdOptions::from(config).fallback, means);
        }
    }
}
