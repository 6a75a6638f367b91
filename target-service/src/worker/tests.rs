//! The worker without threads and sockets: a test turns it, and carries the messages between it
//! and an endpoint of its own.

mod binding;
mod endpoint;
mod faults;
mod learning;
mod lingering;
mod output;
mod parking;
mod rig;
mod stopgap;
mod trees;
