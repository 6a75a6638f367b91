//! Connections, accepted and dialled: TCP in clear text or under TLS, and Unix sockets.

use std::{
    collections::{HashMap, VecDeque},
    io,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    task::{AbortHandle, JoinError, JoinSet},
};
use tonic::transport::server::Connected;

use super::{Address, Callee, listen::SocketFile, unix::Local};
use crate::tls::{self, Peer, Role, Secured, Tls};

/// Most peers that are greeted at once. One that comes then takes another's place: if newcomers waited,
/// anybody could shut the port with connections that say nothing.
const MOST_GREETED: usize = 256;
/// How long a peer is not complained of again.
const QUIET: Duration = Duration::from_secs(60);
/// Most peers whose complaints are remembered.
const MOST_BLAMED: usize = 256;

/// Accepts connections on the runtime that serves them.
#[derive(Debug)]
pub(crate) struct Incoming {
    listener: Listening,
    tls: Option<Tls>,
    greeted: Greeted,
    blamed: Blamed,
}

#[derive(Debug)]
enum Listening {
    Tcp(TcpListener),
    Unix {
        listener: UnixListener,
        _file: SocketFile,
    },
}

impl Incoming {
    pub(super) fn tcp(listener: std::net::TcpListener, tls: Option<Tls>) -> io::Result<Self> {
        let listener = Listening::Tcp(TcpListener::from_std(listener)?);
        Ok(Self::new(listener, tls))
    }

    pub(super) fn unix(
        listener: std::os::unix::net::UnixListener,
        file: SocketFile,
    ) -> io::Result<Self> {
        let listener = UnixListener::from_std(listener)?;
        let listener = Listening::Unix {
            listener,
            _file: file,
        };
        Ok(Self::new(listener, None))
    }

    fn new(listener: Listening, tls: Option<Tls>) -> Self {
        Self {
            listener,
            tls,
            greeted: Greeted::default(),
            blamed: Blamed::default(),
        }
    }

    /// The next connection. Failures to accept (a peer that has gone, no file descriptors) and peers
    /// that are refused pass: a listener outlives them.
    pub(crate) async fn accept(&mut self) -> Socket {
        loop {
            let Self {
                listener,
                tls,
                greeted,
                blamed,
            } = self;
            tokio::select! {
                accepted = listener.accept() => {
                    match (accepted, tls.as_ref()) {
                        (Ok(Accepted::Tcp(stream, from)), Some(tls)) => {
                            let from = from.ip().to_canonical();
                            if let Some(dropped) = greeted.greet(tls.clone(), stream, from) {
                                let error = "others came before it had shown a certificate";
                                blamed.blame(dropped, &io::Error::other(error));
                            }
                        }
                        (Ok(Accepted::Tcp(stream, _)), None) => {
                            return Socket::Tcp(Clear::new(stream));
                        }
                        (Ok(Accepted::Unix(stream)), _) => return Socket::Unix(stream),
                        (Err(error), _) => {
                            tracing::warn!(%error, "cannot accept a connection");
                            tokio::time::sleep(Duration::from_millis(20)).await;
                        }
                    }
                }
                Some(done) = greeted.next() => match done {
                    Ok(Ok(socket)) => return socket,
                    Ok(Err((from, error))) => blamed.blame(from, &error),
                    // It made way for another.
                    Err(error) if error.is_cancelled() => {}
                    Err(error) => tracing::error!(%error, "a handshake broke off"),
                }
            }
        }
    }
}

enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(Local),
}

impl Listening {
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, from) = listener.accept().await?;
                // Without it, small frames wait for the peer's delayed acknowledgement (40 ms).
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream, from))
            }
            Self::Unix { listener, .. } => {
                let (stream, _) = listener.accept().await?;
                Ok(Accepted::Unix(Local::new(stream)?))
            }
        }
    }
}

/// Peers that have not shown a certificate yet: a slow one holds nobody up.
#[derive(Debug, Default)]
struct Greeted {
    peers: JoinSet<Result<Socket, (IpAddr, io::Error)>>,
    /// Where they come from and what ends them, in the order in which they came.
    order: VecDeque<(IpAddr, AbortHandle)>,
}

impl Greeted {
    /// Greets one more; if there are too many, another is dropped, which came from the address that is
    /// given back.
    fn greet(&mut self, tls: Tls, stream: TcpStream, from: IpAddr) -> Option<IpAddr> {
        self.order.retain(|(_, peer)| !peer.is_finished());
        let mut dropped = None;
        if self.order.len() >= MOST_GREETED {
            let addresses: Vec<_> = self.order.iter().map(|(from, _)| *from).collect();
            dropped = oldest_of_most(&addresses).and_then(|place| self.order.remove(place));
        }
        let peer = self.peers.spawn(async move {
            let secured = tls::accept(&tls, stream).await;
            secured.map(Socket::Tls).map_err(|error| (from, error))
        });
        self.order.push_back((from, peer));
        let (address, peer) = dropped?;
        peer.abort();
        Some(address)
    }

