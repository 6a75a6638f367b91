//! Which backend a service uses: a text where a few words say it, fields where more is to be said.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, value::MapAccessDeserializer},
};

use crate::{
    AnnounceError, Announced, Announcement, EtcdConfig, EtcdConfigError, EtcdRegistry, Interest,
    Registry, RegistryError, StaticRegistry,
};

/// Where a service finds out who exists.
///
/// As text: `FILE` or `static:FILE`, `kubernetes:FILE`, `etcd://HOST:PORT[,HOST:PORT][/PREFIX]`, and
/// `etcds://` for the same with TLS. As a map: `static: {file: FILE}`, `kubernetes: {file: FILE}`,
/// `etcd: {endpoints: [..], ..}` with the fields of [`EtcdConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegistryConfig {
    /// A file, read again when it changes; names of its pools are resolved.
    Static(PathBuf),
    /// The same file, whose pools are Services: whoever is ready behind them.
    Kubernetes(PathBuf),
    /// Whoever announced itself in etcd.
    Etcd(EtcdConfig),
}

/// Why a text names no registry.
#[derive(Debug, thiserror::Error)]
pub enum RegistryConfigError {
    /// Nothing that is known.
    #[error(
        "{0:?} is no registry; write FILE, kubernetes:FILE, etcd://HOST:PORT/PREFIX, or static:FILE \
         for a file with a colon in its name"
    )]
    Unknown(String),
    /// No file where one belongs.
    #[error("{0:?} names no file")]
    NoFile(String),
    /// No etcd.
    #[error(transparent)]
    Etcd(#[from] EtcdConfigError),
}

/// Why a registry cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file cannot be used.
    #[error(transparent)]
    Static(#[from] RegistryError),
    /// etcd cannot be asked as configured.
    #[error(transparent)]
    Etcd(#[from] EtcdConfigError),
    /// The cluster cannot be asked.
    #[cfg(feature = "kubernetes")]
    #[error(transparent)]
    Kubernetes(#[from] crate::KubernetesError),
    /// This program was built without it.
    #[error("this program was built without the registry `kubernetes`; use one of etcd, or a file")]
    NotBuilt,
}

impl RegistryConfig {
    /// Opens the registry, on the current tokio runtime. What is configured wrongly is an error; that
    /// an etcd or an API server does not answer yet is none. Of what a file lists, only what is of
    /// `interest` is looked up.
    #[cfg_attr(
        not(feature = "kubernetes"),
        expect(clippy::unused_async, reason = "only that of Kubernetes is waited for")
    )]
    pub async fn open(&self, interest: Interest) -> Result<Box<dyn Registry>, OpenError> {
        match self {
            Self::Static(file) => Ok(Box::new(StaticRegistry::open_for(file, interest)?)),
            Self::Etcd(config) => Ok(Box::new(EtcdRegistry::open(config.clone())?)),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(file) => {
                let registry = crate::KubernetesRegistry::open(file.clone(), interest).await?;
                Ok(Box::new(registry))
            }
            #[cfg(not(feature = "kubernetes"))]
            Self::Kubernetes(_) => Err(OpenError::NotBuilt),
        }
    }

    /// Makes `who` known there, on the current tokio runtime: see [`Announcement`].
    pub fn announce(&self, who: Announced, lease: Duration) -> Result<Announcement, AnnounceError> {
        match self {
            Self::Etcd(config) => Announcement::start(config.clone(), who, lease),
            Self::Static(_) | Self::Kubernetes(_) => {
                Err(AnnounceError::Registry(Box::new(self.clone())))
            }
        }
    }
}

impl From<PathBuf> for RegistryConfig {
    fn from(file: PathBuf) -> Self {
        Self::Static(file)
    }
}

impl FromStr for RegistryConfig {
    type Err = RegistryConfigError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let file = |path: &str| match path {
            "" => Err(RegistryConfigError::NoFile(text.to_owned())),
            path => Ok(PathBuf::from(path)),
        };
        let Some((scheme, rest)) = text.split_once(':') else {
            return Ok(Self::Static(file(text)?));
        };
        let members = rest.strip_prefix("//");
        match (scheme, members) {
            ("static", _) => Ok(Self::Static(file(rest)?)),
            ("kubernetes", None) => Ok(Self::Kubernetes(file(rest)?)),
            ("etcd", Some(rest)) => Ok(Self::Etcd(EtcdConfig::parse(rest, "http")?)),
            ("etcds", Some(rest)) => Ok(Self::Etcd(EtcdConfig::parse(rest, "https")?)),
            // A path that has a colon somewhere.
            _ if scheme.contains(['/', '.']) => Ok(Self::Static(file(text)?)),
            _ => Err(RegistryConfigError::Unknown(text.to_owned())),
        }
    }
}

