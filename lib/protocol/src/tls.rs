//! Mutual TLS for whatever travels over TCP: both ends show a certificate of the same authority,
//! and each is told whom the other's is of.
//!
//! ```text
//! certificate, key, ca (files) ──> Tls ──> every new connection, with the files as they are then
//! peer's certificate ──> ServiceName: spiffe://foretoken/ns/NAMESPACE/target|draft|router/NAME
//! ```
//!
//! Names of hosts play no part: services are dialled by whatever address a registry has, and are who
//! their certificate says. Files are looked at when somebody connects, and read again if they have
//! changed or could not be read; connections that are up stay as they are. Files that cannot be used
//! leave what was good in use, and the log says why.
//!
//! Only TLS 1.3, and no session is ever resumed: a connection lives for hours, and one that resumes
//! would not show its certificate again.
//!
//! Not here: what a name may do. That is for whoever serves ([`crate::generate::serve_generate`],
//! [`crate::link::Transport::serve`]).

mod explain;
mod files;
mod name;
mod stream;
mod verify;

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

pub(crate) use explain::cleartext;
pub use files::TlsError;
use files::{Ready, Stamp};
pub use name::{NameError, Role, Served, ServedError, ServiceName};
pub(crate) use stream::{Secured, accept, connect};

/// How often files are looked at, at most. A look is three `stat`s.
const LOOK: Duration = Duration::from_millis(200);

/// Files of a service's certificate, in PEM, such as those of a mounted Secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// Its certificate, and those of authorities between it and one of `ca`, if there are any.
    pub certificate: PathBuf,
    /// The certificate's private key.
    pub key: PathBuf,
    /// The authorities whose certificates are accepted; several while one replaces another.
    pub ca: PathBuf,
}

/// A service's certificate and whose it accepts, as its files say. Clones share what was read.
#[derive(Clone, Debug)]
pub struct Tls(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    files: TlsFiles,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    looked: Instant,
    stamp: Option<Stamp>,
    /// They could not be read, which may change without anything that a stamp tells.
    is_unread: bool,
    ready: Ready,
}

impl Tls {
    /// Reads `files`, whose certificate is of a service with this `role`. A relative path is one of
    /// the current folder.
    pub fn open(files: &TlsFiles, role: Role) -> Result<Self, TlsError> {
        let stamp = Stamp::of(files);
        let ready = Ready::read(files)?;
        if ready.name.role != role {
            return Err(TlsError::Role {
                path: files.certificate.clone(),
                name: ready.name,
                role,
            });
        }
        Ok(Self(Arc::new(Shared {
            files: files.clone(),
            state: Mutex::new(State {
                looked: Instant::now(),
                stamp,
                is_unread: false,
                ready,
            }),
        })))
    }

    /// Who this service is.
    pub fn name(&self) -> ServiceName {
        self.ready().name
    }

    /// What connections begin with now.
    fn ready(&self) -> Ready {
        let Shared { files, state } = &*self.0;
        // Nothing in the section can leave the state half changed.
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() < LOOK {
            return state.ready.clone();
        }
        state.looked = Instant::now();
        let stamp = Stamp::of(files);
        let is_new = stamp != state.stamp;
        if !is_new && !state.is_unread {
            return state.ready.clone();
        }
        state.stamp = stamp;
        state.is_unread = false;
        match Ready::read(files) {
            Ok(ready) if ready.name.role == state.ready.name.role => {
                tracing::info!(certificate = %files.certificate.display(), name = %ready.name, "certificate read again");
                state.ready = ready;
            }
            Ok(ready) => {
                tracing::warn!(certificate = %files.certificate.display(), name = %ready.name, "the new certificate has another role; the old one stays in use");
            }
            Err(error) => {
                state.is_unread = matches!(error, TlsError::Read { .. });
                // Told once, however often it is tried.
                if is_new {
                    let error = &error as &dyn std::error::Error;
                    tracing::warn!(error, "the old certificate stays in use");
                }
            }
        }
        state.ready.clone()
    }
}

/// Who is at the other end of a connection: none where nobody showed a certificate, which is so on
/// Unix sockets and without TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Peer(pub(crate) Option<ServiceName>);

#[cfg(test)]
mod tests;
