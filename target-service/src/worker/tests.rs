//! The worker without threads and sockets: a test turns it, and carries the messages between it
//! and an endpoint of its own.

mod binding;
mod counts;
mod endpoint;
mod faults;
mod handing;
mod hearing;
mod learning;
mod lingering;
mod output;
mod parking;
mod patience;
mod refraining;
mod refusals;
mod rig;
mod stopgap;
mod trees;
