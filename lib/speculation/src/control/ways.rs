//! Ways to speculate that are compared by measuring them: one question at a time.
//!
//! Whether windows are trees and whether endpoints draft ahead are both found out in turns. Were those of
//! one to change with those of the other, each would be held against the difference that the other
//! makes. So while one looks at the way that is not preferred, the other stays as it is and learns nothing.

use core::time::Duration;

use super::{ahead::Ahead, turns::Turns};

/// What trees must be better by.
const TREES_MARGIN: f64 = 1.01;

/// The ways of the next round.
#[derive(Clone, Debug)]
pub(super) struct Ways {
    /// Whether windows are trees, if they may be: with them first.
    trees: Option<Turns>,
    /// Whether endpoints draft ahead, if that is open.
    ahead: Option<Ahead>,
}

impl Ways {
    /// For windows that may be `trees` or not, of endpoints that may be asked not to draft ahead or not.
    pub(super) fn new(trees: bool, may_refrain: bool) -> Self {
        Self {
            trees: trees.then(|| Turns::new(TREES_MARGIN)),
            ahead: may_refrain.then(Ahead::new),
        }
    }

    /// Whether windows are to be trees now.
    pub(super) fn trees(&self) -> bool {
        self.trees.as_ref().is_some_and(Turns::is_first)
    }

    /// Whether endpoints that draft ahead are not to do so now.
    pub(super) fn refrains(&self) -> bool {
        self.ahead.as_ref().is_some_and(|ahead| !ahead.drafts())
    }

    /// Takes in a round of one of so many sessions. `waiting` is what is thought of rounds that wait for
    /// their windows, in tokens a second; of use where it is open whether endpoints draft ahead.
    pub(super) fn observe(
        &mut self,
        tokens: u32,
        took: Duration,
        sessions: u32,
        waiting: Option<f64>,
    ) {
        if let Some(trees) = &mut self.trees {
            if self.ahead.as_ref().is_some_and(Ahead::is_aside) {
                trees.disturb();
            } else {
                trees.observe(tokens, took, sessions);
            }
        }
        if let (Some(ahead), Some(waiting)) = (&mut self.ahead, waiting) {
            // It may have begun to with this very round.
            if self.trees.as_ref().is_some_and(Turns::is_aside) {
                ahead.disturb();
            } else {
                ahead.observe(tokens, took, sessions, waiting);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::philox;

    /// Of the last 16,000 of 20,000 rounds the shares that had trees, and endpoints that draft ahead, where a
    /// round has so many times the pace with the one and with the other.
    fn shares(trees: f64, ahead: f64, sessions: u32) -> [f64; 2] {
        let mut ways = Ways::new(true, true);
        let mut had = [0; 2];
        for round in 0..20_000_u32 {
            let is = [ways.trees(), !ways.refrains()];
            let pace = if is[0] { trees } else { 1.0 } * if is[1] { ahead } else { 1.0 };
            let tokens = 1 + philox([round, 0, 0, 0], [1, 2])[0] % 5;
            let took = Duration::from_secs_f64(1e-3 / pace);
            if round >= 4_000 {
                for (had, is) in had.iter_mut().zip(is) {
                    *had += u32::from(is);
                }
            }
            ways.observe(tokens, took, sessions, Some(1e4));
        }
        had.map(|had| f64::from(had) / 16_000.0)
    }

    #[test]
    fn each_way_is_judged_by_the_difference_that_it_makes_itself() {
        let (mostly, seldom) = (0.8..=1.0, 0.01..=0.2);
        for sessions in [1, 8] {
            for (trees, ahead) in [(1.15, 0.7), (0.87, 0.7), (1.15, 1.3), (0.87, 1.3)] {
                let found = shares(trees, ahead, sessions);
                let expected =
                    [trees, ahead].map(|pace| if pace > 1.0 { &mostly } else { &seldom });
                for (found, expected) in found.iter().zip(expected) {
                    assert!(expected.contains(found), "{trees} {ahead}: {found}");
                }
            }
        }
    }

    #[test]
    fn what_may_not_be_is_not_compared() {
        let mut ways = Ways::new(false, false);
        for _ in 0..1_000 {
            assert!(!ways.trees() && !ways.refrains());
            ways.observe(3, Duration::from_millis(1), 1, Some(1e9));
        }
    }
}
