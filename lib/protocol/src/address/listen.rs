//! Sockets that a service accepts connections on.

use std::{
    fs::{self, Permissions},
    io,
    net::TcpListener,
    os::{
        fd::OwnedFd,
        unix::{
            fs::{FileTypeExt, MetadataExt, PermissionsExt},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
};

use socket2::{Domain, SockAddr, Socket, Type};

use super::{Address, socket::Incoming, tcp};
use crate::tls::Tls;

/// Connections that may wait to be accepted; what the system allows if that is less.
pub(super) const BACKLOG: i32 = 1024;

/// Why a service cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another process listens there.
    #[error("{address} is in use by another process; stop it or choose another address")]
    InUse {
        /// Where.
        address: Address,
    },
    /// Something that is not a socket has that path.
    #[error("{} exists and is not a socket; remove it or choose another path", path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot listen on {address}")]
    Io {
        /// Where.
        address: Address,
        /// What the system said.
        source: io::Error,
    },
}

/// A bound socket, before anything is served on it. It belongs to no runtime yet, so that it can
/// be bound (and its address published) before the threads that serve it exist.
#[derive(Debug)]
pub struct Listener {
    address: Address,
    kind: Kind,
    tls: Option<Tls>,
}

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// Removes the socket's file, unless somebody else has taken its place.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            // Nothing is lost if it stays: the next listener replaces a stale file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Listener {
    /// Listens on `address`. Port 0 picks a free port, which [`Listener::address`] then tells. A
    /// socket file that no process listens on any more is replaced.
    pub fn bind(address: &Address) -> Result<Self, BindError> {
        let io = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => BindError::InUse {
                address: address.clone(),
            },
            _ => BindError::Io {
                address: address.clone(),
                source,
            },
        };
        match address {
            Address::Tcp { host, port } => {
                let listener = tcp::listen((host.as_str(), *port)).map_err(io)?;
                let port = listener.local_addr().map_err(io)?.port();
                let address = Address::Tcp {
                    host: host.clone(),
                    port,
                };
                Ok(Self {
                    address,
                    kind: Kind::Tcp(listener),
                    tls: None,
                })
            }
            Address::Unix(path) => {
                clear_stale_socket(address, path)?;
                let listener = bind_private(path).map_err(io)?;
                listener.set_nonblocking(true).map_err(io)?;
                let inode = fs::symlink_metadata(path).map_err(io)?.ino();
                let file = SocketFile {
                    path: path.clone(),
                    inode,
                };
                Ok(Self {
                    address: address.clone(),
                    kind: Kind::Unix(listener, file),
                    tls: None,
                })
            }
        }
    }

    /// Listens on all of `addresses`, and greets with `tls` whoever comes over TCP. The log says so if
    /// others than this machine can come and need not prove who they are.
    pub fn bind_all(addresses: &[Address], tls: Option<&Tls>) -> Result<Vec<Self>, BindError> {
        let bind = |address| Ok(Self::bind(address)?.with_tls(tls.cloned()));
        let listeners: Vec<Self> = addresses.iter().map(bind).collect::<Result<_, _>>()?;
        let exposed = listeners.iter().filter(|listener| listener.is_exposed());
        let exposed: Vec<String> = exposed
            .map(|listener| listener.address.to_string())
            .collect();
        if !exposed.is_empty() {
            tracing::warn!(
                addresses = exposed.join(", "),
                "whoever reaches these addresses is served, in clear text and whoever it is: give \
                 certificates (tls: {{certificate, key, ca}}), or listen on 127.0.0.1 or unix:/PATH"
            );
        }
        Ok(listeners)
    }

    /// Where it listens, with the real port.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The same, greeting whoever comes with TLS. Whoever has access to the file of a Unix socket is
    /// trusted already: there it changes nothing.
    #[must_use]
    pub fn with_tls(self, tls: Option<Tls>) -> Self {
        let tls = tls.filter(|_| matches!(self.kind, Kind::Tcp(_)));
        Self { tls, ..self }
    }

    /// Whether others than this machine can reach it and nothing proves who they are.
    pub(crate) fn is_exposed(&self) -> bool {
        match &self.kind {
            Kind::Tcp(listener) if self.tls.is_none() => {
                let address = listener.local_addr();
                address.is_ok_and(|address| !address.ip().is_loopback())
            }
            Kind::Tcp(_) | Kind::Unix(..) => false,
        }
    }

    /// The certificate that it shows.
    pub(crate) fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Hands the socket to the current runtime.
    pub(crate) fn incoming(self) -> io::Result<Incoming> {
        Ok(match self.kind {
            Kind::Tcp(listener) => Incoming::tcp(listener, self.tls)?,
            Kind::Unix(listener, file) => Incoming::unix(listener, file)?,
        })
    }
}

/// Listens at a path that nobody but this user can connect to, whatever the umask: whoever tries before
/// the file has its mode is refused, since nothing listens yet.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    socket.listen(BACKLOG)?;
    Ok(OwnedFd::from(socket).into())
}

fn clear_stale_socket(address: &Address, path: &Path) -> Result<(), BindError> {
    let io = |source| BindError::Io {
        address: address.clone(),
        source,
    };
    let file = match fs::symlink_metadata(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io(error)),
    };
    if !file.file_type().is_socket() {
        return Err(BindError::NotASocket { path: path.into() });
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(io)
        }
        Ok(_) => Err(BindError::InUse {
            address: address.clone(),
        }),
        Err(error) => Err(io(error)),
    }
}
