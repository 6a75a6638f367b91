//! How long a target waits for a window.

use core::time::Duration;

/// Bounds of a target's patience, and its moving estimate of how long answers take.
///
/// The estimate is that of TCP's retransmission timer (RFC 6298): smoothed mean plus four times the
/// smoothed deviation, about the 99th percentile of the answers seen lately. Patience is `factor`
/// times that, within `floor..=ceiling`. As that timer it backs off: what is not answered in time tells
/// nothing of how long an answer takes, but that it is longer.
#[derive(Clone, Debug, PartialEq)]
pub struct Patience {
    /// Multiple of the estimate that is waited.
    pub factor: f64,
    /// Never give up earlier than this.
    pub floor: Duration,
    /// Never wait longer than this.
    pub ceiling: Duration,
    /// Patience before the first answer.
    pub initial: Duration,
    smoothed: Option<(Duration, Duration)>,
    /// Doublings since the last answer.
    doublings: u32,
}

/// Most doublings: whoever takes more than that many times what it took, or a first guess, is of no use, and
/// one that is silent altogether costs its patience again and again.
const MOST_DOUBLINGS: u32 = 2;

impl Default for Patience {
    fn default() -> Self {
        Self {
            factor: 1.5,
            floor: Duration::from_millis(2),
            ceiling: Duration::from_millis(500),
            initial: Duration::from_millis(100),
            smoothed: None,
            doublings: 0,
        }
    }
}

impl Patience {
    /// Patience within the given bounds, with no answer seen yet.
    pub fn new(factor: f64, floor: Duration, ceiling: Duration, initial: Duration) -> Self {
        Self {
            factor,
            floor,
            ceiling,
            initial,
            smoothed: None,
            doublings: 0,
        }
    }

    /// Takes in that an answer did not come in time: waits twice as long for the next ones, until one comes.
    pub fn back_off(&mut self) {
        self.doublings = (self.doublings + 1).min(MOST_DOUBLINGS);
    }

    /// Takes in the time between a request for a window and its arrival.
    pub fn observe(&mut self, answer: Duration) {
        // Keeps all arithmetic far from overflow, whatever clock readings come in.
        let answer = answer.min(Duration::from_secs(4_000));
        self.doublings = 0;
        self.smoothed = Some(match self.smoothed {
            None => (answer, answer / 2),
            Some((mean, deviation)) => {
                let error = mean.abs_diff(answer);
                ((mean * 7 + answer) / 8, (deviation * 3 + error) / 4)
            }
        });
    }

    /// How long to wait now.
    pub fn limit(&self) -> Duration {
        let wanted = self.smoothed.map_or(self.initial, |(mean, deviation)| {
            let wanted = (mean + deviation * 4).as_secs_f64() * self.factor;
            let wanted = Duration::try_from_secs_f64(wanted).unwrap_or(self.ceiling);
            wanted.max(self.floor)
        });
        wanted.saturating_mul(1 << self.doublings).min(self.ceiling)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn patience_starts_at_its_initial_value_and_settles_above_steady_answers() {
        let mut patience = Patience::default();
        assert_eq!(patience.limit(), patience.initial);
        for _ in 0..100 {
            patience.observe(10 * MS);
        }
        assert!(patience.limit() >= 15 * MS && patience.limit() < 16 * MS);
    }

    #[test]
    fn jitter_makes_it_wait_for_the_slow_answers() {
        let mut patience = Patience::default();
        for i in 0..100 {
            patience.observe(if i % 5 == 0 { 20 * MS } else { 4 * MS });
        }
        assert!(patience.limit() > 20 * MS);
    }

    #[test]
    fn what_is_not_answered_is_waited_for_longer_until_something_is() {
        let mut patience = Patience::default();
        for wait in [100, 200, 400, 400] {
            assert_eq!(patience.limit(), wait * MS);
            patience.back_off();
        }
        patience.observe(160 * MS);
        patience.ceiling = Duration::from_secs(9);
        assert_eq!(patience.limit(), 720 * MS);
        patience.back_off();
        assert_eq!(patience.limit(), 1440 * MS);
        patience.ceiling = Duration::from_secs(1);
        assert_eq!(patience.limit(), patience.ceiling);
    }

    #[test]
    fn patience_stays_within_its_bounds() {
        let mut patience = Patience::default();
        patience.observe(Duration::MAX);
        assert_eq!(patience.limit(), patience.ceiling);
        for _ in 0..200 {
            patience.observe(Duration::ZERO);
        }
        assert_eq!(patience.limit(), patience.floor);
        patience.factor = f64::NAN;
        assert!(patience.limit() <= patience.ceiling);
    }
}
