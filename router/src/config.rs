//! What a router is told when it starts.

use std::{collections::BTreeSet, net::IpAddr, path::PathBuf, time::Duration};

use foretoken_protocol::tls::TlsFiles;
use foretoken_registry::{RegistryConfig, TargetEntry};
use serde::{Deserialize, Serialize};

use crate::{cors::is_origin, keys::is_key};

/// Everything a router needs. Every field but `models` has a default, so a file names only what
/// differs; unknown fields are errors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouterConfig {
    /// Where HTTP is served, `host:port`; port 0: any free one. Default `127.0.0.1:8000`.
    pub listen: String,
    /// The models that users may ask for. The first one serves requests that name none.
    pub models: Vec<ModelConfig>,
    /// Targets that never change.
    pub targets: Vec<TargetEntry>,
    /// Where further targets are found, on top of those of `targets`: a file that is read again when
    /// it changes, the Services of a cluster, or etcd. Of two of one name that of `targets` counts. Default
    /// none.
    pub registry: Option<RegistryConfig>,
    /// Its certificate, and whose it accepts, for targets that are dialled over TCP: they have to be
    /// targets of its namespace. HTTP is served in clear text all the same. Default none: clear text.
    pub tls: Option<TlsFiles>,
    /// Keys of which requests must bring one (`Authorization: Bearer KEY`); empty: none is asked
    /// for. Default empty.
    pub api_keys: Vec<String>,
    /// A file with more of them, one on each line (`#` begins a comment), or a folder of such files,
    /// as a mounted Secret is one; read again when it changes. It must have at least one. Default none.
    pub api_keys_from: Option<PathBuf>,
    /// Origins whose web pages may ask besides those that the user's own machine serves,
    /// `scheme://host[:port]`; `*`: all. Default none.
    pub allowed_origins: Vec<String>,
    /// Longest request body. Default 16 MiB.
    pub max_body_bytes: usize,
    /// How long the head of a request may take to come, and how long a connection may be idle.
    /// Default 30 s.
    #[serde(rename = "head_seconds", with = "seconds")]
    pub head: Duration,
    /// How long a body may take to come. Default 60 s.
    #[serde(rename = "body_seconds", with = "seconds")]
    pub body: Duration,
    /// How long a client may take nothing of what waits for it, before it is hung up on. Default 600 s.
    #[serde(rename = "unread_seconds", with = "seconds")]
    pub unread: Duration,
    /// How long tokens of a stream may wait at their target for later ones, to come with them: handing on
    /// each round of a small model by itself takes a good part of the next one's time. Streams that a stop
    /// string may end do not wait. Default 0.004 s.
    #[serde(rename = "hold_seconds", with = "seconds")]
    pub hold: Duration,
    /// Most choices one request may ask for, over all its prompts. Default 256.
    pub max_choices: usize,
    /// Most requests that are answered at once; more get 429 and may come again. Default 4096.
    pub max_requests: usize,
    /// Most messages of a conversation. Default 4096.
    pub max_messages: usize,
    /// Most tokens of a prompt; 0: as many as the model has room for. Default 0.
    pub max_prompt_tokens: u32,
    /// Most stop strings, and most stop tokens. Default 1024.
    pub max_stops: usize,
    /// Most entries of `logit_bias`. Default 1024.
    pub max_logit_biases: usize,
    /// How often a target is asked how it is. Default 1 s.
    #[serde(rename = "probe_seconds", with = "seconds")]
    pub probe: Duration,
    /// How long a stream whose target died waits for one that can go on. Default 60 s.
    #[serde(rename = "replay_seconds", with = "seconds")]
    pub replay: Duration,
    /// How many targets may die under one request. Default 8.
    pub max_replays: u32,
    /// How long requests are still taken, while they come, once the router is told to stop: where
    /// another one takes its place, that may not be there yet. Default 0 s.
    #[serde(rename = "linger_seconds", with = "seconds")]
    pub linger: Duration,
    /// How long open streams may take to end once no more are taken. Default 30 s.
    #[serde(rename = "grace_seconds", with = "seconds")]
    pub grace: Duration,
}

/// A model that users may ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Name in requests, and of the targets that serve it.
    pub name: String,
    /// Folder with the tokenizer, chat template and generation configuration; weights are not
    /// read.
    pub folder: PathBuf,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            listen: "127.0.0.1:8000".into(),
            models: Vec::new(),
            targets: Vec::new(),
            registry: None,
            tls: None,
            api_keys: Vec::new(),
            api_keys_from: None,
            allowed_origins: Vec::new(),
            max_body_bytes: 16 << 20,
            head: Duration::from_secs(30),
            body: Duration::from_secs(60),
            unread: Duration::from_secs(600),
            hold: Duration::from_millis(4),
            max_choices: 256,
            max_requests: 4096,
            max_messages: 4096,
            max_prompt_tokens: 0,
            max_stops: 1024,
            max_logit_biases: 1024,
            probe: Duration::from_secs(1),
            replay: Duration::from_secs(60),
            max_replays: 8,
            linger: Duration::ZERO,
            grace: Duration::from_secs(30),
        }
    }
}

/// Why a configuration cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A field with a value that it may not have.
    #[error("{field} is {value}; it must be {allowed}")]
    Value {
        /// Field of [`RouterConfig`].
        field: String,
        /// What it is.
        value: String,
        /// What it may be.
        allowed: String,
    },
}

