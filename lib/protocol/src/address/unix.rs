//! Unix sockets that wake nobody to no purpose.

use std::{
    io::{self, IoSlice, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::unix::pipe,
};

/// A connected Unix socket.
///
/// Linux reports a Unix socket as writable whenever the peer has taken something out of it, and
/// `tokio::net::UnixStream` watches both directions: each message would wake its sender once more, in the
/// middle of a step where that is all of a core. So what comes is watched alone, through the type that
/// does this (a stream socket is read as a pipe is), and the other direction while it is full.
#[derive(Debug)]
pub(crate) struct Local {
    socket: UnixStream,
    inbound: pipe::Receiver,
    /// Waits for room, while there is none.
    full: Option<pipe::Sender>,
}

impl Local {
    /// # Errors
    /// If the system has no more file descriptors.
    pub(super) fn new(stream: tokio::net::UnixStream) -> io::Result<Self> {
        let socket = stream.into_std()?;
        let inbound = pipe::Receiver::from_owned_fd_unchecked(socket.try_clone()?.into())?;
        Ok(Self {
            socket,
            inbound,
            full: None,
        })
    }

    /// The socket, of which nothing was read yet, with both directions watched.
    ///
    /// # Errors
    /// If it cannot be watched.
    pub(crate) fn into_stream(self) -> io::Result<tokio::net::UnixStream> {
        drop(self.inbound);
        tokio::net::UnixStream::from_std(self.socket)
    }

    fn poll_send(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.full.is_none() {
            loop {
                match (&self.socket).write_vectored(bufs) {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    done => return Poll::Ready(done),
                }
            }
        }
        let full = match &mut self.full {
            Some(full) => full,
            none => {
                let socket = self.socket.try_clone()?.into();
                none.insert(pipe::Sender::from_owned_fd_unchecked(socket)?)
            }
        };
        let sent = ready!(Pin::new(full).poll_write_vectored(cx, bufs));
        self.full = None;
        Poll::Ready(sent)
    }
}

impl AsyncRead for Local {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inbound).poll_read(cx, buf)
    }
}

impl AsyncWrite for Local {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn pair() -> (Local, Local) {
        let (one, other) = tokio::net::UnixStream::pair().unwrap();
        (Local::new(one).unwrap(), Local::new(other).unwrap())
    }

    #[tokio::test]
    async fn more_than_fits_arrives_whole_and_in_order_both_ways() {
        let (mut one, mut other) = pair();
        let sent: Vec<u8> = (0..4_000_000_u32).map(|i| (i * 31 % 251) as u8).collect();
        let copy = sent.clone();
        let echo = tokio::spawn(async move {
            let mut all = vec![0; copy.len()];
            // What is sent meanwhile has nowhere to go.
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            other.read_exact(&mut all).await.unwrap();
            assert!(all == copy);
            other.write_all(&all).await.unwrap();
            other.shutdown().await.unwrap();
        });
        one.write_all(&sent).await.unwrap();
        assert!(one.full.is_none(), "there is room again");
        let mut back = Vec::new();
        one.read_to_end(&mut back).await.unwrap();
        assert!(back == sent);
        echo.await.unwrap();
    }

    #[tokio::test]
    async fn whoever_waits_for_room_learns_that_the_peer_has_gone() {
        let (mut one, other) = pair();
        let sending = tokio::spawn(async move { one.write_all(&vec![0; 4_000_000]).await });
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        drop(other);
        let error = sending.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
