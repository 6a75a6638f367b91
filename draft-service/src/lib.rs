//! A speculation endpoint: a draft model shared by many targets, as a service.
//!
//! ```text
//! targets ══link══> service ──Message──> engine thread ──Window──> link ══> targets
//! ```
//!
//! One thread owns the engine and every session; it is never a thread of the async runtime and
//! nothing it does waits for a peer. Each of its steps carries the next row of every session that
//! drafts, whichever target it belongs to, and a bounded chunk of prefill.
//!
//! Invariants: a session is known by (link, session) and never seen by another link; a message of
//! an older epoch or round changes nothing; work whose outcome is known is dropped; a session's
//! pages and slot are free as soon as it is closed, its link is lost or its lease runs out.

pub mod config;
mod grants;
mod in_process;
mod inbox;
mod metrics;
mod recording;
mod service;
mod warmup;
mod worker;

pub use config::{AnnounceConfig, DraftConfig, QuotaConfig};
pub use grants::GrantsError;
pub use in_process::InProcess;
pub use service::{BindError, DraftService, RunError};
