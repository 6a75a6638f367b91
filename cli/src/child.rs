//! What `target`, `draft` and `router` have in common: where their configuration comes from and
//! how they run.

use std::{env, fs, future::Future, path::PathBuf};

use anyhow::Context as _;
use foretoken_protocol::tls::TlsFiles;
use foretoken_router::{ConfigError, RouterConfig};
use foretoken_telemetry::{Exporting, Settings, Tracer};
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::{
    failure::usage,
    report::Reporter,
    stop::{self, Signals},
};

/// Variable with API keys, for those who do not want them on a command line.
pub(crate) const API_KEY: &str = "FORETOKEN_API_KEY";

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
    /// [env: FORETOKEN_API_KEY]
    #[arg(long, value_name = "KEY", value_delimiter = ',')]
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
        !self.keys().is_empty() || self.api_keys_from.is_some()
    }

    /// The keys of flags, or of the environment. Read here and not by clap, so that a variable that is
    /// there without a key says nothing, and an empty `--api-key` is still refused.
    fn keys(&self) -> Vec<String> {
        if !self.api_key.is_empty() {
            return self.api_key.clone();
        }
        let variable = env::var_os(API_KEY).unwrap_or_default();
        let keys = variable.to_string_lossy();
        keys_in(&keys).map(ToOwned::to_owned).collect()
    }

    /// Puts what was said in place of what the configuration says, or refuses it.
    pub(crate) fn overrides(&self, config: &mut RouterConfig) -> anyhow::Result<()> {
        let Self {
            api_key: _,
            api_keys_from,
            allowed_origin,
        } = self;
        let keys = self.keys();
        if !keys.is_empty() {
            config.api_keys = keys;
        }
        if api_keys_from.is_some() {
            config.api_keys_from.clone_from(api_keys_from);
        }
        if !allowed_origin.is_empty() {
            config.allowed_origins.clone_from(allowed_origin);
        }
        let problems = config.check().err().unwrap_or_default();
        let mut wrong: Vec<String> = problems
            .iter()
            .filter_map(|problem| self.blamed(problem))
            .collect();
        wrong.dedup();
        if let Some(path) = api_keys_from
            && let Err(error) = foretoken_router::check_keys(path)
        {
            wrong.push(format!("--api-keys-from: {error}"));
        }
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(usage(wrong.join("\n")))
        }
    }

    /// A problem of what was said here, by the name of the flag or variable that said it.
    fn blamed(&self, problem: &ConfigError) -> Option<String> {
        let ConfigError::Value {
            field,
            value,
            allowed,
        } = problem;
        let (field, _) = field.split_once('[')?;
        let said_by = match field {
            "api_keys" if !self.api_key.is_empty() => "--api-key",
            "api_keys" if !self.keys().is_empty() => API_KEY,
            "allowed_origins" if !self.allowed_origin.is_empty() => "--allowed-origin",
            _ => return None,
        };
        Some(format!("{said_by} is {value}; it must be {allowed}"))
    }
}

/// The keys in a list with commas between them.
pub(crate) fn keys_in(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').filter(|key| !key.is_empty())
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
    let signals = Signals::new()?;
    runtime.block_on(async {
        let signals = tokio::spawn(stop::on_signals(signals, stop.clone()));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_keys_may_be_empty_or_end_in_a_comma() {
        for (list, keys) in [("", &[][..]), (",", &[]), (",a,,b,", &["a", "b"])] {
            assert_eq!(keys_in(list).collect::<Vec<_>>(), keys, "{list:?}");
        }
    }

    #[test]
    fn wrong_flags_are_refused_by_their_names_and_what_a_file_says_is_not_blamed_on_them() {
        let refusal = |keys: &[&str], origins: &[&str]| {
            let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
            let flags = HttpArgs {
                api_key: owned(keys),
                api_keys_from: None,
                allowed_origin: owned(origins),
            };
            let mut config = RouterConfig {
                max_choices: 0,
                ..RouterConfig::default()
            };
            let said = flags.overrides(&mut config);
            said.map_err(|error| error.to_string())
        };
        assert_eq!(refusal(&["a"], &["http://h:3000"]), Ok(()));
        let said = refusal(&["a b", ""], &["foo"]).unwrap_err();
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{said}");
        assert!(lines[0].starts_with("--api-key is no key;"), "{said}");
        assert!(
            lines[1].starts_with("--allowed-origin is \"foo\";"),
            "{said}"
        );
        assert!(!said.contains("a b"), "keys are not printed");
        assert!(refusal(&[""], &[]).is_err(), "it lets everybody in");
    }
}
