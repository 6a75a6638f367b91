//! A pipe each way through memory that two processes share.
//!
//! To pass bytes this way costs a copy at either end and no system call; only an end that sleeps has
//! to be woken, by other means. One process [offers](offer) a file of memory and [sends](send) it
//! over a Unix socket, the other [receives](receive) and [opens](open) it.
//!
//! ```text
//! Writer::write ─> ring ─> Reader::read          Writer::must_wake <─ Reader::may_sleep
//! ```
//!
//! The peer is not trusted: whatever it writes, and wherever it says to be, reads and writes stay
//! within the ring, and the file cannot shrink under them. What it can do is to send rubbish.
//!
//! Only Linux has files of memory that nobody can shrink; elsewhere [`offer`] fails.

#[cfg(target_os = "linux")]
mod passing;
#[cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, reason = "only memory of Linux can be shared")
)]
mod ring;
#[cfg(not(target_os = "linux"))]
mod unshared;

pub use ring::{Broken, CAPACITY, Peek, Reader, Writer};

#[cfg(target_os = "linux")]
pub use passing::{offer, open, receive, send};
#[cfg(not(target_os = "linux"))]
pub use unshared::{offer, open, receive, send};

/// One process's ends of a pair of pipes.
#[derive(Debug)]
pub struct Pipes {
    /// What the other process sends.
    pub reader: Reader,
    /// What this one sends.
    pub writer: Writer,
}
