//! Who exists, as values.

use std::collections::BTreeSet;

use foretoken_protocol::Address;
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
}

fn one() -> u32 {
    1
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
        if self.targets.iter().any(|target| target.model.is_empty()) {
            return Err(DirectoryError::Empty {
                kind: "targets",
                field: "model",
            });
        }
        check_names("targets", self.targets.iter().map(|target| &target.name))?;
        check_names(
            "endpoints",
            self.endpoints.iter().map(|endpoint| &endpoint.name),
        )
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
