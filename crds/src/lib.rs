//! `SpecDecodeDeployment`, `SpeculationEndpoint` and `AcceleratorProfile`: the API of
//! `foretoken.io/v1alpha1`, and what makes an object valid.
//!
//! ```text
//! types --derive--> definition (schema, bounds, rules in CEL) --yaml--> what a cluster installs
//!                        |
//! text --tree--> Node --read, rules--> objects --> Manifest
//!                        \____problems, all of them, with lines____/
//! Manifest --served--> what this version cannot run yet
//!        \--reference--> which endpoints a deployment means
//! ```
//!
//! The types are the one source of every rule: the schema is derived from them, the API server holds
//! objects to it, and so does `foretoken check`, which runs the same schema and the same CEL.
//!
//! Every mistake in a file is reported at once, with the line, the field, the value and what is
//! allowed; an unknown field names the nearest known one. Validity does not depend on what this
//! version implements: policies that are part of the API and not served yet are valid, and
//! [`served::gaps`] tells which they are.
//!
//! Not here: how an object becomes processes (`foretoken up`).

pub mod definition;
pub mod deployment;
pub mod endpoint;
pub mod manifest;
pub mod memory;
pub mod object;
pub mod page;
pub mod policy;
pub mod problem;
pub mod profile;
pub mod reference;
pub mod rollout;
pub mod served;
pub mod status;
pub mod telemetry;

mod bounds;
mod metadata;
mod read;
mod rules;
mod suggest;
mod tree;

pub use definition::Kind;
pub use deployment::SpecDecodeDeployment;
pub use endpoint::SpeculationEndpoint;
pub use manifest::{Document, Manifest};
pub use problem::{Invalid, Problem};
pub use profile::AcceleratorProfile;

/// API group and version of all kinds.
pub const API_VERSION: &str = "foretoken.io/v1alpha1";
