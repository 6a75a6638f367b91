//! What rounds take beyond their step and their answer, learned online.

use core::time::Duration;

/// Share of a new observation.
const WEIGHT: f64 = 1.0 / 16.0;
/// What is left of the one way's figure after a round of the other way: after about a thousand
/// rounds without news it counts for nothing, so a load that has passed is forgotten.
const FORGET: f64 = 0.999;

/// Seconds that a round takes besides its step and its answer, one figure for rounds that asked
/// for a window and one for those that did not.
///
/// Sampling, delivery and other processes on the same cores make it more than nothing; windows
/// that are drafted while other sessions' steps run make it less.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rest {
    plain: f64,
    speculative: f64,
}

impl Rest {
    /// Takes in a round with a window (or without) that was expected to take `expected` seconds.
    pub(super) fn observe(&mut self, speculative: bool, expected: f64, took: Duration) {
        let (this, other) = if speculative {
            (&mut self.speculative, &mut self.plain)
        } else {
            (&mut self.plain, &mut self.speculative)
        };
        // A process that lost its core for a while says nothing about the way rounds go.
        let beyond = (took.as_secs_f64() - expected).clamp(-expected, 2.0 * expected);
        *this += WEIGHT * (beyond - *this);
        *other *= FORGET;
    }

    /// Seconds to add for a round with a window, or without.
    pub(super) fn seconds(&self, speculative: bool) -> f64 {
        if speculative {
            self.speculative
        } else {
            self.plain
        }
    }
}
