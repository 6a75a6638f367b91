//! What `target`, `draft` and `router` have in common: where their configuration comes from and
//! how they run.

use std::{env, fs, future::Future, path::PathBuf};

use anyhow::Context as _;
use foretoken_protocol::tls::TlsFiles;
use foretoken_router::RouterConfig;
use foretoken_telemetry::{Exporting, Settings, Tracer};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::{failure::usage, report::Reporter, stop};

/// Flags of every service.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct ServiceArgs {
    /// Configuration, YAML or JSON; flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Report on standard output, obey standard input, and end when it does
    #[arg(long, hide = true)]
    child: bool,
}

impl ServiceArgs {
    /// The configuration of the file, or the defaults.
    pub(crate) fn read<T: DeserializeOwned + Default>(&self) -> anyhow::Result<T> {
        let Some(path) = &self.config else {
            return Ok(T::default());
        };
        let text = fs::read_to_string(path)
            .map_err(|error| usage(format!("cannot read {}: {error}", path.display())))?;
        serde_saphyr::from_str(&text)
            .map_err(|error| usage(format!("{} is not valid: {error}", path.display())))
    }

    /// Where this service reports.
    pub(crate) fn reporter(&self) -> Reporter {
        Reporter::new(self.child)
    }

    /// A token that is cancelled when the parent, if there is one, says so. To be called before
    /// anything that takes long.
    pub(crate) fn stop_token(&self) -> anyhow::Result<CancellationToken> {
        let stop = CancellationToken::new();
        if self.child {
            stop::follow_parent(stop.clone()).context("cannot watch the parent process")?;
        }
        Ok(stop)
    }
}

/// Flags of whoever serves HTTP to users.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct HttpArgs {
    /// API key of which requests must bring one (Authorization: Bearer KEY); repeatable
    #[arg(
        long,
        value_name = "KEY",
        env = "FORETOKEN_API_KEY",
        hide_env_values = true,
        value_delimiter = ','
    )]
    api_key: Vec<String>,
    /// More of them: a file with one on each line, or a folder of such files; read again when it changes
    #[arg(long, value_name = "PATH")]
    api_keys_from: Option<PathBuf>,
    /// Origin whose web pages may ask besides those of this machine, SCHEME://HOST or
    /// SCHEME://HOST:PORT, or * for all; repeatable
    #[arg(long, value_name = "ORIGIN")]
    allowed_origin: Vec<String>,
}

impl HttpArgs {
    /// Whether any keys are said.
    pub(crate) fn have_keys(&self) -> bool {
        !self.api_key.is_empty() || self.api_keys_from.is_some()
    }

    /// Puts what was said in place of what the configuration says.
    pub(crate) fn overrides(&self, config: &mut RouterConfig) {
        let Self {
            api_key,
            api_keys_from,
            allowed_origin,
        } = self;
        if !api_key.is_empty() {
            config.api_keys.clone_from(api_key);
        }
        if api_keys_from.is_some() {
            config.api_keys_from.clone_from(api_keys_from);
        }
        if !allowed_origin.is_empty() {
            config.allowed_origins.clone_from(allowed_origin);
        }
    }
}

/// Flags of every service that shows others a certificate.
#[derive(Debug, Default, clap::Args)]
#[expect(clippy::struct_field_names, reason = "flags are called after fields")]
pub(crate) struct TlsArgs {
    /// Certificate in PEM, shown to other services over TCP
    #[arg(long, value_name = "FILE", requires_all = ["tls_key", "tls_ca"])]
    tls_certificate: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Authorities whose certificates other services may have
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_ca: Option<PathBuf>,
}

impl TlsArgs {
    /// Puts what was said in place of what the configuration says.
    pub(crate) fn overrides(self, tls: &mut Option<TlsFiles>) {
        let Self {
            tls_certificate,
            tls_key,
            tls_ca,
        } = self;
        // They come together or not at all.
        if let (Some(certificate), Some(key), Some(ca)) = (tls_certificate, tls_key, tls_ca) {
            *tls = Some(TlsFiles {
                certificate,
                key,
                ca,
            });
        }
    }
}

/// Runs a service on `runtime` until it ends or a signal stops it.
pub(crate) fn run<E>(
    runtime: &tokio::runtime::Runtime,
    stop: &CancellationToken,
    service: impl Future<Output = Result<(), E>>,
) -> anyhow::Result<()>
where
    anyhow::Error: From<E>,
{
    stop::serving();
    runtime.block_on(async {
        let signals = tokio::spawn(stop::on_signals(stop.clone()));
        let result = service.await;
        signals.abort();
        result.map_err(anyhow::Error::from)
    })
}

/// Begins to send traces, if the environment says where to; on a runtime.
pub(crate) fn traces(service: &str, instance: &str) -> (Tracer, Exporting) {
    let settings = Settings::from_environment(service, instance, |name| env::var(name).ok());
    Tracer::start(settings.as_ref())
}

/// Runtime for a service that has threads of its own for the work.
pub(crate) fn small_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")
}