impl fmt::Display for RegistryConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Static(file) => write!(f, "{}", file.display()),
            Self::Kubernetes(file) => write!(f, "kubernetes:{}", file.display()),
            Self::Etcd(config) => config.fmt(f),
        }
    }
}

/// The same as a map.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Fields {
    Static(FileFields),
    Kubernetes(FileFields),
    Etcd(EtcdConfig),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileFields {
    file: PathBuf,
}

impl Serialize for RegistryConfig {
    /// As text if that says all of it.
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let text = self.to_string();
        if text.parse::<Self>().is_ok_and(|parsed| parsed == *self) {
            return to.serialize_str(&text);
        }
        let fields = match self.clone() {
            Self::Static(file) => Fields::Static(FileFields { file }),
            Self::Kubernetes(file) => Fields::Kubernetes(FileFields { file }),
            Self::Etcd(config) => Fields::Etcd(config),
        };
        fields.serialize(to)
    }
}

impl<'de> Deserialize<'de> for RegistryConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Visitor)
    }
}

struct Visitor;

impl<'de> de::Visitor<'de> for Visitor {
    type Value = RegistryConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FILE, kubernetes:FILE, etcd://HOST:PORT/PREFIX, or one of static, kubernetes and etcd with its fields")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let fields = Fields::deserialize(MapAccessDeserializer::new(map))?;
        Ok(match fields {
            Fields::Static(FileFields { file }) => RegistryConfig::Static(file),
            Fields::Kubernetes(FileFields { file }) => RegistryConfig::Kubernetes(file),
            Fields::Etcd(config) => RegistryConfig::Etcd(config),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yaml(text: &str) -> Result<RegistryConfig, String> {
        serde_saphyr::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn a_text_names_a_registry_and_is_written_as_it_was_read() {
        for (text, expected) in [
            ("a/b.json", RegistryConfig::Static("a/b.json".into())),
            ("/a:b.json", RegistryConfig::Static("/a:b.json".into())),
            (
                "kubernetes:/etc/r.json",
                RegistryConfig::Kubernetes("/etc/r.json".into()),
            ),
        ] {
            let parsed: RegistryConfig = text.parse().expect(text);
            assert_eq!(parsed, expected);
            assert_eq!(parsed.to_string(), text);
            let json = serde_json::to_value(&parsed).expect("json");
            assert_eq!(json, text);
        }
        assert_eq!(
            "static:kubernetes:x"
                .parse::<RegistryConfig>()
                .expect("a file"),
            RegistryConfig::Static("kubernetes:x".into())
        );
        let etcd = |text: &str| match text.parse() {
            Ok(RegistryConfig::Etcd(config)) => (config.endpoints, config.prefix),
            other => (vec![format!("{other:?}")], String::new()),
        };
        let members = ["http://a:2379".to_owned(), "http://b:1".to_owned()];
        assert_eq!(
            etcd("etcd://a:2379,b:1/x/y/"),
            (members.to_vec(), "x/y/".to_owned())
        );
        let (members, prefix) = etcd("etcds://[::1]:2379");
        assert_eq!(
            (members[0].as_str(), prefix.as_str()),
            ("https://[::1]:2379", "foretoken/")
        );
    }

    #[test]
    fn what_text_cannot_say_is_a_map() {
        let text = "etcd:\n  endpoints: [https://a:2379]\n  cacert: ca.crt\n";
        let config = yaml(text).expect("a registry");
        let again = serde_json::to_string(&config).expect("json");
        assert_eq!(yaml(&again), Ok(config.clone()));
        assert!(matches!(config, RegistryConfig::Etcd(etcd) if etcd.prefix == "foretoken/"));
        assert_eq!(
            yaml("static: {file: x}"),
            Ok(RegistryConfig::Static("x".into()))
        );
    }

    #[test]
    fn a_mistake_is_told_with_what_may_be_written() {
        for (text, words) in [
            ("consul://a:1", "kubernetes:FILE"),
            ("etcd:/a", "etcd://HOST:PORT"),
            ("etcd://", "at least one"),
            ("etcd://a", "\"http://a\" is not an endpoint"),
            ("kubernetes:", "names no file"),
            ("", "names no file"),
        ] {
            let error = text.parse::<RegistryConfig>().expect_err(text).to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
        for (text, words) in [
            ("consul: {}", "static"),
            ("7", "kubernetes:FILE"),
            ("etcd: {endpoint: x}", "unknown field"),
            ("static: {path: x}", "path"),
        ] {
            let error = yaml(text).expect_err(text);
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
