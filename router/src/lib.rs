//! The `OpenAI` API in front of targets.
//!
//! ```text
//! HTTP --request--> Job --Generation per choice--> target (gRPC) --tokens--> Choice --text--> SSE | JSON
//!                              ^--lost: replay elsewhere--'
//! ```
//!
//! The router owns text: it applies chat templates, tokenizes, streams token ids back into text,
//! finds stop strings. It holds no model and draws no token.
//!
//! Invariants: a request that is wrong is refused before a target hears of it; a stream that has
//! begun goes on with the same tokens while any equal target is alive; a client that goes away
//! frees its target at once; what a slow client has not read is not fetched.

mod choice;
pub mod config;
mod cors;
mod error;
mod generation;
mod http;
mod keys;
mod linger;
mod metrics;
mod model;
mod request;
mod response;
mod server;
mod service;
mod targets;

pub use config::{ConfigError, ModelConfig, RouterConfig};
pub use keys::{KeysError, check_keys};
pub use model::ModelError;
pub use service::{BindError, Router, RunError};