impl RouterConfig {
    /// Checks what the types cannot say. All problems at once.
    ///
    /// # Errors
    /// The problems, at least one.
    pub fn check(&self) -> Result<(), Vec<ConfigError>> {
        let mut problems = Vec::new();
        let mut say = |field: &str, value: String, allowed: &str| {
            problems.push(ConfigError::Value {
                field: field.to_owned(),
                value,
                allowed: allowed.to_owned(),
            });
        };
        if !is_listen_address(&self.listen) {
            say(
                "listen",
                format!("{:?}", self.listen),
                "host:port, for example 127.0.0.1:8000",
            );
        }
        if self.models.is_empty() {
            say(
                "models",
                "empty".to_owned(),
                "at least one model with name and folder",
            );
        }
        let mut names = BTreeSet::new();
        for (i, model) in self.models.iter().enumerate() {
            check_name(
                &format!("models[{i}].name"),
                &model.name,
                &mut names,
                &mut say,
            );
        }
        let mut named = BTreeSet::new();
        for (i, target) in self.targets.iter().enumerate() {
            check_name(
                &format!("targets[{i}].name"),
                &target.name,
                &mut named,
                &mut say,
            );
            if !names.contains(target.model.as_str()) {
                let allowed = "the name of one of the models";
                say(
                    &format!("targets[{i}].model"),
                    format!("{:?}", target.model),
                    allowed,
                );
            }
        }
        for (field, value) in [
            ("max_body_bytes", self.max_body_bytes),
            ("max_choices", self.max_choices),
            ("max_requests", self.max_requests),
            ("max_messages", self.max_messages),
        ] {
            if value == 0 {
                say(field, "0".to_owned(), "at least 1");
            }
        }
        for (field, value) in [
            ("head_seconds", self.head),
            ("body_seconds", self.body),
            ("unread_seconds", self.unread),
            ("probe_seconds", self.probe),
        ] {
            if value.is_zero() {
                say(field, "0".to_owned(), "more than 0");
            }
        }
        self.check_users(&mut say);
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }

    /// Checks who may ask.
    fn check_users(&self, say: &mut impl FnMut(&str, String, &str)) {
        for (i, key) in self.api_keys.iter().enumerate() {
            if !is_key(key) {
                say(
                    &format!("api_keys[{i}]"),
                    "no key".to_owned(),
                    "printable, without spaces, and not empty",
                );
            }
        }
        for (i, origin) in self.allowed_origins.iter().enumerate() {
            if !is_origin(origin) {
                say(
                    &format!("allowed_origins[{i}]"),
                    format!("{origin:?}"),
                    "* or scheme://host[:port] in lower case, without a scheme's own port, for example https://chat.example.com",
                );
            }
        }
    }
}

/// Refuses the name in `field` if there is none, or it is among those `before`.
fn check_name<'a>(
    field: &str,
    name: &'a str,
    before: &mut BTreeSet<&'a str>,
    say: &mut impl FnMut(&str, String, &str),
) {
    if name.is_empty() || !before.insert(name) {
        say(field, format!("{name:?}"), "present and unique");
    }
}

fn is_listen_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let host_is_good = match bracketed {
        Some(inner) => inner.parse::<IpAddr>().is_ok(),
        None => !host.is_empty() && !host.contains([':', '/', ' ']),
    };
    host_is_good && port.parse::<u16>().is_ok()
}

/// Durations as seconds, fractions allowed.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(value.as_secs_f64())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds).map_err(|_| {
            D::Error::custom(format!(
                "{seconds} is no number of seconds; it must be 0 or more"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_is_reported_with_field_value_and_what_is_allowed() {
        let target = TargetEntry {
            name: "t".into(),
            model: "other".into(),
            address: foretoken_protocol::Address::loopback(1),
            serves: None,
        };
        let config = RouterConfig {
            listen: "8000".into(),
            targets: vec![target.clone(), target],
            max_choices: 0,
            head: Duration::ZERO,
            api_keys: vec!["a b".into()],
            allowed_origins: vec!["example.com".into()],
            ..RouterConfig::default()
        };
        let problems = config.check().unwrap_err();
        let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(text.len(), 9, "{text:?}");
        assert!(
            text[0].contains("listen") && text[0].contains("8000") && text[0].contains("host:port")
        );
        let twice = text.iter().filter(|said| said.contains("targets[1].name"));
        assert_eq!(twice.count(), 1, "two of one name");
        assert!(
            text.iter().all(|said| !said.contains("a b")),
            "keys are not printed"
        );
    }

    #[test]
    fn a_file_names_only_what_differs() {
        let text = r#"{"models": [{"name": "m", "folder": "/m"}], "replay_seconds": 1.5}"#;
        let config: RouterConfig = serde_json::from_str(text).unwrap();
        assert_eq!(config.replay, Duration::from_millis(1500));
        assert_eq!(config.listen, "127.0.0.1:8000");
        assert!(config.check().is_ok());
        let again: RouterConfig =
            serde_json::from_str(&serde_json::to_string(&config).unwrap()).unwrap();
        assert_eq!(again, config);
        assert!(serde_json::from_str::<RouterConfig>(r#"{"model": []}"#).is_err());
        let wrong = serde_json::from_str::<RouterConfig>(r#"{"probe_seconds": -1}"#);
        let said = wrong.unwrap_err().to_string();
        assert!(
            said.contains("-1 is no number of seconds; it must be 0 or more"),
            "{said}"
        );
    }
}
