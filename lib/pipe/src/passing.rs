//! Files of memory, and how they get to another process.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use memmap2::MmapRaw;
use rustix::{
    cmsg_space,
    fs::{
        FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals, fstat,
        memfd_create,
    },
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};

use crate::{
    Pipes,
    ring::{Reader, SIZE, Writer},
};

/// What nobody can do to the file any more: whoever has mapped it reads it without fear of a signal.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Memory for a pair of pipes: this process's ends, and the file that the other one opens.
pub fn offer() -> io::Result<(Pipes, OwnedFd)> {
    let file = memfd_create("foretoken", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    // Not only as long: what there is no memory for is found out here, and not by a signal.
    fallocate(&file, FallocateFlags::empty(), 0, SIZE as u64)?;
    fcntl_add_seals(&file, FIXED | SealFlags::SEAL)?;
    let map = Arc::new(MmapRaw::map_raw(&file)?);
    let pipes = Pipes {
        writer: Writer::new(Arc::clone(&map), 0),
        reader: Reader::new(map, 1),
    };
    Ok((pipes, file))
}

/// The other ends of pipes that a peer has offered. An error if the file is none of [`offer`], of the
/// same release.
pub fn open(file: &OwnedFd) -> io::Result<Pipes> {
    // Seals first: only files of memory have any, and the size of one that is sealed stays.
    if !fcntl_get_seals(file)?.contains(FIXED) || fstat(file)?.st_size != SIZE as i64 {
        return Err(io::Error::other("the file holds no pipes of this release"));
    }
    let map = Arc::new(MmapRaw::map_raw(file)?);
    Ok(Pipes {
        reader: Reader::new(Arc::clone(&map), 0),
        writer: Writer::new(map, 1),
    })
}

/// Sends `bytes` over a Unix socket, and `file` with the first of them; how many bytes.
pub fn send(socket: impl AsFd, bytes: &[u8], file: &OwnedFd) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    // There is space for one.
    ancillary.push(SendAncillaryMessage::ScmRights(&files));
    let sent = sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    Ok(sent)
}

/// Receives bytes over a Unix socket; how many, and the file that came with them, if one did.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(buffer)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let mut file = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            // Whatever else was sent is closed.
            file = files.last();
        }
    }
    Ok((received.bytes, file))
}
