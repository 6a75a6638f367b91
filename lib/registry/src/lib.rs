//! Who exists: targets and speculation endpoints, kept up to date by a backend.
//!
//! A [`Registry`] gives a [`Directory`] and tells of each change. The only backend so far is
//! [`StaticRegistry`], a file.

mod directory;
mod file;
mod publication;
mod resolution;

use std::sync::Arc;

use tokio::sync::watch;

pub use directory::{Directory, DirectoryError, EndpointEntry, Pools, TargetEntry};
pub use file::{RegistryError, StaticRegistry, write_directory};
pub use publication::Health;

/// A source of the truth about who exists. When it cannot be read, the directory stays what it last
/// was, and [`Health`] says so.
pub trait Registry: Send + Sync + 'static {
    /// The directory now, and every later one.
    fn watch(&self) -> watch::Receiver<Arc<Directory>>;

    /// Whether the directory is the latest.
    fn health(&self) -> watch::Receiver<Health>;
}
