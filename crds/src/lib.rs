//! `SpecDecodeDeployment` and `SpeculationEndpoint`: the API of `foretoken.io/v1alpha1`, and what
//! makes an object valid.
//!
//! ```text
//! text --tree--> Node (with lines) --read--> objects --validate--> Manifest
//!                                        \________problems, all of them, with lines____/
//! Manifest --served--> what this version cannot run yet
//!        \--reference--> which endpoints a deployment means
//! ```
//!
//! Every mistake in a file is reported at once, with the line, the field, the value and what is
//! allowed; an unknown field names the nearest known one. Validity does not depend on what this
//! version implements: policies that are part of the API and not served yet are valid, and
//! [`served::gaps`] tells which they are.
//!
//! Not here: how an object becomes processes (`foretoken up`).

pub mod deployment;
pub mod endpoint;
pub mod manifest;
pub mod object;
pub mod policy;
pub mod problem;
pub mod reference;
pub mod served;

mod read;
mod suggest;
mod tree;
mod validate;

pub use deployment::SpecDecodeDeployment;
pub use endpoint::SpeculationEndpoint;
pub use manifest::{Document, Manifest};
pub use problem::{Invalid, Problem};

/// API group and version of all kinds.
pub const API_VERSION: &str = "foretoken.io/v1alpha1";
