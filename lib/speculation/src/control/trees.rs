//! What a target has for trees of proposals.

use super::{Controller, Load};
use crate::message::TreeBudget;

/// Most proposals of a tree: further ones are hardly ever likely enough.
pub const MOST_NODES: u32 = 32;
/// Proposals beside a chain that rows are priced by, where they do not all cost the same.
const BESIDE: u32 = 2;
/// How much dearer rows may be on average over a large tree than over a small one for one price to
/// stand for both.
const DEARER: f64 = 1.1;
/// Share of a round below which a row is cheap, whatever others cost.
const CHEAP: f64 = 0.002;

impl Controller {
    /// What a tree of up to `nodes` proposals may have in each session of `load`, whose windows have
    /// `lookahead` tokens; nothing if chains are better or it is their turn. It has one price for all
    /// rows, by which its owner decides about the last of a chain as well as about what is beside it.
    /// So where rows become dearer, as on a core that soon computes all it can, only as many are
    /// offered as the price is right for.
    pub fn tree_budget(&self, nodes: u32, lookahead: u32, load: Load) -> Option<TreeBudget> {
        if !self.ways.trees() {
            return None;
        }
        let few = nodes.min(lookahead + BESIDE);
        let [first, all] = [few, nodes].map(|rows| self.row_cost(rows, lookahead, load));
        Some(if all > DEARER * first + CHEAP {
            TreeBudget::new(few, first)
        } else {
            TreeBudget::new(nodes, all)
        })
    }

    /// What a further row of a session adds to the time of a round, as a share of the time of a
    /// round without proposals: on average over `nodes` rows in each session.
    fn row_cost(&self, nodes: u32, lookahead: u32, load: Load) -> f64 {
        let bare = self.step_seconds(0, load);
        let full = self.step_seconds(nodes, load);
        let round = bare + self.answer_seconds(lookahead);
        ((full - bare) / (round * f64::from(nodes.max(1)))).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::vec;

    use super::*;
    use crate::control::{AnswerTime, ControlConfig, StepCost};

    fn budget(steps: &[(u32, u64)], nodes: u32) -> TreeBudget {
        let steps = steps
            .iter()
            .map(|&(rows, us)| (rows, Duration::from_micros(us)));
        let answers = AnswerTime::new(Duration::ZERO, Duration::ZERO);
        let config = ControlConfig {
            trees: true,
            ..ControlConfig::default()
        };
        let controller = Controller::new(config, StepCost::new(steps.collect()), answers);
        controller
            .tree_budget(nodes, 4, Load::default())
            .expect("trees come first")
    }

    #[test]
    fn rows_that_cost_alike_are_all_offered_and_where_they_become_dearer_only_the_first() {
        let free = vec![(1, 1000), (64, 1000)];
        assert_eq!(budget(&free, 32), TreeBudget::new(32, 0.0));
        let alike = vec![(1, 1000), (64, 1000 + 63 * 10)];
        assert_eq!(budget(&alike, 32), TreeBudget::new(32, 0.01));
        // The first six cost half as much as the others.
        let dearer = vec![(1, 1000), (7, 1600), (64, 1600 + 57 * 200)];
        assert_eq!(budget(&dearer, 32), TreeBudget::new(6, 0.1));
        assert_eq!(budget(&dearer, 3), TreeBudget::new(3, 0.1));
        // Those of a second tile of an accelerator, which is still nothing beside a round.
        let tiles = vec![(1, 1000), (16, 1001), (17, 1030), (64, 1032)];
        assert_eq!(budget(&tiles, 32).nodes, 32);
    }
}
