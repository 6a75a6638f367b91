//! How long to wait before something that failed is tried again.

use std::{
    hash::{BuildHasher as _, RandomState},
    time::Duration,
};

/// The first wait.
const SHORTEST: Duration = Duration::from_millis(100);
/// The longest: whoever comes back should not be waited for much longer than it took to come back.
pub(crate) const LONGEST: Duration = Duration::from_secs(2);

/// Waits that double, up to a bound, with a part left to chance so that those who lost somebody
/// together do not all come back at once.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: SHORTEST }
    }
}

impl Backoff {
    /// How long to wait now.
    pub(crate) fn wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (wait * 2).min(LONGEST);
        // Between one half and all of it.
        let chance = RandomState::new().hash_one(()) as u32;
        wait.mul_f64(0.5 + f64::from(chance) / f64::from(u32::MAX) / 2.0)
    }

    /// It went well: the next failure waits shortly again.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_up_to_a_bound_until_something_goes_well() {
        let mut backoff = Backoff::default();
        let waits: Vec<Duration> = (0..8).map(|_| backoff.wait()).collect();
        assert!(
            waits[0] <= SHORTEST && waits[0] >= SHORTEST / 2,
            "{waits:?}"
        );
        assert!(waits[7] <= LONGEST && waits[7] >= LONGEST / 2, "{waits:?}");
        backoff.reset();
        assert!(backoff.wait() <= SHORTEST);
    }
}
