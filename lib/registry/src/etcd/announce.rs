//! Making oneself known in etcd, for as long as one lives.

use std::{net::IpAddr, time::Duration};

use foretoken_protocol::Address;
use futures::stream::{FuturesUnordered, StreamExt as _};
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use super::{
    config::{EtcdConfig, EtcdConfigError},
    entries::{ENDPOINTS, TARGETS},
    session::{Session, SessionError},
};
use crate::{
    Directory, DirectoryError, EndpointEntry, RegistryConfig, TargetEntry, backoff::Backoff,
};

/// Who is announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Announced {
    /// A target.
    Target(TargetEntry),
    /// An endpoint.
    Endpoint(EndpointEntry),
}

/// Why nobody can be announced.
#[derive(Debug, thiserror::Error)]
pub enum AnnounceError {
    /// etcd cannot be asked as configured.
    #[error(transparent)]
    Config(#[from] EtcdConfigError),
    /// A registry in which nobody announces himself.
    #[error("nobody can be announced in {0}: others write it; use etcd://HOST:PORT/PREFIX")]
    Registry(Box<RegistryConfig>),
    /// An address that only its owner can use.
    #[error("others cannot dial {0}; announce the address at which they can")]
    Address(Address),
    /// The entry is none.
    #[error("cannot be announced: {0}")]
    Entry(#[from] DirectoryError),
    /// A lease too short to be kept, or longer than etcd grants.
    #[error("a lease of {0:?} cannot be kept; it must be from 2 s to 1 h")]
    Lease(Duration),
}

/// An entry in etcd that is there as long as this is. Dropping it leaves the entry to its lease;
/// [`Announcement::withdraw`] takes it away at once.
#[derive(Debug)]
pub struct Announcement {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// Longest that taking an entry away may take.
const FAREWELL: Duration = Duration::from_secs(2);
/// Leases that can be kept.
const LEASES: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(2)..=Duration::from_secs(3600);

impl Announcement {
    /// Announces `who` in etcd, on the current tokio runtime. Should nobody keep the entry alive, it
    /// goes after `lease`. That etcd does not answer yet is no error: it is asked until it does.
    pub fn start(
        config: EtcdConfig,
        who: Announced,
        lease: Duration,
    ) -> Result<Self, AnnounceError> {
        config.check()?;
        let (Announced::Target(TargetEntry { address, .. })
        | Announced::Endpoint(EndpointEntry { address, .. })) = &who;
        if let Address::Tcp { host, port } = address
            && (*port == 0 || host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified()))
        {
            return Err(AnnounceError::Address(address.clone()));
        }
        let (folder, name, value, alone) = match who {
            Announced::Target(target) => {
                let value = serde_json::to_vec(&target);
                let (name, targets) = (target.name.clone(), vec![target]);
                let alone = Directory {
                    targets,
                    ..Directory::default()
                };
                (TARGETS, name, value, alone)
            }
            Announced::Endpoint(endpoint) => {
                let value = serde_json::to_vec(&endpoint);
                let (name, endpoints) = (endpoint.name.clone(), vec![endpoint]);
                let alone = Directory {
                    endpoints,
                    ..Directory::default()
                };
                (ENDPOINTS, name, value, alone)
            }
        };
        alone.check()?;
        if !LEASES.contains(&lease) {
            return Err(AnnounceError::Lease(lease));
        }
        let entry = Kept {
            key: format!("{}{folder}{name}", config.prefix),
            // Texts and numbers: JSON can say all of it.
            value: value.unwrap_or_default(),
            lease,
            config,
        };
        let stop = CancellationToken::new();
        let task = tokio::spawn(entry.keep(stop.clone()));
        Ok(Self { stop, task })
    }

    /// Takes the entry away, so that nobody comes any more, and returns when it is gone or etcd does
    /// not answer.
    pub async fn withdraw(mut self) {
        self.stop.cancel();
        // A task that panicked has nothing left to do.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An entry to be kept.
struct Kept {
    config: EtcdConfig,
    key: String,
    value: Vec<u8>,
    lease: Duration,
}

impl Kept {
    async fn keep(self, stop: CancellationToken) {
        let mut backoff = Backoff::default();
        let mut held: Option<i64> = None;
        let mut said = String::new();
        for endpoint in self.config.endpoints.iter().cycle() {
            let keeping = self.keep_at(endpoint, &mut held, &mut backoff);
            let ended = tokio::select! {
                () = stop.cancelled() => break,
                ended = keeping => ended,
            };
            let Err(error) = ended;
            let why = error.to_string();
            if why != said {
                let (key, lease) = (&self.key, self.lease);
                tracing::warn!(
                    key,
                    ?lease,
                    why,
                    "cannot announce; it is tried again and again"
                );
                said = why;
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(backoff.wait()) => {}
            }
        }
        if let Some(lease) = held
            && timeout(FAREWELL, self.end(lease)).await != Ok(true)
        {
            let key = &self.key;
            tracing::warn!(key, lease = ?self.lease, "etcd does not answer; the entry goes with its lease");
        }
    }

    /// Keeps the entry by one member as long as it goes.
    async fn keep_at(
        &self,
        endpoint: &str,
        held: &mut Option<i64>,
        backoff: &mut Backoff,
    ) -> Result<std::convert::Infallible, SessionError> {
        let session = Session::connect(&self.config, endpoint).await?;
        loop {
            let lease = match *held {
                Some(lease) => lease,
                None => self.write(&session, held).await?,
            };
            let mut alive = session.keep_alive(lease).await?;
            while alive.left().await? > 0 {
                let pause = tokio::time::sleep(self.lease / 3);
                self.restore(&session, lease).await?;
                // Whoever may keep a lease need not be allowed to write.
                backoff.reset();
                pause.await;
                alive.prolong();
            }
            tracing::warn!(
                key = self.key,
                "the lease ran out before it was prolonged; announcing anew"
            );
            *held = None;
        }
    }

    /// Writes the entry, held by a new lease.
    async fn write(&self, session: &Session, held: &mut Option<i64>) -> Result<i64, SessionError> {
        let lease = session.grant(self.lease.as_secs() as i64).await?;
        // Whoever does not hear whether the entry is written still has it to restore, or to end.
        *held = Some(lease);
        let key = self.key_of(lease);
        session.put(key.clone(), self.value.clone(), lease).await?;
        tracing::info!(key, lease = ?self.lease, "announced");
        Ok(lease)
    }

    /// Writes the entry again if somebody has deleted it, or put another in its place: that would
    /// outlive the lease.
    async fn restore(&self, session: &Session, lease: i64) -> Result<(), SessionError> {
        let key = self.key_of(lease);
        let found = session.get(&key).await?;
        if found.is_some_and(|found| found.value == self.value && found.lease == lease) {
            return Ok(());
        }
        session.put(key.clone(), self.value.clone(), lease).await?;
        tracing::warn!(key, "the entry was not there, or another's; written again");
        Ok(())
    }

    /// The key of the entry while `lease` holds it.
    fn key_of(&self, lease: i64) -> String {
        format!("{}/{lease:x}", self.key)
    }

    /// Ends the lease, and says whether a member did. All are asked at once: one that keeps silent
    /// would use up the time.
    async fn end(&self, lease: i64) -> bool {
        let members = self.config.endpoints.iter();
        let mut asked: FuturesUnordered<_> = members
            .map(|endpoint| self.end_at(endpoint, lease))
            .collect();
        while let Some(ended) = asked.next().await {
            if ended.is_ok() {
                tracing::info!(key = self.key, "no longer announced");
                return true;
            }
        }
        false
    }

    async fn end_at(&self, endpoint: &str, lease: i64) -> Result<(), SessionError> {
        let session = Session::connect(&self.config, endpoint).await?;
        session.revoke(lease).await
    }
}
