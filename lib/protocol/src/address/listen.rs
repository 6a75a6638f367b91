//! Sockets that a service accepts connections on.

use std::{
    fs, io,
    net::{TcpListener, ToSocketAddrs},
    os::unix::{
        fs::{FileTypeExt, MetadataExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

use super::Address;

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
                let candidates: Vec<_> = (host.as_str(), *port)
                    .to_socket_addrs()
                    .map_err(io)?
                    .collect();
                let listener = TcpListener::bind(candidates.as_slice()).map_err(io)?;
                listener.set_nonblocking(true).map_err(io)?;
                let port = listener.local_addr().map_err(io)?.port();
                let address = Address::Tcp {
                    host: host.clone(),
                    port,
                };
                Ok(Self {
                    address,
                    kind: Kind::Tcp(listener),
                })
            }
            Address::Unix(path) => {
                clear_stale_socket(address, path)?;
                let listener = UnixListener::bind(path).map_err(io)?;
                listener.set_nonblocking(true).map_err(io)?;
                let inode = fs::symlink_metadata(path).map_err(io)?.ino();
                let file = SocketFile {
                    path: path.clone(),
                    inode,
                };
                Ok(Self {
                    address: address.clone(),
                    kind: Kind::Unix(listener, file),
                })
            }
        }
    }

    /// Where it listens, with the real port.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Hands the socket to the current runtime.
    pub(crate) fn incoming(self) -> io::Result<Incoming> {
        Ok(match self.kind {
            Kind::Tcp(listener) => Incoming::Tcp(tokio::net::TcpListener::from_std(listener)?),
            Kind::Unix(listener, file) => Incoming::Unix {
                listener: tokio::net::UnixListener::from_std(listener)?,
                _file: file,
            },
        })
    }
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

/// Accepts connections on the runtime that serves them.
#[derive(Debug)]
pub(crate) enum Incoming {
    Tcp(tokio::net::TcpListener),
    Unix {
        listener: tokio::net::UnixListener,
        _file: SocketFile,
    },
}

impl Incoming {
    /// The next connection. Failures to accept (a peer that has gone, no file descriptors) pass:
    /// a listener outlives them.
    pub(crate) async fn accept(&self) -> Socket {
        loop {
            let accepted = match self {
                Self::Tcp(listener) => listener.accept().await.and_then(|(stream, _)| {
                    // Without it, small frames wait for the peer's delayed acknowledgement (40 ms).
                    stream.set_nodelay(true)?;
                    Ok(Socket::Tcp(stream))
                }),
                Self::Unix { listener, .. } => listener
                    .accept()
                    .await
                    .map(|(stream, _)| Socket::Unix(stream)),
            };
            match accepted {
                Ok(socket) => return socket,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }
}

/// A connection of either kind.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

impl Socket {
    /// Connects to `address`.
    pub(crate) async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp { host, port } => {
                let stream = tokio::net::TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Address::Unix(path) => Ok(Self::Unix(tokio::net::UnixStream::connect(path).await?)),
        }
    }
}

impl Connected for Socket {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
