//! Who exists: targets and speculation endpoints, kept up to date by a backend.
//!
//! A [`Registry`] gives a [`Directory`] and tells of each change. The only backend so far is
//! [`StaticRegistry`], a file.

mod directory;
mod file;
mod resolution;

use std::sync::Arc;

use tokio::sync::watch;

pub use directory::{Directory, DirectoryError, EndpointEntry, Pools, TargetEntry};
pub use file::{RegistryError, StaticRegistry, write_directory};

/// A source of the truth about who exists.
pub trait Registry: Send + Sync + 'static {
    /// The directory now, and every later one.
    fn watch(&self) -> watch::Receiver<Arc<Directory>>;
}
