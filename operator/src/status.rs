//! What is told about objects. Pure: from what was observed, and what was told before.

mod condition;
mod deployment;
mod endpoint;
mod rollout;
mod speculation;
mod trouble;
mod workload;

pub use condition::{Change, Conditions, HasConditions, Refused, changes, is_urgent};
pub use deployment::{Observed, deployment};
pub use endpoint::{ObservedEndpoint, endpoint};
pub use trouble::{Trouble, cause, of_certificate, of_pod};
pub use workload::Workload;

pub(crate) use trouble::MODEL;
