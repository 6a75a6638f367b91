//! Who exists: targets and speculation endpoints, kept up to date by a backend.
//!
//! A [`Registry`] gives a [`Directory`] and tells of each change. Backends: [`StaticRegistry`], a
//! file, whose entries may be names that stand for several; [`EtcdRegistry`], where services announce
//! themselves ([`Announcement`]); and, with the feature `kubernetes`, `KubernetesRegistry`: the same file,
//! whose names are Services, and what the API server says is ready behind them.

mod backoff;
mod config;
mod directory;
mod etcd;
mod file;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod publication;
mod resolution;

use std::{error::Error, sync::Arc};

use tokio::sync::watch;

pub use config::{OpenError, RegistryConfig, RegistryConfigError};
pub use directory::{Directory, DirectoryError, EndpointEntry, Interest, Pools, TargetEntry};
pub use etcd::{
    AnnounceError, Announced, Announcement, EtcdConfig, EtcdConfigError, EtcdRegistry, Secret,
};
pub use file::{RegistryError, StaticRegistry, write_directory};
#[cfg(feature = "kubernetes")]
pub use kubernetes::{KubernetesError, KubernetesRegistry};
pub use publication::Health;

/// A source of the truth about who exists. When it cannot be read, the directory stays what it last
/// was, and [`Health`] says so.
pub trait Registry: Send + Sync + 'static {
    /// The directory now, and every later one.
    fn watch(&self) -> watch::Receiver<Arc<Directory>>;

    /// Whether the directory is the latest.
    fn health(&self) -> watch::Receiver<Health>;
}

/// What went wrong, with its causes.
fn in_full(error: &dyn Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| (*cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
