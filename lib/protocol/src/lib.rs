//! What router, targets and drafts say to each other, and the links that carry it.
//!
//! ```text
//! router ── generate::GenerateClient ──> generate::serve_generate ── target-service
//! target-service ── link::Transport::dial ══ frames ══ link::Transport::serve ── draft-service
//! ```
//!
//! Domain types are plain Rust ([`generate`], and `foretoken_speculation::message` for
//! speculation); the protobuf code generated from `proto/` stays private to this crate. What
//! comes from a peer is checked here, so that a value that leaves this crate keeps its type's
//! promises; what only the receiver can check (does a token exist, does a round follow) it checks.

pub mod address;
pub mod files;
pub mod generate;
pub mod link;
pub mod tls;
mod wire;

pub use address::{Address, BindError, Callee, Listener};
