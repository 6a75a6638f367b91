//! Systems without files of memory that can be sealed: none is offered, and none is taken. Links stay
//! with their sockets there.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

use crate::Pipes;

/// No memory.
pub fn offer() -> io::Result<(Pipes, OwnedFd)> {
    Err(io::ErrorKind::Unsupported.into())
}

/// No pipes.
pub fn open(_file: &OwnedFd) -> io::Result<Pipes> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Sends nothing: there is no file to send.
pub fn send(_socket: impl AsFd, _bytes: &[u8], _file: &OwnedFd) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Receives bytes over a Unix socket; how many. A file that came with them is not asked for.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    Ok((rustix::io::read(socket, buffer)?, None))
}
