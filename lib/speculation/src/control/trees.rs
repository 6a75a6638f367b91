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
    /// round without proposals: on average over `nodes` rows in each session. That many, whatever windows
    /// have on average, which end early.
    fn row_cost(&self, nodes: u32, lookahead: u32, load: Load) -> f64 {
        let sessions = load.sessions.max(1);
        let step = |proposals: u32| {
            let rows = sessions.saturating_mul(1 + proposals);
            self.steps.seconds(rows.saturating_add(load.other_rows))
        };
        let (bare, full) = (step(0), step(nodes));
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

    fn controller(steps: &[(u32, u64)]) -> Controller {
        let steps = steps
            .iter()
            .map(|&(rows, us)| (rows, Duration::from_micros(us)));
        let answers = AnswerTime::new(Duration::ZERO, Duration::ZERO);
        let config = ControlConfig {
            trees: true,
            ..ControlConfig::default()
        };
        Controller::new(config, StepCost::new(steps.collect()), answers)
    }

    fn budget_of(controller: &Controller, nodes: u32) -> TreeBudget {
        let budget = controller.tree_budget(nodes, 4, Load::default());
        budget.expect("trees come first")
    }

    fn budget(steps: &[(u32, u64)], nodes: u32) -> TreeBudget {
        budget_of(&controller(steps), nodes)
    }

    #[test]
    fn rows_of_trees_cost_what_they_do_however_short_windows_are() {
        let mut controller = controller(&[(1, 1000), (7, 1600), (64, 1600 + 57 * 200)]);
        for _ in 0..200 {
            controller.observe_round(4, 1, 1);
            controller.observe_coverage(4, 1, true);
        }
        assert!(controller.length(4) < 1.1);
        assert_eq!(budget_of(&controller, 32), TreeBudget::new(6, 0.1));
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
