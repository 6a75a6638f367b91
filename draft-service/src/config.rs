//! What a speculation endpoint is told when it starts.

use std::{path::PathBuf, time::Duration};

use foretoken_protocol::{Address, link::TransportOptions, tls::TlsFiles};
use foretoken_registry::RegistryConfig;
use foretoken_service::config::{OutOfRange, at_least_one, seconds};
use foretoken_speculation::policy::draft::MAX_BRANCHES;
use serde::{Deserialize, Serialize};

/// Everything an endpoint needs besides its model. Every field has a default, so a file names
/// only what differs; unknown fields are errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DraftConfig {
    /// Name of this replica, in logs, metrics and answers. Default `draft`.
    pub instance: String,
    /// Where targets connect: `http://host:port` (port 0: any free one) or `unix:/path`; several
    /// are served at once. Default `http://127.0.0.1:0`.
    pub listen: Vec<Address>,
    /// Its certificate, and whose it accepts, for everything that comes over TCP: targets are whoever
    /// their certificates say. Default none: clear text, and targets are believed.
    pub tls: Option<TlsFiles>,
    /// A file that says which namespaces' deployments may use the endpoint, `"all"` or
    /// `{"only": ["NAMESPACE"]}`, read again when it changes; one that is taken away loses its
    /// sessions. Default none: all.
    pub grants: Option<PathBuf>,
    /// Where `/metrics`, `/health`, `/ready`, `/status` and `/rounds` are served, `host:port`; none:
    /// nowhere. Default none.
    pub metrics_listen: Option<String>,
    /// Where the endpoint makes itself known, if it does: etcd. Default none.
    pub registry: Option<RegistryConfig>,
    /// How it makes itself known there. Default not at all.
    pub announce: Option<AnnounceConfig>,
    /// Digest of the tokenizer. A target with another one is refused; empty: not compared.
    pub tokenizer_digest: String,
    /// Most sessions at once; more are refused. Default 64.
    pub max_sessions: usize,
    /// Most token rows in one step; 0: what the runner can do. Default 0.
    pub max_step_rows: usize,
    /// Most rows of a step that prefill may take, so that windows are not held up. Default 64.
    pub prefill_rows: usize,
    /// What namespaces may use. Default none: no limits but the ones above, and equal shares.
    pub quotas: Vec<QuotaConfig>,
    /// Longest window that is drafted, whatever a target asks. Default 32.
    pub max_lookahead: u32,
    /// Most outcomes of a verification that a session drafts for, whatever a target asks; 0: none.
    /// Default 256.
    pub max_branches: u32,
    /// Keep KV of finished sessions for later ones. Default true.
    pub prefix_cache: bool,
    /// How long a session may be silent before its slot is taken back. Default 60 s.
    #[serde(rename = "lease_seconds", with = "seconds")]
    pub lease: Duration,
    /// How long open sessions may go on once the endpoint is told to stop; targets go on without it.
    /// Default 1 s.
    #[serde(rename = "grace_seconds", with = "seconds")]
    pub grace: Duration,
    /// How long the engine thread looks for messages before it sleeps, at most, while they come that
    /// soon and nobody else wants its core. Default 1 ms.
    #[serde(rename = "spin_seconds", with = "seconds")]
    pub spin: Duration,
    /// Take a few steps before serving (half a second, more if steps are slow), so that the first
    /// session is not slower and it is known what steps cost. Default true.
    pub warm_up: bool,
}

/// How an endpoint makes itself known to targets. Its name is that of the instance.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AnnounceConfig {
    /// Where targets dial it. Default: the first address of `listen`.
    pub address: Option<Address>,
    /// Share of sessions it should get relative to the others; 0: none. Default 1.
    pub weight: u32,
    /// How long it is missed before it is taken for dead. Default 10 s.
    #[serde(rename = "lease_seconds", with = "seconds")]
    pub lease: Duration,
}

impl Default for AnnounceConfig {
    fn default() -> Self {
        Self {
            address: None,
            weight: 1,
            lease: Duration::from_secs(10),
        }
    }
}

/// What the deployments of one namespace may use together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaConfig {
    /// Whose; it is in targets' certificates, or what they say when they dial.
    pub namespace: String,
    /// Most sessions at once. Default no limit of its own.
    #[serde(default)]
    pub max_slots: Option<usize>,
    /// Share of what is scarce relative to others': its deployments divide it. Default: each
    /// deployment has 1.
    #[serde(default)]
    pub weight: Option<u32>,
}

impl Default for DraftConfig {
    fn default() -> Self {
        Self {
            instance: "draft".into(),
            listen: vec![Address::loopback(0)],
            tls: None,
            grants: None,
            metrics_listen: None,
            registry: None,
            announce: None,
            tokenizer_digest: String::new(),
            max_sessions: 64,
            max_step_rows: 0,
            prefill_rows: 64,
            quotas: Vec::new(),
            max_lookahead: 32,
            max_branches: MAX_BRANCHES,
            prefix_cache: true,
            lease: Duration::from_secs(60),
            grace: Duration::from_secs(1),
            spin: TransportOptions::default().spin,
            warm_up: true,
        }
    }
}

impl DraftConfig {
    /// Checks the fields that have a range.
    pub fn validate(&self) -> Result<(), OutOfRange> {
        at_least_one(&[
            ("listen", self.listen.len()),
            ("max_sessions", self.max_sessions),
            ("prefill_rows", self.prefill_rows),
            ("max_lookahead", self.max_lookahead as usize),
        ])?;
        if self.announce.is_some() && !matches!(self.registry, Some(RegistryConfig::Etcd(_))) {
            let allowed = "left out unless registry is etcd";
            return Err(OutOfRange::new("announce", "given", allowed));
        }
        for (index, quota) in self.quotas.iter().enumerate() {
            at_least_one(&[
                ("quotas.max_slots", quota.max_slots.unwrap_or(1)),
                ("quotas.weight", quota.weight.unwrap_or(1) as usize),
            ])?;
            let same = |other: &QuotaConfig| other.namespace == quota.namespace;
            if self.quotas[..index].iter().any(same) {
                let name = &quota.namespace;
                return Err(OutOfRange::new("quotas.namespace", name, "named once"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_size_is_named() {
        let config = DraftConfig {
            max_sessions: 0,
            ..DraftConfig::default()
        };
        let message = config
            .validate()
            .expect_err("no session could open")
            .to_string();
        assert_eq!(message, "max_sessions is 0; it must be at least 1");
        assert_eq!(DraftConfig::default().validate(), Ok(()));
    }

    #[test]
    fn quotas_are_of_different_namespaces_and_leave_something() {
        let quota = |namespace: &str, max_slots, weight| QuotaConfig {
            namespace: namespace.into(),
            max_slots,
            weight,
        };
        let problem = |quotas: Vec<QuotaConfig>| {
            let config = DraftConfig {
                quotas,
                ..DraftConfig::default()
            };
            config.validate().map_err(|problem| problem.to_string())
        };
        assert_eq!(
            problem(vec![quota("a", Some(1), None), quota("b", None, Some(2))]),
            Ok(())
        );
        for (quotas, message) in [
            (
                vec![quota("a", Some(0), None)],
                "quotas.max_slots is 0; it must be at least 1",
            ),
            (
                vec![quota("a", None, Some(0))],
                "quotas.weight is 0; it must be at least 1",
            ),
            (
                vec![quota("a", None, None); 2],
                "quotas.namespace is a; it must be named once",
            ),
        ] {
            assert_eq!(problem(quotas), Err(message.to_owned()));
        }
    }
}
