//! Links over every carrier, well and badly treated.

mod behaviour;
mod carrier;
mod conformance;
mod engines;
mod faults;
mod large;
mod proxy;
mod strangers;