    /// What became of the next whose greeting ends.
    async fn next(&mut self) -> Option<Result<Result<Socket, (IpAddr, io::Error)>, JoinError>> {
        self.peers.join_next().await
    }
}

/// The first place of the address that has the most: one crowd drops its own and nobody else's.
fn oldest_of_most(addresses: &[IpAddr]) -> Option<usize> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    for address in addresses {
        *counts.entry(*address).or_default() += 1;
    }
    let most = counts.values().max()?;
    addresses
        .iter()
        .position(|address| counts[address] == *most)
}

/// Peers that were complained of. They come again and again; the log has a line a minute for each.
#[derive(Debug, Default)]
struct Blamed(HashMap<IpAddr, Instant>);

impl Blamed {
    fn blame(&mut self, from: IpAddr, error: &io::Error) {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            // Whoever only looks whether the port is open.
            tracing::debug!(%from, %error, "a connection was refused");
            return;
        }
        self.0.retain(|_, at| at.elapsed() < QUIET);
        if self.0.len() < MOST_BLAMED && !self.0.contains_key(&from) {
            self.0.insert(from, Instant::now());
            tracing::warn!(%from, %error, "a connection was refused");
        }
    }
}

/// A connection of any kind.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(Clear),
    Tls(Secured),
    Unix(Local),
}

/// TCP in clear text.
#[derive(Debug)]
pub(crate) struct Clear {
    stream: TcpStream,
    /// Nothing has been read yet: what comes first tells a peer that speaks TLS.
    is_fresh: bool,
}

impl Clear {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            is_fresh: true,
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        if self.is_fresh && polled.is_ready() {
            self.is_fresh = false;
            if let Err(error) = tls::cleartext(&buf.filled()[before..]) {
                tracing::warn!(%error, "a connection makes no sense");
                return Poll::Ready(Err(error));
            }
        }
        polled
    }
}

impl Socket {
    /// Connects to `callee`; over TCP with `tls`, if there is any, to a service with this `role`.
    pub(crate) async fn connect(
        callee: &Callee,
        tls: Option<&Tls>,
        role: Role,
    ) -> io::Result<Self> {
        let stream = match &callee.address {
            Address::Tcp { host, port } => TcpStream::connect((host.as_str(), *port)).await?,
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await?;
                return Ok(Self::Unix(Local::new(stream)?));
            }
        };
        stream.set_nodelay(true)?;
        let Some(tls) = tls else {
            return Ok(Self::Tcp(Clear::new(stream)));
        };
        let secured = tls::connect(tls, stream).await?;
        let (us, peer) = (tls.name(), secured.peer());
        let refuse = |problem| Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
        if peer.role != role {
            return refuse(format!(
                "{peer} answers where a {role} is expected: correct the address"
            ));
        }
        // Prompts go to nobody but their own namespace's targets.
        if role == Role::Target && peer.namespace != us.namespace {
            return refuse(format!(
                "{peer} answers where a target of namespace {} is expected: correct the address",
                us.namespace
            ));
        }
        if let Some(served) = &callee.serves
            && !served.is_by(peer)
        {
            return refuse(format!(
                "{peer} answers where the {role} of {served} is expected: it has this address now"
            ));
        }
        Ok(Self::Tls(secured))
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> Peer {
        match self {
            Self::Tls(secured) => Peer(Some(secured.peer().clone())),
            Self::Tcp(_) | Self::Unix(_) => Peer(None),
        }
    }
}

impl Connected for Socket {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer()
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(clear) => clear.poll_read(cx, buf),
            Self::Tls(secured) => Pin::new(secured).poll_read(cx, buf),
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
            Self::Tcp(clear) => Pin::new(&mut clear.stream).poll_write(cx, buf),
            Self::Tls(secured) => Pin::new(secured).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(clear) => Pin::new(&mut clear.stream).poll_write_vectored(cx, bufs),
            Self::Tls(secured) => Pin::new(secured).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Tls(secured) => secured.is_write_vectored(),
            Self::Tcp(_) | Self::Unix(_) => true,
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(clear) => Pin::new(&mut clear.stream).poll_flush(cx),
            Self::Tls(secured) => Pin::new(secured).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(clear) => Pin::new(&mut clear.stream).poll_shutdown(cx),
            Self::Tls(secured) => Pin::new(secured).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_from_one_address_costs_no_other_address_its_place() {
        let places = |hosts: &[u8]| {
            let addresses: Vec<_> = hosts.iter().map(|&host| [10, 0, 0, host].into()).collect();
            oldest_of_most(&addresses)
        };
        assert_eq!(places(&[1, 2, 2, 3, 2]), Some(1));
        assert_eq!(places(&[1, 2, 3]), Some(0), "the oldest of all");
        assert_eq!(
            places(&[3, 1, 2, 1, 2]),
            Some(1),
            "of the first of two crowds"
        );
        assert_eq!(places(&[]), None);
    }
}
