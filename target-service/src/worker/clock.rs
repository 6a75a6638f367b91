//! Where the engine thread reads the time. Tests turn a clock of their own, so that what a worker
//! learns of time is the same on every host.

use std::time::Instant;

/// Tells the time.
pub(crate) trait Clock: Send {
    fn now(&self) -> Instant;
}

/// The clock of this host.
pub(super) struct HostClock;

impl Clock for HostClock {
    fn now(&self) -> Instant {
        Instant::now()
    }
}
