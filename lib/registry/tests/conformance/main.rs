//! What every backend does, in one suite that all of them pass, with what is particular to each.
#![expect(clippy::unwrap_used, reason = "what tests are made of may fail them")]

mod log;
mod static_file;
mod suite;
