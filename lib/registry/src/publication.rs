//! What a backend found out, for whoever follows it.

use std::sync::Arc;

use tokio::sync::watch;

use crate::{Directory, Registry};

/// Whether a registry's directory can be relied upon to be the latest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Health {
    /// Nothing has been heard yet; the directory is empty until then.
    #[default]
    Unknown,
    /// What the source says now is known.
    Current,
    /// The source cannot be read: the directory is what was last known of it.
    Stale {
        /// What is wrong with the source.
        why: String,
    },
}

/// The end that a backend writes to. Sending never waits for who listens: of a directory that
/// nobody has looked at yet only the last is kept.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// What the source is called in logs.
    source: String,
    directory: watch::Sender<Arc<Directory>>,
    health: watch::Sender<Health>,
}

/// The end that followers read from.
#[derive(Clone, Debug)]
pub(crate) struct Publication {
    directory: watch::Receiver<Arc<Directory>>,
    health: watch::Receiver<Health>,
}

impl Registry for Publication {
    fn watch(&self) -> watch::Receiver<Arc<Directory>> {
        self.directory.clone()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }
}

impl Publisher {
    /// Both ends of a publication, which starts with `first`.
    pub(crate) fn new(source: String, first: Directory, health: Health) -> (Self, Publication) {
        let (directory, directories) = watch::channel(Arc::new(first));
        let (health, healths) = watch::channel(health);
        let publisher = Self {
            source,
            directory,
            health,
        };
        let publication = Publication {
            directory: directories,
            health: healths,
        };
        (publisher, publication)
    }

    /// Tells of `directory` if it is another one than before.
    pub(crate) fn publish(&self, directory: Directory) {
        let (targets, endpoints) = (directory.targets.len(), directory.endpoints.len());
        let is_new = self.directory.send_if_modified(|current| {
            let is_new = **current != directory;
            if is_new {
                *current = Arc::new(directory);
            }
            is_new
        });
        if is_new {
            tracing::info!(registry = %self.source, targets, endpoints, "the directory has changed");
        }
    }

    /// The source was read.
    pub(crate) fn current(&self) {
        let before = self.health.send_replace(Health::Current);
        if matches!(before, Health::Stale { .. }) {
            tracing::info!(registry = %self.source, "the registry can be read again");
        }
    }

    /// The source cannot be read, or not used. Said once as long as the reason stays the same.
    pub(crate) fn stale(&self, why: impl Into<String>) {
        let health = Health::Stale { why: why.into() };
        let is_news = self.health.send_if_modified(|current| {
            let is_news = *current != health;
            current.clone_from(&health);
            is_news
        });
        if let Health::Stale { why } = health
            && is_news
        {
            tracing::warn!(
                registry = %self.source, why,
                "the registry cannot be read; what was last known stays in use"
            );
        }
    }
}
