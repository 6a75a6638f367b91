//! Links over Unix sockets: frames one after the other.
//!
//! Two ends on one host need nothing of what HTTP/2 is for, and it would take most of the time that
//! a frame takes there. The target says [`PREFACE`], then both sides send
//!
//! ```text
//! kind (1 byte) | length (4 bytes, little-endian) | as many bytes
//! ```
//!
//! Not here: what is in a frame (`frame`), which ones are sent when (`queue`, `pump`).

use std::{
    convert::Infallible,
    future::pending,
    io::{self, Write},
    os::unix::net::UnixStream,
    path::Path,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::StreamExt;
use tokio::{
    io::AsyncReadExt,
    net::{self, unix::pipe},
};

use super::{
    carrier::{Failure, Frames},
    frame::Frame,
    queue::{Outgoing, OutgoingFrame},
};

/// What a target says first. Nothing that speaks HTTP begins like this, nor does an older target.
const PREFACE: [u8; 16] = *b"foretoken link 1";
/// Kind and length.
const HEADER: usize = 5;
/// The bytes are a frame.
const FRAME: u8 = 0;
/// The bytes are the reason, in UTF-8, for which the link ends here.
const REFUSAL: u8 = 1;

/// Bytes to make room for before a read. What a step of a few dozen sessions says fits.
const READ: usize = 16 << 10;

/// A connection whose ends say one frame at a time, while they get to know each other.
///
/// Linux reports a Unix socket as writable whenever the peer has taken something out of it, and
/// `tokio::net::UnixStream` watches both directions: each message would wake its sender once more,
/// to no purpose. So what comes is watched alone, through the type that does this (a stream socket is
/// read as a pipe is), and the other direction while it is full.
#[derive(Debug)]
pub(super) struct Wire {
    inbound: Inbound,
    outbound: Outbound,
}

/// The direction to this side.
#[derive(Debug)]
struct Inbound {
    socket: pipe::Receiver,
    /// What has come and was not taken yet.
    bytes: BytesMut,
    max_frame: usize,
}

/// The direction to the peer.
#[derive(Debug)]
struct Outbound {
    socket: UnixStream,
    /// What is to leave.
    bytes: BytesMut,
}

/// What comes as a whole.
enum Piece {
    Frame(Bytes),
    Refusal(Bytes),
}

/// A connection that sends by itself, whenever it is asked for what has come.
pub(super) struct Carried<O: OutgoingFrame> {
    wire: Wire,
    outgoing: Outgoing<O>,
}

impl Wire {
    /// Connects to the endpoint at `path`.
    pub(super) async fn dial(path: &Path, max_frame: usize) -> io::Result<Self> {
        let mut wire = Self::new(net::UnixStream::connect(path).await?, max_frame)?;
        wire.outbound.bytes.put_slice(&PREFACE);
        Ok(wire)
    }

    /// Takes in whoever has connected, if it is a target; none: it went without a word.
    pub(super) async fn accept(
        stream: net::UnixStream,
        max_frame: usize,
    ) -> Result<Option<Self>, Failure> {
        let mut wire = Self::new(stream, max_frame).map_err(lost)?;
        let Inbound { socket, bytes, .. } = &mut wire.inbound;
        while bytes.len() < PREFACE.len() {
            if socket.read_buf(bytes).await.map_err(lost)? == 0 {
                return Ok(None);
            }
        }
        let first = bytes.split_to(PREFACE.len());
        if *first != PREFACE {
            return Err(Failure::Lost(format!(
                "it began with \"{}\" and not as targets of this release do: run the same release on \
                 both",
                first.escape_ascii()
            )));
        }
        Ok(Some(wire))
    }

    fn new(stream: net::UnixStream, max_frame: usize) -> io::Result<Self> {
        let socket = stream.into_std()?;
        let inbound = Inbound {
            socket: pipe::Receiver::from_owned_fd_unchecked(socket.try_clone()?.into())?,
            bytes: BytesMut::new(),
            max_frame,
        };
        let outbound = Outbound {
            socket,
            bytes: BytesMut::new(),
        };
        Ok(Self { inbound, outbound })
    }

    /// The next frame; none: the peer has ended the link.
    pub(super) async fn next<F: Frame>(&mut self) -> Result<Option<F>, Failure> {
        self.inbound.next().await
    }

    /// Sends what is under way, and then the reason for which the link ends.
    pub(super) async fn refuse(&mut self, reason: &str) -> io::Result<()> {
        let put = |bytes: &mut BytesMut| bytes.put_slice(reason.as_bytes());
        self.outbound.put(REFUSAL, put);
        self.outbound.flush().await
    }

    /// From now on `outgoing` is sent.
    pub(super) fn carry<O: OutgoingFrame>(self, outgoing: Outgoing<O>) -> Carried<O> {
        Carried {
            wire: self,
            outgoing,
        }
    }
}

impl<O: OutgoingFrame> Carried<O> {
    /// See [`Wire::refuse`].
    pub(super) async fn refuse(&mut self, reason: &str) -> io::Result<()> {
        self.wire.refuse(reason).await
    }
}

impl<I: Frame, O: Frame + OutgoingFrame> Frames<I> for Carried<O> {
    async fn next(&mut self) -> Result<Option<I>, Failure> {
        let Wire { inbound, outbound } = &mut self.wire;
        tokio::select! {
            frame = inbound.next() => frame,
            never = outbound.send_all(&mut self.outgoing) => match never {},
        }
    }
}

impl Inbound {
    /// Loses nothing if it is given up.
    async fn next<F: Frame>(&mut self) -> Result<Option<F>, Failure> {
        loop {
            match self.take()? {
                Some(Piece::Frame(bytes)) => return F::read(bytes).map(Some).map_err(lost),
                Some(Piece::Refusal(reason)) => {
                    let reason = String::from_utf8_lossy(&reason).into_owned();
                    return Err(Failure::Refused(reason));
                }
                None => {}
            }
            self.bytes.reserve(READ);
            if self.socket.read_buf(&mut self.bytes).await.map_err(lost)? == 0 {
                if self.bytes.is_empty() {
                    return Ok(None);
                }
                return Err(Failure::Lost(
                    "the peer ended the link in the middle of a frame".into(),
                ));
            }
        }
    }

    /// What has come as a whole.
    fn take(&mut self) -> Result<Option<Piece>, Failure> {
        let Some([kind, length @ ..]) = self.bytes.first_chunk::<HEADER>().copied() else {
            return Ok(None);
        };
        let piece = match kind {
            FRAME => Piece::Frame,
            REFUSAL => Piece::Refusal,
            _ => {
                return Err(Failure::Lost(format!(
                    "the peer sent something of kind {kind}, which links of this release have not: \
                     run the same release on both, or correct the address"
                )));
            }
        };
        let length = u32::from_le_bytes(length) as usize;
        if length > self.max_frame {
            return Err(Failure::Lost(format!(
                "the peer sent a frame of {length} bytes, {} are allowed",
                self.max_frame
            )));
        }
        if self.bytes.len() < HEADER + length {
            return Ok(None);
        }
        self.bytes.advance(HEADER);
        Ok(Some(piece(self.bytes.split_to(length).freeze())))
    }
}

impl Outbound {
    /// Sends until there is nobody to send to, or no more to send; waits forever then. Loses nothing
    /// if it is given up.
    async fn send_all<O: Frame + OutgoingFrame>(
        &mut self,
        outgoing: &mut Outgoing<O>,
    ) -> Infallible {
        while self.flush().await.is_ok() {
            let Some(frame) = outgoing.next().await else {
                break;
            };
            self.put(FRAME, |bytes| frame.write(bytes));
        }
        // Whoever takes nothing more is about to end the link, and may have said why: that is read.
        pending().await
    }

    /// Sends what is to leave; what has left is not sent again if it is given up.
    async fn flush(&mut self) -> io::Result<()> {
        while !self.bytes.is_empty() {
            match self.socket.write(&self.bytes) {
                Ok(written) => self.bytes.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.room().await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Waits until the peer has taken something.
    async fn room(&self) -> io::Result<()> {
        let socket = self.socket.try_clone()?.into();
        pipe::Sender::from_owned_fd_unchecked(socket)?
            .writable()
            .await
    }

    fn put(&mut self, kind: u8, write: impl FnOnce(&mut BytesMut)) {
        let start = self.bytes.len();
        self.bytes.put_u8(kind);
        self.bytes.put_u32_le(0);
        let from = self.bytes.len();
        write(&mut self.bytes);
        let length = (self.bytes.len() - from) as u32;
        self.bytes[start + 1..from].copy_from_slice(&length.to_le_bytes());
    }
}

fn lost(error: impl std::fmt::Display) -> Failure {
    Failure::Lost(error.to_string())
}
