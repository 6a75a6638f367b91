//! When tokens leave that may wait for later ones ([`GenerateRequest::hold`]).
//!
//! They leave before a step at whose end they would have waited too long, and when nothing can run:
//! nothing stands still for them then.
//!
//! [`GenerateRequest::hold`]: foretoken_protocol::generate::GenerateRequest::hold

use std::time::Instant;

use super::Worker;

impl Worker {
    /// Lets everything leave that may not wait until `end`, when the step that begins now is expected
    /// to be over.
    pub(super) fn hand_on_before(&mut self, end: Instant) {
        let now = self.clock.now();
        for request in self.requests.values_mut() {
            request.flush_due(end, now);
        }
    }

    /// Lets everything leave.
    pub(super) fn hand_on(&mut self) {
        let now = self.clock.now();
        for request in self.requests.values_mut() {
            request.flush(now);
        }
    }
}
