//! Where a link's bytes come from and go to: its socket, and memory once both ends have taken it in
//! use.
//!
//! Then the socket carries single bytes that wake an end which sleeps, and tells when the peer has
//! gone.

use std::{
    future::poll_fn,
    io::{self, Write},
    os::unix::net::UnixStream,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, BufMut, BytesMut};
use foretoken_pipe::{Reader, Writer};
use tokio::{
    io::{AsyncRead, ReadBuf},
    net::unix::pipe,
    task::coop,
    time::sleep,
};

use crate::link::polled::Visit;

/// Most bytes of a read. What a step of a few dozen sessions says fits.
const READ: usize = 16 << 10;

/// How often it is looked whether there is room again in a ring that is full: one that holds some
/// hundred frames is full when something very long is sent, or when the peer is stuck.
const ROOM: Duration = Duration::from_millis(1);

/// Where bytes come from.
#[derive(Debug)]
pub(super) struct Source {
    /// Watches its direction of the socket only: see [`super::Wire`].
    socket: pipe::Receiver,
    visit: Visit,
    /// What one read brings.
    buffer: Box<[u8]>,
    memory: Option<Reader>,
    in_memory: bool,
}

/// Where bytes go to.
#[derive(Debug)]
pub(super) struct Sink {
    socket: Arc<UnixStream>,
    memory: Option<Writer>,
    /// Bytes that go over the socket before all others go through memory; none: all that there are.
    over_socket: Option<usize>,
}

impl Source {
    pub(super) fn new(
        socket: &UnixStream,
        visit: Visit,
        memory: Option<Reader>,
    ) -> io::Result<Self> {
        visit.leave();
        Ok(Self {
            socket: pipe::Receiver::from_owned_fd_unchecked(socket.try_clone()?.into())?,
            visit,
            buffer: vec![0; READ].into_boxed_slice(),
            memory,
            in_memory: false,
        })
    }

    /// From now on bytes come through memory; false if there is none, or they did already.
    pub(super) fn switch(&mut self) -> bool {
        let Some(memory) = self.memory.as_ref().filter(|_| !self.in_memory) else {
            return false;
        };
        self.visit.through_memory(memory.peek());
        self.in_memory = true;
        true
    }

    /// The link is up.
    pub(super) fn begin(&self) {
        if !self.in_memory {
            self.visit.over_socket();
        }
    }

    /// Waits for more bytes and takes them in; how many, 0: no more will come.
    pub(super) async fn read(&mut self, bytes: &mut BytesMut) -> io::Result<usize> {
        poll_fn(|cx| {
            let read = ready!(if self.in_memory {
                self.poll_memory(cx)
            } else {
                self.poll_socket(cx)
            })?;
            bytes.put_slice(&self.buffer[..read]);
            Poll::Ready(Ok(read))
        })
        .await
    }

    /// A frame was taken, and there may be `more` in what was read. It counts as a read does for how much a
    /// task may do at a time, or that would be all the thousands of small ones that come with each read.
    pub(super) async fn count(&self, more: bool) {
        self.visit.keep(more);
        poll_fn(|cx| {
            // Who may do no more is told so when it goes on; what it has it keeps.
            if let Poll::Ready(turn) = coop::poll_proceed(cx) {
                turn.made_progress();
            }
            Poll::Ready(())
        })
        .await;
    }

    fn poll_socket(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut filled = ReadBuf::new(&mut self.buffer);
        ready!(Pin::new(&mut self.socket).poll_read(cx, &mut filled))?;
        Poll::Ready(Ok(filled.filled().len()))
    }

    fn poll_memory(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Some(memory) = &mut self.memory else {
            return Poll::Pending;
        };
        if self.visit.is_one() {
            // Whoever visits does not sleep afterwards, so that nobody needs to wake it.
            if !self.visit.take_read() {
                return Poll::Pending;
            }
            let read = memory.read(&mut self.buffer).map_err(io::Error::other)?;
            return match read {
                0 => Poll::Pending,
                _ => Poll::Ready(Ok(read)),
            };
        }
        loop {
            let turn = ready!(coop::poll_proceed(cx));
            let read = memory.read(&mut self.buffer).map_err(io::Error::other)?;
            if read > 0 {
                turn.made_progress();
                return Poll::Ready(Ok(read));
            }
            if !memory.may_sleep().map_err(io::Error::other)? {
                turn.made_progress();
                continue;
            }
            let mut calls = [0; 64];
            let mut filled = ReadBuf::new(&mut calls);
            let called = ready!(Pin::new(&mut self.socket).poll_read(cx, &mut filled));
            turn.made_progress();
            if called.is_ok() && !filled.filled().is_empty() {
                continue;
            }
            // The peer has gone. What it had written before is still there. If it was not awake for
            // a call, the kernel says that it broke the connection, which is no news.
            let rest = memory.read(&mut self.buffer).map_err(io::Error::other)?;
            return Poll::Ready(match called {
                Err(error) if rest == 0 && error.kind() != io::ErrorKind::ConnectionReset => {
                    Err(error)
                }
                _ => Ok(rest),
            });
        }
    }
}

impl Sink {
    pub(super) fn new(socket: Arc<UnixStream>, memory: Option<Writer>) -> Self {
        Self {
            socket,
            memory,
            over_socket: None,
        }
    }

    /// Whether bytes can go through memory and do not yet.
    pub(super) fn can_switch(&self) -> bool {
        self.memory.is_some() && self.over_socket.is_none()
    }

    /// After so many more, bytes go through memory.
    pub(super) fn switch_after(&mut self, bytes: usize) {
        self.over_socket = Some(bytes);
    }

    /// Sends all `bytes`; what has left is not among them any more if it is given up.
    pub(super) async fn send(&mut self, bytes: &mut BytesMut) -> io::Result<()> {
        while !bytes.is_empty() {
            let most = self.over_socket.unwrap_or(bytes.len()).min(bytes.len());
            if let (0, Some(memory)) = (most, &mut self.memory) {
                let written = memory.write(bytes).map_err(io::Error::other)?;
                bytes.advance(written);
                if memory.must_wake() {
                    self.wake()?;
                }
                if written == 0 {
                    sleep(ROOM).await;
                }
                continue;
            }
            match (&*self.socket).write(&bytes[..most]) {
                Ok(written) => {
                    bytes.advance(written);
                    self.over_socket = self.over_socket.map(|left| left - written);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.room().await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Wakes the peer.
    fn wake(&self) -> io::Result<()> {
        match (&*self.socket).write(&[0]) {
            // A socket that is full wakes it too.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            done => done.map(|_| ()),
        }
    }

    /// Waits until the peer has taken something out of the socket.
    async fn room(&self) -> io::Result<()> {
        let socket = self.socket.try_clone()?.into();
        pipe::Sender::from_owned_fd_unchecked(socket)?
            .writable()
            .await
    }
}
