//! etcd, version 3: who exists announces itself there, and whoever wants to know watches.
//!
//! ```text
//! PREFIXtargets/NAME/LEASE    {"name": "t", "model": "story", "address": "http://10.0.0.7:7000"}
//! PREFIXendpoints/NAME/LEASE  {"name": "d", "address": "http://10.0.0.8:7100", "weight": 1}
//! ```
//!
//! Who announces itself holds its key by a lease and keeps the lease alive, so that whoever dies is
//! gone when the lease runs out. Keys may also be written by hand, with or without a lease; what is
//! below `targets/` and `endpoints/` tells keys apart and means nothing else. Of several keys with
//! entries of one name the one written last counts: a service that is started again need not wait
//! for the lease of its predecessor.
//!
//! A reader lists the prefix once and then watches it from that revision on. A broken connection is
//! made again, with the next of the endpoints, and the watch goes on where it was; what was compacted
//! away meanwhile is listed again.

mod announce;
mod config;
mod entries;
mod follow;
mod session;

use std::sync::Arc;

use tokio::{sync::watch, task::JoinHandle};

use crate::{
    Directory, Health, Registry,
    publication::{Publication, Publisher},
};

pub use announce::{AnnounceError, Announced, Announcement};
pub use config::{EtcdConfig, EtcdConfigError, Secret};

/// Messages and clients of etcd's API.
#[expect(clippy::pedantic, unreachable_pub, reason = "generated")]
#[allow(missing_docs, clippy::allow_attributes, reason = "generated")]
mod api {
    tonic::include_proto!("etcdserverpb");
}

/// A directory that is kept in etcd. It is empty until etcd has answered.
#[derive(Debug)]
pub struct EtcdRegistry {
    publication: Publication,
    follow: JoinHandle<()>,
}

impl EtcdRegistry {
    /// Follows what `config` names, on the current tokio runtime. That etcd does not answer yet is
    /// no error: it is asked until it does.
    pub fn open(config: EtcdConfig) -> Result<Self, EtcdConfigError> {
        config.check()?;
        let source = config.to_string();
        let (publisher, publication) =
            Publisher::new(source, Directory::default(), Health::Unknown);
        let follow = tokio::spawn(follow::follow(config, publisher));
        Ok(Self {
            publication,
            follow,
        })
    }
}

impl Registry for EtcdRegistry {
    fn watch(&self) -> watch::Receiver<Arc<Directory>> {
        self.publication.watch()
    }

    fn health(&self) -> watch::Receiver<Health> {
        self.publication.health()
    }
}

impl Drop for EtcdRegistry {
    fn drop(&mut self) {
        self.follow.abort();
    }
}
