//! What an engine's thread waits at.

use std::{
    cell::Cell,
    collections::VecDeque,
    fmt,
    future::poll_fn,
    iter,
    marker::PhantomData,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use tokio::time::timeout;

use super::{spin::Spin, transport::Driver};

/// Where anything that an engine has to know is posted, from any thread.
pub struct Postbox<T> {
    post: Arc<Mutex<Post<T>>>,
}

/// What an engine's thread waits at. While it waits, that thread moves the links' bytes itself,
/// which saves two wake-ups per message.
///
/// Messages handed to links leave when the thread comes by here and finds nothing, waits, or calls
/// [`Self::send`]: do one of these before computing.
pub struct Mailbox<T> {
    post: Arc<Mutex<Post<T>>>,
    driver: Arc<Driver>,
    spin: Spin,
    /// Only one thread at a time can wait.
    _not_sync: PhantomData<Cell<()>>,
}

struct Post<T> {
    items: VecDeque<T>,
    waker: Option<Waker>,
    /// The mailbox is gone.
    closed: bool,
}

impl<T> Clone for Postbox<T> {
    fn clone(&self) -> Self {
        Self {
            post: Arc::clone(&self.post),
        }
    }
}

impl<T> fmt::Debug for Postbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postbox").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}

impl<T> Postbox<T> {
    /// Posts `item` and wakes the engine if it waits. Gives `item` back if the mailbox is gone.
    pub fn post(&self, item: T) -> Result<(), T> {
        let mut post = lock(&self.post);
        if post.closed {
            return Err(item);
        }
        post.items.push_back(item);
        let waker = post.waker.take();
        drop(post);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }
}

impl<T> Mailbox<T> {
    pub(super) fn new(driver: Arc<Driver>, spin: Duration) -> (Postbox<T>, Self) {
        driver.join();
        let post = Post {
            items: VecDeque::new(),
            waker: None,
            closed: false,
        };
        let post = Arc::new(Mutex::new(post));
        (
            Postbox {
                post: Arc::clone(&post),
            },
            Self {
                post,
                driver,
                spin: Spin::new(spin),
                _not_sync: PhantomData,
            },
        )
    }

    /// The next item, if there is one. If there is none, sends what links have to send and looks
    /// whether something has arrived (about 1 us, over gRPC 3).
    pub fn try_recv(&self) -> Option<T> {
        self.take().or_else(|| {
            self.driver.look();
            self.take()
        })
    }

    /// What has arrived by now, for a thread that has work to do: looks at links first, once, unless
    /// somebody did within `pause`. What links have to send waits as long. Whoever sends faster than
    /// items are taken in keeps nobody here: what comes meanwhile is for the next time.
    pub fn arrived(&self, pause: Duration) -> impl Iterator<Item = T> {
        if pause.is_zero() || self.driver.since_driven() >= pause {
            self.driver.look();
        }
        let mut left = lock(&self.post).items.len();
        iter::from_fn(move || {
            left = left.checked_sub(1)?;
            self.take()
        })
    }

    /// Sends what links have to send, for a thread that is about to compute (about 1 us, over gRPC
    /// 3, besides what sending takes). What has arrived may be found by the next look only.
    pub fn send(&self) {
        self.driver.send();
    }

    /// The next item, or none if there is none within `patience`. Looks for it for a while before it
    /// sleeps, where that pays ([`TransportOptions::spin`](super::TransportOptions::spin)).
    pub fn recv_timeout(&self, patience: Duration) -> Option<T> {
        self.take().or_else(|| {
            let begun = Instant::now();
            let seen = self.spin.watch(patience, || self.try_recv());
            let item = seen.or_else(|| {
                let left = patience.saturating_sub(begun.elapsed());
                let arrival = async { timeout(left, self.arrival()).await.ok() };
                self.driver.drive(arrival)
            });
            self.spin.note(begun.elapsed(), item.is_some());
            item
        })
    }

    async fn arrival(&self) -> T {
        poll_fn(|cx| {
            let mut post = lock(&self.post);
            if let Some(item) = post.items.pop_front() {
                return Poll::Ready(item);
            }
            post.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    fn take(&self) -> Option<T> {
        lock(&self.post).items.pop_front()
    }
}

impl<T> Drop for Mailbox<T> {
    fn drop(&mut self) {
        let mut post = lock(&self.post);
        post.closed = true;
        // Dropped outside the lock: items may own postboxes.
        let items = std::mem::take(&mut post.items);
        drop(post);
        drop(items);
        self.driver.leave();
    }
}

fn lock<T>(post: &Mutex<Post<T>>) -> MutexGuard<'_, Post<T>> {
    // No critical section can leave a post half changed.
    post.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::link::{Transport, TransportOptions};

    #[test]
    fn engines_look_before_they_sleep_once_something_came_soon() {
        let spin = Duration::from_secs(3600);
        let transport = Transport::start(TransportOptions { spin, tls: None }).expect("a thread");
        let (postbox, mailbox) = transport.mailbox();
        let poster = thread::spawn(move || {
            while lock(&postbox.post).waker.is_none() {
                thread::yield_now();
            }
            postbox.post(())
        });
        assert_eq!(mailbox.recv_timeout(spin), Some(()), "it sleeps at first");
        poster.join().expect("posts").expect("there is a mailbox");
        assert!(mailbox.spin.begins());
    }
}
