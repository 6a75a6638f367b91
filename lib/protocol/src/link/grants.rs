//! Who may use an endpoint, and on what terms it takes links in.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::{LinkOptions, Welcome};

/// Namespaces whose deployments may use an endpoint. In files `"all"` or `{"only": ["NAMESPACE"]}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Grants {
    /// All of them, and targets that name none.
    #[default]
    All,
    /// These.
    Only(BTreeSet<String>),
}

impl Grants {
    /// Why deployments of `namespace` may not use the endpoint, if they may not.
    pub fn refusal(&self, namespace: &str) -> Option<String> {
        match self {
            Self::All => None,
            Self::Only(granted) if granted.contains(namespace) => None,
            Self::Only(_) => Some(format!(
                "this endpoint does not allow namespace {namespace:?}: ask its owner to add it to \
                 allowedNamespaces"
            )),
        }
    }
}

/// On what terms an endpoint takes links in.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What targets are told.
    pub welcome: Welcome,
    /// How links behave.
    pub options: LinkOptions,
    /// Whose they may be. A namespace that is taken away loses its links at once.
    pub grants: watch::Receiver<Grants>,
}

impl Terms {
    /// Terms for everybody.
    pub fn new(welcome: Welcome, options: LinkOptions) -> Self {
        Self {
            welcome,
            options,
            grants: watch::channel(Grants::All).1,
        }
    }

    /// The same for some.
    #[must_use]
    pub fn granted_to(self, grants: watch::Receiver<Grants>) -> Self {
        Self { grants, ..self }
    }
}
