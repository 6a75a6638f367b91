//! Streams that have something to send while nobody moves bytes.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::Waker,
};

/// Wakes streams: at once while somebody runs their runtime, else when somebody next does.
///
/// To wake a task from outside its runtime costs a system call, and another look at the sockets to
/// find that out. An engine queues what it has to say between two visits to its mailbox, when
/// nobody runs the runtime, so it would pay that for every message and win nothing by it.
#[derive(Debug, Default)]
pub(super) struct Departures {
    /// Threads that run the runtime at this moment.
    running: AtomicUsize,
    waiting: Mutex<Vec<Waker>>,
    /// Whether the runtime was run since the last [`Self::take`]: what was woken at the end of that
    /// may not have been polled.
    ran: AtomicBool,
}

impl Departures {
    /// Somebody is about to run the runtime, and calls [`Self::depart`] there.
    pub(super) fn begin(&self) {
        self.running.fetch_add(1, Ordering::AcqRel);
    }

    /// Wakes all that wait.
    pub(super) fn depart(&self) {
        let waiting = std::mem::take(&mut *self.lock());
        for waker in waiting {
            waker.wake();
        }
    }

    /// Whether any stream may wait; from now on none does. For somebody who polls all of them without
    /// the runtime.
    pub(super) fn take(&self) -> bool {
        let waiting = std::mem::take(&mut *self.lock());
        self.ran.swap(false, Ordering::AcqRel) || !waiting.is_empty()
    }

    /// Somebody has stopped running the runtime.
    pub(super) fn end(&self) {
        self.ran.store(true, Ordering::Release);
        self.running.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether anybody runs the runtime.
    pub(super) fn is_running(&self) -> bool {
        self.running.load(Ordering::Acquire) > 0
    }

    /// Wakes a stream.
    pub(super) fn wake(&self, waker: Waker) {
        let mut waiting = self.lock();
        // Asked under the lock: whoever begins after it departs after this has been added.
        if !self.is_running() {
            waiting.push(waker);
            return;
        }
        drop(waiting);
        waker.wake();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, task::Wake};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn streams_wait_for_somebody_to_run_them_and_are_woken_at_once_by_somebody_who_does() {
        let (departures, woken) = (Departures::default(), Arc::new(Count::default()));
        let count = || woken.0.load(Ordering::Relaxed);
        departures.wake(Waker::from(Arc::clone(&woken)));
        assert_eq!(count(), 0);
        departures.begin();
        departures.depart();
        assert_eq!(count(), 1);
        departures.wake(Waker::from(Arc::clone(&woken)));
        assert_eq!(count(), 2);
        departures.end();
        departures.wake(Waker::from(Arc::clone(&woken)));
        assert_eq!(count(), 2);
    }
}
