//! Links whose tasks an engine's thread polls itself.
//!
//! To run the runtime for one message costs more than the message does: the runtime is entered and
//! left, and the kernel is asked twice which sockets are ready. An engine that is at work only
//! wants to know whether anything has come. So it polls the tasks of links itself, as the runtime
//! would. The runtime runs them too: whenever an engine waits, and every few milliseconds for
//! whatever else tasks wait for.
//!
//! This is for links whose bytes come through memory, where a look costs next to nothing. Others
//! need the runtime for every message: those over gRPC, and those that stay with their socket.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, TryLockError,
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
    /// Something that was read has not been taken in yet.
    has_more: AtomicBool,
    way: Mutex<Way>,
}

/// How what comes over a link can be found.
#[derive(Debug, Default)]
enum Way {
    /// It is none yet, and nobody is in a hurry.
    #[default]
    None,
    /// By the runtime.
    Socket,
    /// In memory.
    Memory(Peek),
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

    /// Whether what has come may be taken in. That is allowed once a visit: a peer that always has
    /// more to say cannot keep an engine from its work.
    pub(super) fn take_read(&self) -> bool {
        self.0.may_read.swap(false, Ordering::Relaxed)
    }

    /// Whether there is something that was read and is still to be taken in: no look finds it.
    pub(super) fn keep(&self, more: bool) {
        self.0.has_more.store(more, Ordering::Relaxed);
    }

    /// There is no link: none yet, or none any more.
    pub(super) fn leave(&self) {
        self.keep(false);
        *self.way() = Way::None;
    }

    /// The link is up, with nothing but its socket.
    pub(super) fn over_socket(&self) {
        *self.way() = Way::Socket;
    }

    /// What comes can be seen there from now on.
    pub(super) fn through_memory(&self, arrivals: Peek) {
        *self.way() = Way::Memory(arrivals);
    }

    fn finds_any(&self, arrivals: &Peek) -> bool {
        self.0.has_more.load(Ordering::Relaxed) || arrivals.finds_any()
    }

    fn way(&self) -> MutexGuard<'_, Way> {
        // It is replaced as a whole.
        self.0.way.lock().unwrap_or_else(PoisonError::into_inner)
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
        // Not while links are visited: that is done only if there are no others.
        let links = self.links();
        self.others.fetch_add(1, Ordering::AcqRel);
        drop(links);
        Other(Arc::clone(self))
    }

    /// Polls links once for an engine that goes on at once: those that have something to send, and,
    /// if it `reads`, those for which something may have come. False if that was not possible, so that
    /// the runtime has to be run. To be called where tasks of the runtime can be polled.
    pub(super) fn visit(&self, reads: bool, departures: &Departures) -> bool {
        // Events are delivered meanwhile, but nobody who gets one begins or ends a link at once.
        let links = self.links();
        if self.others.load(Ordering::Acquire) > 0 {
            return false;
        }
        // Their wakers are not needed: whoever sends is polled here.
        let sends = departures.take();
        links.iter().all(|task| {
            let is_called_for = match &*task.visit.way() {
                Way::None => return true,
                Way::Socket => return false,
                Way::Memory(arrivals) => sends || (reads && task.visit.finds_any(arrivals)),
            };
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use foretoken_pipe::offer;

    use super::*;

    /// A task that counts its polls, and the visit it knows.
    fn counted(polled: &Arc<Polled>) -> (InRuntime, Visit, Arc<AtomicUsize>) {
        let polls = Arc::new(AtomicUsize::new(0));
        let (mut known, count) = (None, Arc::clone(&polls));
        let task = polled.share(|visit| {
            known = Some(visit);
            std::future::poll_fn(move |_| {
                count.fetch_add(1, Ordering::Relaxed);
                Poll::Pending
            })
        });
        (task, known.expect("it was made"), polls)
    }

    #[test]
    fn links_are_polled_when_something_came_or_is_to_leave_and_sockets_left_to_the_runtime() {
        let (polled, departures) = (Arc::new(Polled::default()), Departures::default());
        let (mut task, visit, polls) = counted(&polled);
        let count = || polls.load(Ordering::Relaxed);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut task).poll(&mut context).is_pending());
        assert_eq!(count(), 1);
        // It is no link yet.
        assert!(polled.visit(true, &departures));
        visit.over_socket();
        assert!(!polled.visit(true, &departures));
        assert_eq!(count(), 1);
        let (mut ours, file) = offer().expect("memory");
        let mut theirs = foretoken_pipe::open(&file).expect("memory");
        visit.through_memory(ours.reader.peek());
        assert!(polled.visit(true, &departures));
        assert_eq!(count(), 1, "nothing came");
        departures.wake(Waker::noop().clone());
        assert!(polled.visit(false, &departures));
        assert_eq!(count(), 2, "something is to leave");
        theirs.writer.write(b"news").expect("there is room");
        assert!(polled.visit(false, &departures));
        assert_eq!(count(), 2, "what came is for another visit");
        assert!(polled.visit(true, &departures));
        assert_eq!(count(), 3);
        let mut news = [0; 8];
        ours.reader.read(&mut news).expect("keeps to the rules");
        assert!(polled.visit(true, &departures));
        assert_eq!(count(), 3);
        visit.keep(true);
        assert!(polled.visit(true, &departures));
        assert_eq!(count(), 4, "what was read is not all taken in");
        // Somebody who runs the runtime may sleep there.
        departures.begin();
        assert!(!polled.visit(true, &departures));
        departures.end();
        // And may have left what was woken last.
        assert!(polled.visit(false, &departures));
        assert_eq!(count(), 5);
        // After the link is lost, old memory says nothing about the next.
        visit.leave();
        visit.over_socket();
        assert!(!polled.visit(true, &departures));
        visit.through_memory(ours.reader.peek());
        let other = polled.other();
        assert!(!polled.visit(true, &departures));
        drop(other);
        assert!(polled.visit(true, &departures));
        drop(task);
        assert!(polled.links().is_empty());
    }
}
