//! Simulated time: a heap of events, ties in the order in which they were scheduled.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    time::Duration,
};

/// Time and what will happen in it.
#[derive(Debug)]
pub(super) struct Clock<E> {
    now: Duration,
    scheduled: u64,
    events: BinaryHeap<Reverse<Scheduled<E>>>,
}

#[derive(Debug)]
struct Scheduled<E> {
    at: Duration,
    number: u64,
    event: E,
}

impl<E> Clock<E> {
    pub(super) fn new() -> Self {
        Self {
            now: Duration::ZERO,
            scheduled: 0,
            events: BinaryHeap::new(),
        }
    }

    /// Something will happen in `delay` from now.
    pub(super) fn after(&mut self, delay: Duration, event: E) {
        self.scheduled += 1;
        self.events.push(Reverse(Scheduled {
            at: self.now + delay,
            number: self.scheduled,
            event,
        }));
    }

    /// Goes to the next event.
    pub(super) fn next(&mut self) -> Option<E> {
        let Reverse(Scheduled { at, event, .. }) = self.events.pop()?;
        self.now = at;
        Some(event)
    }

    pub(super) fn now(&self) -> Duration {
        self.now
    }
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for Scheduled<E> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_time_and_those_of_one_time_in_the_order_of_scheduling() {
        let ms = Duration::from_millis;
        let mut clock = Clock::new();
        for (delay, name) in [(5, 'c'), (2, 'a'), (5, 'd'), (2, 'b')] {
            clock.after(ms(delay), name);
        }
        let mut seen = Vec::new();
        while let Some(name) = clock.next() {
            seen.push((clock.now(), name));
            if name == 'a' {
                clock.after(ms(9), 'e');
            }
        }
        let expected = [(2, 'a'), (2, 'b'), (5, 'c'), (5, 'd'), (11, 'e')];
        assert_eq!(seen, expected.map(|(at, name)| (ms(at), name)));
    }
}
