//! A target and its endpoints, as services over real sockets.
#![expect(clippy::panic, reason = "helpers of tests may fail them")]

mod alone;
mod caches;
mod dialled;
mod ends;
mod flood;
mod limits;
mod malice;
mod metrics;
mod moving;
mod refusal;
mod rejection;
mod rig;
mod rounds;
mod sharing;
mod ssd;
mod status;
mod stopping;
mod streams;
