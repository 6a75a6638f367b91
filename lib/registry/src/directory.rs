//! Who exists, as values.

use std::collections::BTreeSet;

use foretoken_protocol::{Address, tls::Served};
use serde::{Deserialize, Serialize};

/// Who exists. The order of entries means nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Directory {
    /// Targets that serve requests.
    #[serde(default)]
    pub targets: Vec<TargetEntry>,
    /// Endpoints that targets may draft with.
    #[serde(default)]
    pub endpoints: Vec<EndpointEntry>,
    /// Names that stand for several of them. A registry that resolves them leaves none.
    #[serde(default, skip_serializing_if = "Pools::is_empty")]
    pub pools: Pools,
}

/// Entries whose address has a name for a host that stands for several: there is one at each
/// address that the name resolves to, as with a headless Service of Kubernetes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Pools {
    /// Targets of one model; each is called `NAME@ADDRESS`.
    #[serde(default)]
    pub targets: Vec<TargetEntry>,
    /// Endpoints of one weight each; named in the same way.
    #[serde(default)]
    pub endpoints: Vec<EndpointEntry>,
}

impl Pools {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.targets.is_empty() && self.endpoints.is_empty()
    }
}

/// A target that serves requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct TargetEntry {
    /// Unique among targets.
    pub name: String,
    /// Name under which users ask for its model.
    pub model: String,
    /// Where it answers.
    pub address: Address,
    /// What its certificate says that it serves, over TLS: `NAMESPACE/NAME`; none: anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serves: Option<Served>,
}

/// An endpoint that targets may draft with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct EndpointEntry {
    /// Unique among endpoints.
    pub name: String,
    /// Where targets dial it.
    pub address: Address,
    /// Share of sessions it should get relative to the others; 0: none.
    #[serde(default = "one")]
    pub weight: u32,
    /// What its certificate says that it serves, over TLS: `NAMESPACE/NAME`; none: anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serves: Option<Served>,
}

fn one() -> u32 {
    1
}

/// Whom somebody wants to know of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interest {
    /// Everybody.
    #[default]
    All,
    /// Targets, as routers do.
    Targets,
    /// Endpoints, as targets do.
    Endpoints,
}

impl Interest {
    /// What of `directory` is of interest.
    pub(crate) fn of(self, mut directory: Directory) -> Directory {
        if self == Self::Endpoints {
            directory.targets.clear();
            directory.pools.targets.clear();
        }
        if self == Self::Targets {
            directory.endpoints.clear();
            directory.pools.endpoints.clear();
        }
        directory
    }
}

/// Why a directory contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// Two of a kind with one name.
    #[error("there are two {kind} called {name:?}; names must differ")]
    Twice {
        /// `targets` or `endpoints`.
        kind: &'static str,
        /// The name.
        name: String,
    },
    /// An entry without a name.
    #[error("one of the {kind} has an empty {field}")]
    Empty {
        /// `targets` or `endpoints`.
        kind: &'static str,
        /// The field.
        field: &'static str,
    },
}

impl Directory {
    /// Checks what the types cannot say.
    pub fn check(&self) -> Result<(), DirectoryError> {
        let targets = || self.targets.iter().chain(&self.pools.targets);
        let endpoints = || self.endpoints.iter().chain(&self.pools.endpoints);
        if targets().any(|target| target.model.is_empty()) {
            return Err(DirectoryError::Empty {
                kind: "targets",
                field: "model",
            });
        }
        check_names("targets", targets().map(|target| &target.name))?;
        check_names("endpoints", endpoints().map(|endpoint| &endpoint.name))
    }
}

fn check_names<'a>(
    kind: &'static str,
    names: impl Iterator<Item = &'a String>,
) -> Result<(), DirectoryError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if name.is_empty() {
            return Err(DirectoryError::Empty {
                kind,
                field: "name",
            });
        }
        if !seen.insert(name) {
            return Err(DirectoryError::Twice {
                kind,
                name: name.clone(),
            });
        }
    }
    Ok(())
}
