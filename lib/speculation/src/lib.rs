//! Speculative decoding without I/O: noise, sampling, verification, policies, control.
//!
//! Everything here is a function of its arguments. Time, randomness and messages come in as
//! values and effects go out as values, so the same code runs in a service, in a test with
//! virtual time and in a simulation. The crate is `no_std`: a clock, a socket or a thread does
//! not compile here, and transcendental functions come from `libm`, so the arithmetic gives the
//! same bits on every host.
#![no_std]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod bounds;
pub mod branch;
mod columns;
pub mod control;
pub mod fallback;
pub mod fanout;
pub mod gather;
#[cfg(test)]
mod golden;
pub mod guess;
pub mod hash;
pub mod ids;
pub mod linger;
pub mod local;
pub mod message;
pub mod noise;
pub mod policy;
pub mod proposal;
pub mod saguaro;
pub mod sampling;
mod tally;
pub mod theory;
pub mod trace;
pub mod tree;
pub mod verify;

pub use ids::{Epoch, Round, Seed, SessionId, TokenId};
pub use trace::TraceContext;
pub use tree::Proposals;
