//! Links over Unix sockets: frames one after the other.
//!
//! Two ends on one host need nothing of what HTTP/2 is for, and it would take most of the time that
//! a frame takes there. The target says [`PREFACE`], then both sides send
//!
//! ```text
//! kind (1 byte) | length (4 bytes, little-endian) | as many bytes
//! ```
//!
//! With the preface the target offers memory. An endpoint that takes it in use says so with a piece
//! of kind [`MEMORY`], its last over the socket; the target does likewise when it hears that. All
//! further bytes go through memory (`bytes`). Who cannot offer memory, or open it, or is joined to
//! its peer by something that passes bytes alone, never says so, and stays with the socket.
//!
//! Not here: what is in a frame (`frame`), which ones are sent when (`queue`, `pump`).

mod bytes;

use std::{future::pending, io, path::Path, sync::Arc};

use ::bytes::{Buf, BufMut, Bytes, BytesMut};
use foretoken_pipe::{Broken, Pipes};
use futures::StreamExt;
use tokio::{io::Interest, net::UnixStream};

use self::bytes::{Sink, Source};
use super::{
    carrier::{Failure, Frames},
    frame::Frame,
    polled::Visit,
    queue::{Outgoing, OutgoingFrame},
};

/// What a target says first. Nothing that speaks HTTP begins like this, nor does an older target.
const PREFACE: [u8; 16] = *b"foretoken link 1";
/// Kind and length.
const HEADER: usize = 5;
/// The bytes are a frame.
const FRAME: u8 = 0;
/// The bytes are the reason, in UTF-8, for which the two ends do not go together.
const REFUSAL: u8 = 1;
/// No bytes follow: whatever the peer sends after this comes through memory.
const MEMORY: u8 = 2;
/// The bytes are the reason, in UTF-8, for which the link ends though the two may go together.
const END: u8 = 3;

/// A connection whose ends say one frame at a time, while they get to know each other.
///
/// What comes is watched alone, and the other direction while it is full: [why](crate::address::Local).
#[derive(Debug)]
pub(super) struct Wire {
    inbound: Inbound,
    outbound: Outbound,
}

/// The direction to this side.
#[derive(Debug)]
struct Inbound {
    source: Source,
    /// What has come and was not taken yet.
    bytes: BytesMut,
    max_frame: usize,
}

/// The direction to the peer.
#[derive(Debug)]
struct Outbound {
    sink: Sink,
    /// What is to leave.
    bytes: BytesMut,
}

/// What comes as a whole.
enum Piece {
    Frame(Bytes),
    Refusal(Bytes),
    End(Bytes),
    Memory,
}

/// What an end has said.
enum Said<F> {
    Frame(F),
    /// That it says everything else through memory.
    Memory,
}

/// A connection that sends by itself, whenever it is asked for what has come.
pub(super) struct Carried<O: OutgoingFrame> {
    wire: Wire,
    outgoing: Outgoing<O>,
}

impl Wire {
    /// Connects to the endpoint at `path`.
    pub(super) async fn dial(path: &Path, max_frame: usize, visit: Visit) -> io::Result<Self> {
        let stream = UnixStream::connect(path).await?;
        match Self::offer(&stream).await {
            Ok(pipes) => Self::new(stream, max_frame, visit, Some(pipes)),
            Err(error) => {
                tracing::debug!(%error, "no memory is shared with an endpoint");
                let mut wire = Self::new(stream, max_frame, visit, None)?;
                wire.outbound.bytes.put_slice(&PREFACE);
                Ok(wire)
            }
        }
    }

