//! Makes a cluster what its objects say: `SpecDecodeDeployment`s become routers and targets,
//! `SpeculationEndpoint`s pools of drafts.
//!
//! ```text
//! fetch ──> accept, resolve (pure) ──> build (pure) ──> apply ──> status
//! ```
//!
//! - [`accept`]: what this version does not serve, and says so;
//! - [`resolve`]: which endpoints a deployment means and may use;
//! - [`build`]: the objects that are wanted.

pub mod accept;
pub mod build;
pub mod merge;
pub mod object;
pub mod resolve;
pub mod settings;

pub use object::{Made, Object, Owner};
pub use settings::Settings;
