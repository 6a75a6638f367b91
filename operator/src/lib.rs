//! Makes a cluster what its objects say: `SpecDecodeDeployment`s become routers and targets,
//! `SpeculationEndpoint`s pools of drafts.
//!
//! ```text
//! fetch ──> accept, resolve (pure) ──> build (pure) ──> apply ──> status
//! ```
//!
//! - [`accept`]: what this version does not serve, and says so;
//! - [`shape`]: how a target is spread over pods;
//! - [`resolve`]: which endpoints a deployment means and may use;
//! - [`build`]: the objects that are wanted;
//! - `world`: what the cluster has, followed by watches;
//! - [`authority`]: which certificates are needed when; `certificates` keeps them in Secrets;
//! - [`revision`] and [`rollout`]: whether a pool comes to another draft, by what targets verified;
//! - `apply`: writes what differs from what is wanted, and nothing else;
//! - `hearsay`: asks pods how they are doing, and [`figures`]: what that comes to;
//! - [`scale`]: how many replicas a load asks for;
//! - [`status`]: what is told about objects, from what was observed;
//! - `controller`: looks at whatever a change concerns, and again when that failed;
//! - `election`: one of several operators works;
//! - `verify`: whether one does;
//! - `retire`: what is left to do when none will any more.
//!
//! Invariants: nothing is written while nothing changes; what somebody else made is left alone; an
//! operator that may have lost its lease writes nothing more.

pub mod accept;
pub mod authority;
pub mod build;
pub mod failure;
pub mod figures;
pub mod merge;
pub mod object;
pub mod resolve;
pub mod revision;
pub mod rollout;
pub mod scale;
pub mod settings;
pub mod shape;
pub mod status;

mod apply;
mod certificates;
mod controller;
mod election;
mod hearsay;
mod nudge;
mod operate;
mod retire;
mod verify;
mod world;

pub use object::{Made, Object, Owner};
pub use operate::{Election, OperateError, Options, operate, operate_on};
pub use retire::{retire, retire_from};
pub use settings::{Certificates, Issuer, Settings};
pub use verify::verify;
