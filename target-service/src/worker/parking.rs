//! Requests whose clients do not keep up.
//!
//! A client that does not read has its request parked: pages, its place in the batch and its
//! session on an endpoint go to others, only the sequence and what is unread stay. Once the client
//! has read half of it, the request queues again and goes on where it was; its prompt and output
//! are computed anew as far as the prefix cache has lost them, as after a preemption.

use foretoken_engine::schedule::RequestId;

use super::Worker;

/// Most bytes of events that may wait for a client, about: well over a thousand tokens. What is
/// under way to the router comes on top.
pub(super) const MOST_UNREAD: usize = 256 << 10;
/// A parked request goes on when its client has left no more than this.
const LITTLE_UNREAD: usize = MOST_UNREAD / 2;

impl Worker {
    /// Parks a request, whose client is too far behind.
    pub(super) fn park(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else {
            return;
        };
        tracing::debug!(request = id.0, "parked: its client does not read");
        request.meter.forget_round();
        self.let_go(id);
        self.parked.push(id);
        if let Some(mut request) = self.requests.remove(&id) {
            self.release(&mut request);
            self.requests.insert(id, request);
        }
    }

    /// Queues the parked requests whose clients have caught up; those for which the queue has no
    /// place are tried again. Says whether there were any.
    pub(super) fn unpark(&mut self) -> bool {
        let (requests, scheduler) = (&self.requests, &mut self.scheduler);
        let before = self.parked.len();
        self.parked.retain(|id| {
            let Some(request) = requests.get(id) else {
                return false;
            };
            if request.events.unread() > LITTLE_UNREAD {
                return true;
            }
            scheduler.submit(request.to_be_scheduled()).is_err()
        });
        self.parked.len() < before
    }
}
