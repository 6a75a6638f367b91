//! Links whose tasks an engine's thread polls itself.
//!
//! To run the runtime for one message costs more than the message does: the runtime is entered and
//! left, and the kernel is asked twice which sockets are ready. An engine that is at work only
//! wants to know whether anything has come. So it polls the tasks of links itself, as the runtime
//! would, and each may look for more once without having been told that there is any. The runtime
//! runs them too: whenever an engine waits, and every few milliseconds for whatever else tasks
//! wait for.
//!
//! Links over gRPC cannot be polled so, since most of their work is done by tasks of their own.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use foretoken_pipe::Peek;

use super::departures::Departures;

/// The links of a process, by whether they can be polled.
#[derive(Debug, Default)]
pub(super) struct Polled {
    links: Mutex<Vec<Arc<Task>>>,
    /// Links that need the runtime for every message.
    others: AtomicUsize,
}

/// Whether an engine polls the task of a link, rather than the runtime, and what for.
#[derive(Clone, Debug, Default)]
pub(super) struct Visit(Arc<Errand>);

#[derive(Debug, Default)]
struct Errand {
    is_one: AtomicBool,
    may_read: AtomicBool,
    /// Where whatever comes can be seen, if that is so.
    arrivals: OnceLock<Peek>,
}

/// A link that needs the runtime for every message, as long as this exists.
#[derive(Debug)]
pub(super) struct Other(Arc<Polled>);

/// The task of a link.
struct Task {
    visit: Visit,
    state: Mutex<State>,
}

struct State {
    /// None: it has ended.
    link: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Wakes it in the runtime.
    waker: Option<Waker>,
}

/// The same task as the runtime sees it.
pub(super) struct InRuntime {
    task: Arc<Task>,
    polled: Arc<Polled>,
}

impl Visit {
    /// Whether an engine polls, which does not sleep afterwards.
    pub(super) fn is_one(&self) -> bool {
        self.0.is_one.load(Ordering::Relaxed)
    }

    /// Whether what has come may be taken in although nobody has said that there is anything. That
    /// is allowed once a visit: a peer that always has more to say cannot keep an engine from its
    /// work.
    pub(super) fn take_read(&self) -> bool {
        self.0.may_read.swap(false, Ordering::Relaxed)
    }

    /// Whatever comes can be seen there from now on.
    pub(super) fn watch(&self, arrivals: Peek) {
        // Set once: a link never leaves memory.
        let _ = self.0.arrivals.set(arrivals);
    }

    /// Whether anything may have come.
    fn finds_any(&self) -> bool {
        self.0.arrivals.get().is_none_or(Peek::finds_any)
    }

    fn begin(&self, reads: bool) {
        self.0.is_one.store(true, Ordering::Relaxed);
        self.0.may_read.store(reads, Ordering::Relaxed);
    }

    fn end(&self) {
        self.0.is_one.store(false, Ordering::Relaxed);
        self.0.may_read.store(false, Ordering::Relaxed);
    }
}

impl Polled {
    /// The task for the runtime that is the link which `make` gives, and can be polled by
    /// engines from its first poll in the runtime to its end.
    pub(super) fn share<F>(self: &Arc<Self>, make: impl FnOnce(Visit) -> F) -> InRuntime
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let visit = Visit::default();
        let link: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(make(visit.clone()));
        let state = State {
            link: Some(link),
            waker: None,
        };
        let task = Arc::new(Task {
            visit,
            state: Mutex::new(state),
        });
        self.links().push(Arc::clone(&task));
        InRuntime {
            task,
            polled: Arc::clone(self),
        }
    }

    /// Notes a link that cannot be polled.
    pub(super) fn other(self: &Arc<Self>) -> Other {
        self.others.fetch_add(1, Ordering::AcqRel);
        Other(Arc::clone(self))
    }

    /// Polls links once for an engine that goes on at once: those that have something to send, and,
    /// if it `reads`, those for which something may have come. False if that was not possible, so that
    /// the runtime has to be run. To be called where tasks of the runtime can be polled.
    pub(super) fn visit(&self, reads: bool, departures: &Departures) -> bool {
        if self.others.load(Ordering::Acquire) > 0 {
            return false;
        }
        // Their wakers are not needed: whoever sends is polled here.
        let sends = departures.take();
        // Events are delivered meanwhile, but nobody who gets one begins or ends a link at once.
        let links = self.links();
        links.iter().all(|task| {
            let is_called_for = sends || (reads && task.visit.finds_any());
            !is_called_for || task.visit(reads, departures)
        })
    }

    /// Has the runtime poll all links, so that they prepare for sleep.
    pub(super) fn wake(&self) {
        for task in self.links().iter() {
            if let Some(waker) = &task.state().waker {
                waker.wake_by_ref();
            }
        }
    }

    fn links(&self) -> MutexGuard<'_, Vec<Arc<Task>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Task {
    /// Polls it for an engine; false if somebody else does or may sleep until it is woken.
    fn visit(&self, reads: bool, departures: &Departures) -> bool {
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        // Asked under the lock: whoever runs the runtime afterwards polls it afterwards.
        if departures.is_running() {
            return false;
        }
        self.visit.begin(reads);
        let polled = catch_unwind(AssertUnwindSafe(|| state.poll()));
        self.visit.end();
        if !matches!(polled, Ok(Poll::Pending)) {
            // A link that panics ends, as it would in the runtime; its engine goes on.
            state.link = None;
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        }
        true
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Whoever panics in a poll ends the link, and does not hold it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn poll(&mut self) -> Poll<()> {
        let Some(link) = &mut self.link else {
            return Poll::Ready(());
        };
        // Polled by the runtime first: whatever it waits for has to know whom to wake.
        let Some(waker) = &self.waker else {
            return Poll::Pending;
        };
        link.as_mut().poll(&mut Context::from_waker(waker))
    }
}

impl Future for InRuntime {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.task.state();
        match &mut state.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => state.waker = Some(cx.waker().clone()),
        }
        state.poll()
    }
}

impl Drop for InRuntime {
    fn drop(&mut self) {
        let ours = |task: &Arc<Task>| Arc::ptr_eq(task, &self.task);
        self.polled.links().retain(|task| !ours(task));
        // Dropped outside the lock, by the runtime.
        let link = self.task.state().link.take();
        drop(link);
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.0.others.fetch_sub(1, Ordering::AcqRel);
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Task").finish_non_exhaustive()
    }
}
