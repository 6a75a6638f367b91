//! Connections under TLS.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use rustls::pki_types::{CertificateDer, DnsName, ServerName};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use super::{
    Tls,
    explain::{explain, explain_handshake},
    name::ServiceName,
    verify::name_in,
};

/// How long a handshake may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a peer that is refused may take to read why, and how much it may still say.
const FAREWELL: Duration = Duration::from_secs(1);
const MOST_UNREAD: u64 = 1 << 20;

/// What is asked for where a host's name is due; nobody looks at it.
const NOBODY: &str = "foretoken.invalid";

/// A connection whose ends know each other.
#[derive(Debug)]
pub(crate) struct Secured {
    // Large; without the box so would every plain connection be.
    stream: Box<TlsStream<TcpStream>>,
    peer: ServiceName,
}

/// Greets whoever has dialled.
pub(crate) async fn accept(tls: &Tls, stream: TcpStream) -> io::Result<Secured> {
    let acceptor = TlsAcceptor::from(tls.ready().server);
    let greeted = timeout(PATIENCE, acceptor.accept(stream).into_fallible()).await;
    match greeted.map_err(|_| late())? {
        Ok(stream) => Secured::new(stream.into()),
        Err((error, stream)) => {
            // Whether it was read is no concern of ours.
            let _ = timeout(FAREWELL, linger(stream)).await;
            Err(explain_handshake(error))
        }
    }
}

/// Lets a peer that was refused read why: closed with something unread, a connection is reset, and
/// what was said last is lost.
async fn linger(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown().await?;
    let mut rest = stream.take(MOST_UNREAD);
    tokio::io::copy(&mut rest, &mut tokio::io::sink()).await?;
    Ok(())
}

/// Greets whoever was dialled.
pub(crate) async fn connect(tls: &Tls, stream: TcpStream) -> io::Result<Secured> {
    let connector = TlsConnector::from(tls.ready().client);
    let nobody = DnsName::try_from(NOBODY).map_err(io::Error::other)?;
    let stream = timeout(
        PATIENCE,
        connector.connect(ServerName::DnsName(nobody), stream),
    )
    .await;
    let stream = stream.map_err(|_| late())?.map_err(explain_handshake)?;
    Secured::new(stream.into())
}

fn late() -> io::Error {
    let problem = format!("no TLS handshake within {} s", PATIENCE.as_secs());
    io::Error::new(io::ErrorKind::TimedOut, problem)
}

impl Secured {
    fn new(stream: TlsStream<TcpStream>) -> io::Result<Self> {
        let (_, session) = stream.get_ref();
        let certificates: &[CertificateDer<'_>] = session.peer_certificates().unwrap_or_default();
        let name = certificates.first().map(name_in);
        let refuse = |problem: String| io::Error::new(io::ErrorKind::PermissionDenied, problem);
        let peer = name
            .ok_or_else(|| refuse("the peer has no certificate".to_owned()))?
            .map_err(|error| refuse(format!("the peer's certificate is no service's: {error}")))?;
        Ok(Self {
            stream: Box::new(stream),
            peer,
        })
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> &ServiceName {
        &self.peer
    }

    fn stream(self: Pin<&mut Self>) -> Pin<&mut TlsStream<TcpStream>> {
        Pin::new(&mut *self.get_mut().stream)
    }
}

/// What the peer makes of this side's certificate comes with the first bytes it sends.
fn explained<T>(polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
    polled.map(|result| result.map_err(explain))
}

impl AsyncRead for Secured {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        explained(self.stream().poll_read(cx, buf))
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        explained(self.stream().poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        explained(self.stream().poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        explained(self.stream().poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        explained(self.stream().poll_shutdown(cx))
    }
}
