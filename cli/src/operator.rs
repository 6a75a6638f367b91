//! `foretoken operator`: makes a cluster what its objects say.

use std::sync::{Arc, atomic::AtomicBool};

use anyhow::Context as _;
use foretoken_operator::{
    Certificates, Election, Issuer, Options, Settings, operate, retire, verify,
};
use foretoken_service::observation::{Observation, Signs};
use tokio_util::sync::CancellationToken;

use crate::{child, failure::usage, output};

/// Arguments of `foretoken operator`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Image of the pods that it makes, with this program in it
    #[arg(
        long,
        env = "FORETOKEN_IMAGE",
        value_name = "IMAGE",
        required_unless_present_any = ["verify", "retire"]
    )]
    image: Option<String>,
    /// When nodes pull images: Always, IfNotPresent or Never [default: as Kubernetes decides]
    #[arg(long, value_name = "WHEN", value_parser = ["Always", "IfNotPresent", "Never"])]
    image_pull_policy: Option<String>,
    /// Hub that hf:// models are downloaded from, or a mirror of it [default: the public one]
    #[arg(long, value_name = "URL")]
    hub_endpoint: Option<String>,
    /// Where certificates of services come from: the operator's own authority, cert-manager, or off,
    /// which leaves everything between services in clear text
    #[arg(long, value_enum, default_value_t = Source::Own)]
    certificates: Source,
    /// ClusterIssuer of cert-manager, or Issuer/NAME for one that each namespace has
    #[arg(
        long,
        value_name = "NAME",
        required_if_eq("certificates", "cert-manager")
    )]
    issuer: Option<String>,
    /// Namespace of the lease by which one of several operators is chosen [default: its own]
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// What tells this operator from others [default: host and process]
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    identity: Option<String>,
    /// Work without a lease: there is no other operator
    #[arg(long)]
    alone: bool,
    /// Where /health and /ready are served, HOST:PORT [default: nowhere]
    #[arg(long, value_name = "ADDRESS")]
    metrics_listen: Option<String>,
    /// Only see whether the cluster knows the kinds and an operator works there, and say so
    #[arg(long, conflicts_with = "alone")]
    verify: bool,
    /// Only take the finalizer off all endpoints, once the operator was taken out of a cluster: without
    /// it, nobody lets them go
    #[arg(long, conflicts_with_all = ["alone", "verify"])]
    retire: bool,
}

/// Where certificates come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Source {
    Own,
    CertManager,
    Off,
}

impl Source {
    fn certificates(self, issuer: Option<&str>) -> Certificates {
        match self {
            Self::Own => Certificates::Own,
            Self::Off => Certificates::Off,
            Self::CertManager => {
                let issuer = issuer.unwrap_or_default();
                let (kind, name) = issuer.split_once('/').unwrap_or(("ClusterIssuer", issuer));
                Certificates::CertManager(Issuer {
                    kind: kind.to_owned(),
                    name: name.to_owned(),
                })
            }
        }
    }
}

/// Works until told to stop.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        image,
        image_pull_policy,
        hub_endpoint,
        certificates,
        issuer,
        namespace,
        identity,
        alone,
        metrics_listen,
        verify: only_verify,
        retire: only_retire,
    } = args;
    let runtime = child::small_runtime()?;
    if only_verify {
        let holder = runtime.block_on(verify(namespace.as_deref()))?;
        let text = format!("the cluster knows the kinds, and {holder} works\n");
        return Ok(output::print(&text)?);
    }
    if only_retire {
        let released = runtime.block_on(retire())?;
        return Ok(output::print(&format!(
            "{released} endpoints had the operator's finalizer, and none has it any more\n"
        ))?);
    }
    let image = image
        .filter(|image| !image.is_empty())
        .ok_or_else(|| usage("--image is empty; it must name an image with foretoken in it"))?;
    let identity = identity.unwrap_or_else(own_name);
    let ready = Arc::<AtomicBool>::default();
    let signs = Signs {
        ready: Arc::clone(&ready),
        ..Signs::default()
    };
    let options = Options {
        settings: Settings {
            image,
            image_pull_policy,
            hub_endpoint,
            certificates: certificates.certificates(issuer.as_deref()),
        },
        election: (!alone).then_some(Election {
            namespace,
            identity,
        }),
        ready,
    };
    let observation = metrics_listen.as_deref().map(Observation::bind);
    let observation = observation.transpose()?;
    let stop = CancellationToken::new();
    let work = async {
        let served = CancellationToken::new();
        let pages = observation.map(|port| tokio::spawn(port.serve_signs(signs, served.clone())));
        let result = operate(options, stop.clone()).await;
        served.cancel();
        if let Some(pages) = pages {
            pages.await.context("the observation port failed")??;
        }
        anyhow::Ok(result?)
    };
    child::run(&runtime, &stop, work)
}

/// A name that no other process has: of one that died, the lease is waited for.
fn own_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let now = std::time::SystemTime::UNIX_EPOCH
        .elapsed()
        .unwrap_or_default();
    format!("{}-{}-{}", host.trim(), std::process::id(), now.as_millis())
}

#[cfg(test)]
mod tests {
    use foretoken_draft::DraftConfig;
    use foretoken_router::RouterConfig;
    use foretoken_target::TargetConfig;

    use crate::service::File;

    /// Texts of the files called `name` in what the operator wants for the example.
    fn files(name: &str) -> Vec<(String, String)> {
        let text = include_str!("../../operator/tests/golden/shared-endpoint.yaml");
        let documents = text.split("\n---\n").filter_map(|document| {
            let value: serde_json::Value = serde_saphyr::from_str(document).ok()?;
            let text = value["data"][name].as_str()?.to_owned();
            Some((value["metadata"]["name"].as_str()?.to_owned(), text))
        });
        documents.collect()
    }

    #[test]
    fn services_understand_what_the_operator_writes() {
        let mut read = 0;
        for (name, text) in files("service.json") {
            let result = match name.as_str() {
                "story-draft" => serde_json::from_str::<File<DraftConfig>>(&text).map(|_| ()),
                "story-target" => serde_json::from_str::<File<TargetConfig>>(&text).map(|_| ()),
                _ => serde_json::from_str::<RouterConfig>(&text).map(|config| {
                    assert!(config.check().is_ok(), "{name}");
                }),
            };
            assert!(result.is_ok(), "{name}: {result:?}");
            read += 1;
        }
        assert_eq!(read, 5);
        for (_, text) in files("registry.json") {
            let directory: foretoken_registry::Directory = serde_json::from_str(&text).unwrap();
            assert_eq!(directory.check(), Ok(()));
            assert_eq!(directory.pools.endpoints.len(), 1);
        }
    }
}
