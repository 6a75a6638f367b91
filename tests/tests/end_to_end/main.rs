//! The executable from outside: `foretoken up` on the models of this repository, over HTTP.
//!
//! The promise under test: speculation never changes a token and never causes an error, whatever
//! dies while tokens stream.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

mod bench;
mod downloads;
mod endpoints;
mod faults;
mod fixture;
mod generate;
mod lengths;
mod links;
mod losslessness;
mod metrics;
mod mirror;
mod options;
mod relay;
mod services;
mod shipped;
mod terminal;
mod top;
mod traces;
mod usage;
