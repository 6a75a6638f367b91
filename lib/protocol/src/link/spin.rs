//! Whether an engine looks for messages for a while before it sleeps.

use std::{
    cell::Cell,
    thread,
    time::{Duration, Instant},
};

/// Whoever takes longer while the core is offered works on it, and does not just pass by.
const PASSING: Duration = Duration::from_micros(200);

/// Most waits that are slept through before the next try.
const LONGEST_REST: u32 = 1024;

/// Looks before sleeping ("busy polling"), where that pays.
///
/// A core that has gone to sleep takes 10 to 40 us to wake, and whoever wakes it nearly as long, once a
/// round. So an engine looks for a while first if what it waited for last came within that while,
/// whether it slept or not (halt polling decides so in KVM, too).
///
/// Between looks it gives way, so nobody has to wait for it. Where others work on the same core it would
/// wait for them: systems let threads that sleep interrupt those that work, and not those that gave
/// way. If somebody works there, the next waits are slept through, twice as many each time and half as
/// many after each spell in which nobody did.
#[derive(Debug)]
pub(super) struct Spin {
    limit: Duration,
    comes_soon: Cell<bool>,
    /// All waits since the last at whose end something came.
    in_vain: Cell<Duration>,
    /// Waits still to be slept through.
    rest: Cell<u32>,
    /// How many those were to begin with.
    last_rest: Cell<u32>,
}

impl Spin {
    /// Looks for `limit` at most; zero: never.
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            comes_soon: Cell::new(false),
            in_vain: Cell::default(),
            rest: Cell::new(0),
            last_rest: Cell::new(0),
        }
    }

    /// What `look` finds within `patience`, if that is looked for, and nobody else wants the core.
    pub(super) fn watch<T>(
        &self,
        patience: Duration,
        look: impl FnMut() -> Option<T>,
    ) -> Option<T> {
        self.watch_and(patience, look, thread::yield_now)
    }

    fn watch_and<T>(
        &self,
        patience: Duration,
        mut look: impl FnMut() -> Option<T>,
        mut give_way: impl FnMut(),
    ) -> Option<T> {
        if !self.begins() {
            return None;
        }
        let limit = self.limit.min(patience);
        let begun = Instant::now();
        loop {
            let item = look();
            let left = Instant::now();
            if item.is_some() || left - begun >= limit {
                self.was_alone();
                return item;
            }
            give_way();
            if left.elapsed() > PASSING {
                self.was_in_the_way();
                return None;
            }
        }
    }

    /// A wait took that long, at whose end something came or nothing had.
    pub(super) fn note(&self, took: Duration, came: bool) {
        let in_vain = if came {
            self.comes_soon.set(took < self.limit);
            Duration::ZERO
        } else {
            self.in_vain.get().saturating_add(took)
        };
        self.in_vain.set(in_vain);
        // Whoever gives up soon knows nothing, but not time after time.
        if in_vain >= self.limit {
            self.comes_soon.set(false);
        }
    }

    /// Whether the wait that begins is one to look in.
    pub(super) fn begins(&self) -> bool {
        if !self.comes_soon.get() {
            return false;
        }
        let rest = self.rest.get();
        self.rest.set(rest.saturating_sub(1));
        rest == 0
    }

    fn was_in_the_way(&self) {
        let rest = (self.last_rest.get() * 2).clamp(1, LONGEST_REST);
        self.last_rest.set(rest);
        self.rest.set(rest);
    }

    fn was_alone(&self) {
        self.last_rest.set(self.last_rest.get() / 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(1);
    const SOON: Duration = Duration::from_micros(999);

    /// Waits slept through before one that is not.
    fn slept(spin: &Spin) -> usize {
        let waits = 2 * LONGEST_REST as usize;
        (0..waits).take_while(|_| !spin.begins()).count()
    }

    #[test]
    fn looks_where_messages_come_soon() {
        let spin = Spin::new(LIMIT);
        assert!(!spin.begins(), "nothing is known yet");
        spin.note(SOON, true);
        assert!(spin.begins());
        spin.note(SOON, false);
        assert!(spin.begins(), "it might have come");
        spin.note(LIMIT, false);
        assert!(!spin.begins());
        spin.note(SOON, false);
        assert!(!spin.begins());
        spin.note(SOON, true);
        spin.note(LIMIT, true);
        assert!(!spin.begins());
        spin.note(SOON, true);
        spin.note(SOON, false);
        assert!(spin.begins());
        spin.note(SOON, false);
        assert!(
            !spin.begins(),
            "whoever gives up sooner than it may look stops too"
        );
        let never = Spin::new(Duration::ZERO);
        never.note(Duration::ZERO, true);
        assert!(!never.begins());
    }

    #[test]
    fn keeps_away_where_others_want_the_core() {
        let spin = Spin::new(LIMIT);
        spin.note(SOON, true);
        for rest in [1, 2, 4, 8] {
            spin.was_in_the_way();
            assert_eq!(slept(&spin), rest);
        }
        spin.was_alone();
        spin.was_alone();
        spin.was_in_the_way();
        assert_eq!(slept(&spin), 4, "somebody comes by now and then");
        for _ in 0..4 {
            spin.was_alone();
        }
        spin.was_in_the_way();
        assert_eq!(slept(&spin), 1, "they have gone");
        for _ in 0..32 {
            spin.was_in_the_way();
        }
        assert_eq!(slept(&spin), LONGEST_REST as usize);
    }

    #[test]
    fn whoever_runs_between_looks_ends_them() {
        let spin = Spin::new(Duration::from_secs(3600));
        spin.note(SOON, true);
        let mut looks = 0;
        let look = || {
            looks += 1;
            (looks > 1).then_some(())
        };
        let found = spin.watch_and(Duration::MAX, look, || thread::sleep(2 * PASSING));
        assert_eq!((found, looks), (None, 1));
        assert!(!spin.begins());
        // What is found at once is had, whoever else there is.
        assert_eq!(spin.watch(Duration::MAX, || Some(())), Some(()));
    }

    #[test]
    fn looks_no_longer_than_it_may() {
        let spin = Spin::new(LIMIT);
        spin.note(SOON, true);
        assert_eq!(spin.watch(Duration::MAX, || None::<()>), None);
        assert_eq!(spin.watch(Duration::ZERO, || None::<()>), None);
    }
}
