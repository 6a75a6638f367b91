//! Links over every carrier, well and badly treated.

mod behaviour;
mod carrier;
mod conformance;
mod engines;
mod faults;
mod grants;
mod large;
#[cfg(target_os = "linux")]
mod memory;
mod proxy;
mod room;
mod strangers;
mod visits;
