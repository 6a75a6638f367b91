//! Whether to run a step with the rows that are ready, or to wait for windows that are due soon.
//!
//! A step costs almost the same with few rows as with many, so rows that are verified together
//! cost less than in two steps; but whoever is ready pays for the wait. Both ways have a sum of
//! completion times, and the smaller one wins.

use core::time::Duration;

/// A request that waits for its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// When the window is expected, from now.
    pub after: Duration,
    /// Rows it will bring.
    pub rows: usize,
}

impl Due {
    /// Nothing is known of the window.
    pub const UNKNOWN: Self = Self {
        after: Duration::from_secs(3600),
        rows: 1,
    };

    /// When a window of `tokens` is expected that takes `answer` and was asked for so long ago. One that
    /// is overdue is expected later the longer it is overdue, so that nobody waits for it for long.
    pub fn of(answer: Duration, waited: Duration, tokens: usize) -> Self {
        Self {
            after: match answer.checked_sub(waited) {
                Some(left) => left,
                None => waited.saturating_sub(answer) + answer / 4,
            },
            rows: 1 + tokens,
        }
    }
}

/// What is ready now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Requests.
    pub requests: usize,
    /// Their rows.
    pub rows: usize,
}

/// How long to wait; none: step now. `due` is in order of expectation; `cost` gives the time of a
/// step from its rows.
pub fn wait_for(ready: Ready, due: &[Due], cost: impl Fn(usize) -> Duration) -> Option<Duration> {
    if due.is_empty() {
        return None;
    }
    let all_rows: usize = due.iter().map(|due| due.rows).sum();
    // Sum of completion times if the step includes the first `count` of those due.
    let completion = |count: usize, included_rows: usize| {
        let start = count
            .checked_sub(1)
            .map_or(Duration::ZERO, |last| due[last].after);
        let first = start + cost(ready.rows + included_rows);
        let included = ready.requests + count;
        let Some(last) = due[count..].last() else {
            return first.as_secs_f64() * included as f64;
        };
        let second = first.max(last.after) + cost(all_rows - included_rows);
        let rest = due.len() - count;
        first.as_secs_f64() * included as f64 + second.as_secs_f64() * rest as f64
    };
    let mut best = None;
    if ready.requests > 0 {
        best = Some((completion(0, 0), None));
    }
    let mut rows = 0;
    for (i, next) in due.iter().enumerate() {
        rows += next.rows;
        let sum = completion(i + 1, rows);
        if best.is_none_or(|(least, _)| sum < least) {
            best = Some((sum, Some(next.after)));
        }
    }
    best.and_then(|(_, wait)| wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn due(after: u64, rows: usize) -> Due {
        Due {
            after: us(after),
            rows,
        }
    }

    #[test]
    fn an_overdue_window_is_expected_later_and_later() {
        for (waited, after) in [(0, 400), (300, 100), (400, 0), (401, 101), (900, 600)] {
            assert_eq!(Due::of(us(400), us(waited), 5), due(after, 6), "{waited}");
        }
    }

    #[test]
    fn a_window_due_soon_is_worth_waiting_for() {
        let flat = |_| us(1000);
        let ready = Ready {
            requests: 1,
            rows: 8,
        };
        assert_eq!(wait_for(ready, &[due(100, 8)], flat), Some(us(100)));
        // Waiting 900 us to save the other one 100 us does not pay.
        assert_eq!(wait_for(ready, &[due(900, 8)], flat), None);
    }

    #[test]
    fn many_who_are_ready_do_not_wait_long_for_one() {
        let flat = |_| us(1000);
        let ready = Ready {
            requests: 15,
            rows: 100,
        };
        assert_eq!(wait_for(ready, &[due(100, 8)], flat), None);
        assert_eq!(wait_for(ready, &[due(40, 8)], flat), Some(us(40)));
    }

    #[test]
    fn steps_that_cost_by_the_row_are_not_merged() {
        let linear = |rows| us(100 * rows as u64);
        let ready = Ready {
            requests: 2,
            rows: 16,
        };
        assert_eq!(wait_for(ready, &[due(500, 8), due(500, 8)], linear), None);
    }

    #[test]
    fn only_those_due_soon_are_waited_for() {
        let flat = |_| us(1000);
        let ready = Ready {
            requests: 2,
            rows: 16,
        };
        assert_eq!(
            wait_for(ready, &[due(50, 8), due(50, 8), due(5000, 8)], flat),
            Some(us(50))
        );
    }

    #[test]
    fn with_nothing_ready_somebody_is_waited_for_and_with_nobody_due_the_step_runs() {
        let flat = |_| us(1000);
        assert_eq!(
            wait_for(Ready::default(), &[due(700, 8)], flat),
            Some(us(700))
        );
        assert_eq!(
            wait_for(
                Ready {
                    requests: 1,
                    rows: 1
                },
                &[],
                flat
            ),
            None
        );
    }
}
