//! What rounds take beyond their step and their answer, learned online.

use core::time::Duration;

use super::table::Table;

/// Share of a new observation.
const WEIGHT: f64 = 1.0 / 16.0;
/// The same of a plain round. They come by the hundred or in trials, so there is no hurry; and a
/// lookahead begun because a few were slow costs its endpoint the reading of whole sequences.
const PLAIN_WEIGHT: f64 = 1.0 / 64.0;
/// What a round counts that was held up: at most this much more than rounds are known to take.
const HELD_UP: f64 = 0.5;

/// Seconds that a round takes besides its step and its answer, by the lookahead it asked for.
///
/// Sampling, delivery and other processes on the same cores make it more than nothing; windows
/// that are drafted while other sessions' steps run make it less. It also takes in what the models
/// of step and answer get wrong, which differs between short windows and long ones. A lookahead
/// that was not tried yet is taken to be like the nearest one that was.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rest {
    by_lookahead: Table,
}

impl Rest {
    /// Nothing learned, for lookaheads up to `max`.
    pub(super) fn new(max: u32) -> Self {
        Self {
            by_lookahead: Table::new(max),
        }
    }

    /// Takes in a round that asked for `lookahead` tokens and was expected to take `expected`
    /// seconds; `part` of the sessions in the same step had it.
    pub(super) fn observe(&mut self, lookahead: u32, expected: f64, took: Duration, part: f64) {
        let known = self.seconds(lookahead);
        // A process that lost its core for a while says little about the way rounds go.
        let most = known + HELD_UP * (expected + known).max(0.0);
        let beyond = (took.as_secs_f64() - expected).clamp(-expected, most.max(-expected));
        let weight = if lookahead == 0 { PLAIN_WEIGHT } else { WEIGHT };
        let learned = known + weight * part * (beyond - known);
        self.by_lookahead.learn(lookahead, learned, part);
    }

    /// Takes over what several rounds with this lookahead came to.
    pub(super) fn settle(&mut self, lookahead: u32, seconds: f64) {
        self.by_lookahead.learn(lookahead, seconds, 1.0);
    }

    /// Seconds to add for a round with this lookahead.
    pub(super) fn seconds(&self, lookahead: u32) -> f64 {
        self.by_lookahead.nearest(lookahead)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn each_lookahead_has_its_own_figure_and_one_never_tried_that_of_the_nearest() {
        let mut rest = Rest::new(8);
        for _ in 0..400 {
            rest.observe(6, 1e-3, 2 * MS, 1.0);
            rest.observe(2, 1e-3, MS, 1.0);
        }
        assert!((rest.seconds(6) - 1e-3).abs() < 1e-4);
        assert!((rest.seconds(5) - rest.seconds(6)).abs() < 1e-12);
        assert!(rest.seconds(2).abs() < 1e-4);
        assert!((rest.seconds(1) - rest.seconds(2)).abs() < 1e-12);
        assert!(
            rest.seconds(0).abs() < 1e-12,
            "plain rounds are another kind"
        );
    }

    #[test]
    fn a_figure_without_news_fades() {
        let mut rest = Rest::new(8);
        for _ in 0..200 {
            rest.observe(4, 1e-3, 3 * MS, 1.0);
        }
        let before = rest.seconds(4);
        for _ in 0..2000 {
            rest.observe(0, 1e-3, MS, 1.0);
        }
        assert!(before > 1.9e-3 && rest.seconds(4) < 0.2 * before);
    }
}
