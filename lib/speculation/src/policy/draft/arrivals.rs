//! When verdicts came, though they are read later.
//!
//! An endpoint reads messages between steps, so a verdict may have lain there for as long as one takes.
//! Targets tell how long after the one before they sent it; of all that were read lately, the one that
//! was read soonest after it was sent says how far their clock is from the endpoint's, way included
//! (as the filter of NTP takes the sample with the least delay, RFC 5905, section 10).

use core::time::Duration;

/// Verdicts after which the soonest of those before them is forgotten: routes and clocks change.
const REMEMBERED: u32 = 64;

/// The verdicts of a session.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arrivals {
    /// When the last one was sent, in seconds by the target's clock since any moment.
    sent: f64,
    /// Least seconds from that to its being read, of the verdicts that are being counted and of those
    /// before them.
    least: Option<[f64; 2]>,
    counted: u32,
}

impl Arrivals {
    /// When a verdict came that is read `now`, and was sent so long after the one before; unless that is
    /// known, `now`.
    pub(super) fn at(&mut self, now: Duration, elapsed: Duration) -> Duration {
        if elapsed.is_zero() {
            *self = Self::default();
        }
        self.sent += elapsed.as_secs_f64();
        let read = now.as_secs_f64();
        let lay = read - self.sent;
        let [counting, before] = self.least.unwrap_or([lay; 2]);
        let mut least = [counting.min(lay), before];
        let came = self.sent + least[0].min(least[1]);
        self.counted += 1;
        if self.counted == REMEMBERED {
            (least, self.counted) = ([lay, least[0]], 0);
        }
        self.least = Some(least);
        Duration::try_from_secs_f64(came).map_or(now, |came| came.min(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// How long after they came verdicts are thought to have, one every 10 ms, that lie for these times
    /// before they are read; with a clock of the endpoint's that is slower or faster by a part.
    fn errors(lay: impl Fn(u32) -> Duration, drift: f64) -> impl Iterator<Item = f64> {
        let mut arrivals = Arrivals::default();
        (0..1000).map(move |i| {
            let elapsed = if i == 0 { Duration::ZERO } else { 10 * MS };
            let came = (Duration::from_secs(5) + i * 10 * MS).mul_f64(1.0 + drift);
            let at = arrivals.at(came + lay(i), elapsed);
            at.as_secs_f64() - came.as_secs_f64()
        })
    }

    #[test]
    fn those_that_are_read_late_came_when_the_soonest_ones_say() {
        let lay = |i| {
            if i % 40 == 20 {
                Duration::ZERO
            } else {
                (i % 7) * MS
            }
        };
        let known = errors(lay, 0.0).skip(30);
        assert!(known.map(f64::abs).all(|error| error < 1e-9));
    }

    #[test]
    fn clocks_that_run_differently_do_not_lead_astray_for_long() {
        for drift in [1e-4, -1e-4] {
            let lay = |i| if i % 5 == 0 { Duration::ZERO } else { 3 * MS };
            let known = errors(lay, drift).skip(30);
            // 128 rounds of 10 ms.
            assert!(known.map(f64::abs).all(|error| error < 1.3e-4));
        }
    }

    #[test]
    fn a_longer_way_is_noticed() {
        let lay = |i| if i < 500 { Duration::ZERO } else { 2 * MS };
        let errors: alloc::vec::Vec<f64> = errors(lay, 0.0).collect();
        assert!(errors[500] < 1e-9 && errors[700] > 1.9e-3);
    }

    #[test]
    fn where_nothing_is_told_they_came_when_they_were_read() {
        let mut arrivals = Arrivals::default();
        for now in [5 * MS, 17 * MS, 18 * MS] {
            assert_eq!(arrivals.at(now, Duration::ZERO), now);
        }
    }

    #[test]
    fn times_that_cannot_be_do_no_harm() {
        let mut arrivals = Arrivals::default();
        for elapsed in [MS, Duration::MAX, MS, Duration::MAX, Duration::ZERO] {
            assert!(arrivals.at(9 * MS, elapsed) <= 9 * MS);
        }
    }
}
