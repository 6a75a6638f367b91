//! What router, targets and drafts say to each other, and the links that carry it.
//!
//! Domain types are plain Rust ([`generate`], and `foretoken_speculation::message` for
//! speculation); the protobuf code generated from `proto/` stays private to this crate.

pub mod generate;
