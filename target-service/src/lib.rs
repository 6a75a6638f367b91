//! The target: the model that decides every token, as a service.
//!
//! ```text
//! router ──Generate──> service ──Message──> engine thread ──Outcome──> link ══> endpoint
//!        <───events──────────────────────────────┘   ^──────Window────────'
//! ```
//!
//! One thread owns the engine, the scheduler and every request; it is never a thread of the
//! async runtime and nothing it does waits for a peer. Everything reaches it through one inbox.
//!
//! Invariants: output is a function of (model, prompt, sampling, seed); an endpoint that is
//! late, lost, wrong or absent costs time and nothing else; a request that ends, in whatever way,
//! gives its pages and its endpoint's slot back at once.
//!
//! Not here: text (the router's), placement (the router's), arithmetic of models (`engine`) and
//! of verification (`speculation`).

mod check;
pub mod config;
mod dial;
mod directory;
mod inbox;
mod links;
mod metrics;
mod recording;
mod request;
mod service;
mod warmup;
mod worker;

pub use config::{
    AnnounceConfig, ConfigError, DeliveryName, EndpointConfig, FallbackName, FanOutName,
    LookaheadConfig, MAX_LOOKAHEAD, OnLossName, PolicyName, SsdConfig, TargetConfig, TreesName,
    VerificationConfig,
};
pub use links::{LinkReport, LinkState, LinkWatch};
pub use service::{BindError, RunError, TargetService};
