//! When a router that is told to stop takes no more requests.
//!
//! Whoever replaces it may not be there yet. Clients that find another one do not come here any
//! more, so those that still come have no other.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep};

/// How long nobody may have come for nobody to come any more.
const QUIET: Duration = Duration::from_secs(2);

/// Counts requests of users; those of whoever only looks whether the router is well do not count.
#[derive(Debug, Default)]
pub(crate) struct Asked(AtomicU64);

impl Asked {
    /// One has come.
    pub(crate) fn note(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until nobody has come for a while, but not longer than `longest`.
    pub(crate) async fn quiet(&self, longest: Duration) {
        let end = Instant::now() + longest;
        let mut known = self.0.load(Ordering::Relaxed);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            sleep(QUIET.min(left)).await;
            let count = self.0.load(Ordering::Relaxed);
            if count == known {
                return;
            }
            known = count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_comes_again_and_again_does_not_keep_it_for_ever() {
        let asked = Asked::default();
        let asking = async {
            loop {
                asked.note();
                sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = asked.quiet(QUIET + Duration::from_millis(500)) => {}
            () = asking => {}
        }
        asked.quiet(Duration::ZERO).await;
    }
}
