//! What targets and drafts have in common as services: what their configurations check, what they
//! count, what they say of themselves and log of each other, and the port on which they show how they
//! are doing, round by round if asked.
//!
//! Not here: what a service does, and the router, whose pages are among its own.

pub mod complaints;
pub mod config;
pub mod metrics;
pub mod observation;
pub mod report;
pub mod rounds;
