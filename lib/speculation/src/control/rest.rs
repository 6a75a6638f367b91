//! What rounds take beyond their step and their answer, learned online.

use alloc::collections::BTreeMap;
use core::time::Duration;

use super::{Load, table::Table};

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
/// that was not tried yet is taken to be like the nearest one that was. All of that differs between
/// few sessions and many, so each magnitude of load has figures of its own; at first they are those
/// of the nearest one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rest {
    by_load: BTreeMap<u32, Table>,
    fresh: Table,
}

impl Rest {
    /// Nothing learned, for lookaheads up to `max`.
    pub(super) fn new(max: u32) -> Self {
        Self {
            by_load: BTreeMap::new(),
            fresh: Table::new(max),
        }
    }

    /// Takes in a round under `load` that asked for `lookahead` tokens and was expected to take
    /// `expected` seconds; `part` of the sessions in the same step had it.
    pub(super) fn observe(
        &mut self,
        load: Load,
        lookahead: u32,
        expected: f64,
        took: Duration,
        part: f64,
    ) {
        let known = self.seconds(load, lookahead);
        // A process that lost its core for a while says little about the way rounds go.
        let most = known + HELD_UP * (expected + known).max(0.0);
        let beyond = (took.as_secs_f64() - expected).clamp(-expected, most.max(-expected));
        let weight = if lookahead == 0 { PLAIN_WEIGHT } else { WEIGHT };
        let learned = known + weight * part * (beyond - known);
        self.learn(load, lookahead, learned, part);
    }

    /// Takes over what several rounds with this lookahead came to.
    pub(super) fn settle(&mut self, load: Load, lookahead: u32, seconds: f64) {
        self.learn(load, lookahead, seconds, 1.0);
    }

    /// Seconds to add for a round with this lookahead.
    pub(super) fn seconds(&self, load: Load, lookahead: u32) -> f64 {
        self.under(load).nearest(lookahead)
    }

    fn learn(&mut self, load: Load, lookahead: u32, seconds: f64, part: f64) {
        let magnitude = load.magnitude();
        if !self.by_load.contains_key(&magnitude) {
            self.by_load.insert(magnitude, self.under(load).clone());
        }
        if let Some(table) = self.by_load.get_mut(&magnitude) {
            table.learn(lookahead, seconds, part);
        }
    }

    /// What is known of the nearest load that anything is known of.
    pub(super) fn under(&self, load: Load) -> &Table {
        let known = self.by_load.iter();
        let nearest = known.min_by_key(|(magnitude, _)| magnitude.abs_diff(load.magnitude()));
        nearest.map_or(&self.fresh, |(_, table)| table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const ALONE: Load = Load::of(1);
    const CROWD: Load = Load::of(16);

    #[test]
    fn each_lookahead_has_its_own_figure_and_one_never_tried_that_of_the_nearest() {
        let mut rest = Rest::new(8);
        for _ in 0..400 {
            rest.observe(ALONE, 6, 1e-3, 2 * MS, 1.0);
            rest.observe(ALONE, 2, 1e-3, MS, 1.0);
        }
        assert!((rest.seconds(ALONE, 6) - 1e-3).abs() < 1e-4);
        assert!((rest.seconds(ALONE, 5) - rest.seconds(ALONE, 6)).abs() < 1e-12);
        assert!(rest.seconds(ALONE, 2).abs() < 1e-4);
        assert!((rest.seconds(ALONE, 1) - rest.seconds(ALONE, 2)).abs() < 1e-12);
        assert!(
            rest.seconds(ALONE, 0).abs() < 1e-12,
            "plain rounds are another kind"
        );
    }

    #[test]
    fn a_figure_without_news_fades() {
        let mut rest = Rest::new(8);
        for _ in 0..200 {
            rest.observe(ALONE, 4, 1e-3, 3 * MS, 1.0);
        }
        let before = rest.seconds(ALONE, 4);
        for _ in 0..2000 {
            rest.observe(ALONE, 0, 1e-3, MS, 1.0);
        }
        assert!(before > 1.9e-3 && rest.seconds(ALONE, 4) < 0.2 * before);
    }

    #[test]
    fn each_load_has_its_own_figures_and_begins_with_those_of_the_nearest() {
        let mut rest = Rest::new(8);
        let rounds = |rest: &mut Rest, load, took| {
            (0..400).for_each(|_| rest.observe(load, 4, 1e-3, took, 1.0));
        };
        rounds(&mut rest, ALONE, 2 * MS);
        let alone = rest.seconds(ALONE, 4);
        assert!((alone - 1e-3).abs() < 1e-5 && (rest.seconds(CROWD, 4) - alone).abs() < 1e-12);
        rest.observe(CROWD, 4, 1e-3, 2 * MS, 1.0);
        assert!((rest.seconds(CROWD, 4) / alone - 1.0).abs() < 0.01);
        rounds(&mut rest, CROWD, 4 * MS);
        assert!((rest.seconds(CROWD, 4) - 3e-3).abs() < 1e-5);
        let still = rest.seconds(ALONE, 4);
        assert!((still - alone).abs() < 1e-12, "another load has passed");
    }
}