    /// Begins with an offer of memory.
    async fn offer(stream: &UnixStream) -> io::Result<Pipes> {
        let (pipes, file) = foretoken_pipe::offer()?;
        stream.writable().await?;
        let send = || foretoken_pipe::send(stream, &PREFACE, &file);
        match stream.try_io(Interest::WRITABLE, send)? {
            sent if sent == PREFACE.len() => Ok(pipes),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Takes in whoever has connected, if it is a target; none: it went without a word.
    pub(super) async fn accept(
        stream: UnixStream,
        max_frame: usize,
        visit: Visit,
    ) -> Result<Option<Self>, Failure> {
        let mut first = [0; PREFACE.len()];
        let (mut length, mut file) = (0, None);
        while length < first.len() {
            let mut receive = || foretoken_pipe::receive(&stream, &mut first[length..]);
            stream.readable().await.map_err(lost)?;
            match stream.try_io(Interest::READABLE, &mut receive) {
                Ok((0, _)) => return Ok(None),
                Ok((more, with)) => {
                    length += more;
                    file = file.or(with);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(lost(error)),
            }
        }
        if first != PREFACE {
            return Err(Failure::Lost(format!(
                "it began with \"{}\" and not as targets of this release do: run the same release on \
                 both",
                first.escape_ascii()
            )));
        }
        let opened = file.map(|file| foretoken_pipe::open(&file)).transpose();
        let pipes = opened.unwrap_or_else(|error| {
            tracing::debug!(%error, "the memory that a target offers is not taken");
            None
        });
        let mut wire = Self::new(stream, max_frame, visit, pipes).map_err(lost)?;
        wire.outbound.switch();
        Ok(Some(wire))
    }

    fn new(
        stream: UnixStream,
        max_frame: usize,
        visit: Visit,
        pipes: Option<Pipes>,
    ) -> io::Result<Self> {
        let socket = Arc::new(stream.into_std()?);
        let (reader, writer) = pipes
            .map(|Pipes { reader, writer }| (reader, writer))
            .unzip();
        let inbound = Inbound {
            source: Source::new(&socket, visit, reader)?,
            bytes: BytesMut::new(),
            max_frame,
        };
        let outbound = Outbound {
            sink: Sink::new(socket, writer),
            bytes: BytesMut::new(),
        };
        Ok(Self { inbound, outbound })
    }

    /// The next frame; none: the peer has ended the link.
    pub(super) async fn next<F: Frame>(&mut self) -> Result<Option<F>, Failure> {
        loop {
            match self.inbound.next().await? {
                Some(Said::Frame(frame)) => return Ok(Some(frame)),
                Some(Said::Memory) => self.outbound.switch(),
                None => return Ok(None),
            }
        }
    }

    /// Sends what is under way, and then that the link ends, and why.
    pub(super) async fn end(&mut self, why: &Failure) -> io::Result<()> {
        let (kind, reason) = match why {
            Failure::Refused(reason) => (REFUSAL, reason),
            Failure::Lost(reason) => (END, reason),
        };
        let put = |bytes: &mut BytesMut| bytes.put_slice(reason.as_bytes());
        self.outbound.put(kind, put);
        self.outbound.flush().await
    }

    /// From now on `outgoing` is sent.
    pub(super) fn carry<O: OutgoingFrame>(self, outgoing: Outgoing<O>) -> Carried<O> {
        self.inbound.source.begin();
        Carried {
            wire: self,
            outgoing,
        }
    }
}

impl<O: OutgoingFrame> Carried<O> {
    /// See [`Wire::end`].
    pub(super) async fn end(&mut self, why: &Failure) -> io::Result<()> {
        self.wire.end(why).await
    }
}

impl<I: Frame, O: Frame + OutgoingFrame> Frames<I> for Carried<O> {
    async fn next(&mut self) -> Result<Option<I>, Failure> {
        loop {
            let Wire { inbound, outbound } = &mut self.wire;
            let said = tokio::select! {
                said = inbound.next() => said?,
                failure = outbound.send_all(&mut self.outgoing) => return Err(failure),
            };
            match said {
                Some(Said::Frame(frame)) => return Ok(Some(frame)),
                Some(Said::Memory) => outbound.switch(),
                None => return Ok(None),
            }
        }
    }
}

impl Inbound {
    /// Loses nothing if it is given up.
    async fn next<F: Frame>(&mut self) -> Result<Option<Said<F>>, Failure> {
        loop {
            match self.take()? {
                Some(Piece::Frame(bytes)) => {
                    self.source.count(!self.bytes.is_empty()).await;
                    return F::read(bytes).map(Said::Frame).map(Some).map_err(lost);
                }
                Some(Piece::Refusal(reason)) => {
                    return Err(Failure::Refused(text(&reason)));
                }
                Some(Piece::End(reason)) => return Err(Failure::Lost(text(&reason))),
                Some(Piece::Memory) => {
                    if !self.bytes.is_empty() || !self.source.switch() {
                        return Err(Failure::Lost(
                            "the peer speaks of memory that it does not share".into(),
                        ));
                    }
                    return Ok(Some(Said::Memory));
                }
                None => {}
            }
            if self.source.read(&mut self.bytes).await.map_err(lost)? == 0 {
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
            END => Piece::End,
            MEMORY => |_| Piece::Memory,
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
    /// if it is given up. Fails if the peer breaks the rules of memory.
    async fn send_all<O: Frame + OutgoingFrame>(&mut self, outgoing: &mut Outgoing<O>) -> Failure {
        loop {
            match self.flush().await {
                Err(error) if is_broken(&error) => return lost(error),
                // Whoever takes nothing more is about to end the link, and may have said why: that is
                // read.
                Err(_) => break,
                Ok(()) => {}
            }
            let Some(frame) = outgoing.next().await else {
                break;
            };
            self.put(FRAME, |bytes| frame.write(bytes));
        }
        pending().await
    }

    /// Sends what is to leave.
    async fn flush(&mut self) -> io::Result<()> {
        self.sink.send(&mut self.bytes).await
    }

    /// Sends what comes after this through memory, if that can be and is not done yet.
    fn switch(&mut self) {
        if self.sink.can_switch() {
            self.put(MEMORY, |_| ());
            self.sink.switch_after(self.bytes.len());
        }
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

/// Whether the peer has broken the rules of memory.
fn is_broken(error: &io::Error) -> bool {
    let inner = error.get_ref();
    inner.is_some_and(<dyn std::error::Error + Send + Sync>::is::<Broken>)
}

fn lost(error: impl std::fmt::Display) -> Failure {
    Failure::Lost(error.to_string())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
