//! What every backend does, in one suite that all of them pass, with what is particular to each.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

mod etcd;
mod gateway;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod log;
mod programs;
mod proxy;
mod static_file;
mod suite;
