//! What a target has for trees of proposals.

use super::{Controller, Load, cutoff::priced};
use crate::message::{Cutoff, Rise, TreeBudget};

/// Most proposals of a tree: further ones are hardly ever likely enough.
pub const MOST_NODES: u32 = 32;

impl Controller {
    /// What a tree of up to `nodes` proposals may have in each session of `load`, whose windows have
    /// `lookahead` tokens; nothing if chains are better or it is their turn.
    ///
    /// A proposal is worth its row by the rule for the tokens of windows (see [`cutoffs`](Self::cutoffs)).
    /// What a step takes longer because there are proposals at all is in no row's price, since every tree
    /// has one: on a paper's machine it is most of what they cost, and shared among as many as there may be
    /// it would make the first of them dear and the last cheap.
    pub fn tree_budget(&self, nodes: u32, lookahead: u32, load: Load) -> Option<TreeBudget> {
        if !self.ways.trees() {
            return None;
        }
        let (sessions, others) = (f64::from(load.sessions.max(1)), f64::from(load.other_rows));
        let step = |further: u32| {
            let rows = sessions * (2.0 + f64::from(further));
            self.steps.mean_seconds(rows + others)
        };
        let (row, dearer) = priced(nodes.saturating_sub(1), step);
        let pace = self.pace(lookahead, load);
        let rise = dearer.map(|(after, more)| Rise::new(1 + after, pace * more));
        Some(TreeBudget {
            nodes,
            cutoff: Cutoff::new(pace * row, rise.unwrap_or_default()),
        })
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::control::{AnswerTime, ControlConfig, StepCost};

    const LOOKAHEAD: u32 = 4;

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
        let budget = controller.tree_budget(nodes, LOOKAHEAD, Load::default());
        budget.expect("trees come first")
    }

    #[test]
    fn proposals_have_to_be_worth_further_rows_and_later_ones_more_where_those_are_dearer() {
        let cutoffs = |steps: &[(u32, u64)], nodes| {
            let (controller, load) = (controller(steps), Load::default());
            let budget = budget_of(&controller, nodes);
            assert_eq!(budget.nodes, nodes);
            let pace = controller.pace(LOOKAHEAD, load);
            // In percent, what they would have to be if a token were emitted in each millisecond.
            let percent = |index| 100.0 * budget.cutoff.at(index) / pace / 1e-3;
            [0, 5, 6, 7, 31].map(|index| percent(index).round() as u32)
        };
        assert_eq!(cutoffs(&[(1, 1000), (64, 1000)], 32), [0; 5]);
        let alike = [(1, 1000), (64, 1000 + 63 * 100)];
        assert_eq!(cutoffs(&alike, 32), [10; 5]);
        // Those after the sixth cost twice as much as the others.
        let dearer = [(1, 1000), (7, 1600), (64, 1600 + 57 * 200)];
        assert_eq!(cutoffs(&dearer, 32), [10, 10, 20, 20, 20]);
        assert_eq!(cutoffs(&dearer, 6), [10; 5]);
        // That there are any takes a quarter, and how many nothing up to seven, as on a paper's machine.
        let papers = [(1, 800), (2, 1000), (8, 1000), (64, 1000 + 56 * 100)];
        assert_eq!(cutoffs(&papers, 32), [0, 0, 0, 10, 10]);
        assert_eq!(cutoffs(&papers, 1), [0; 5]);
        assert_eq!(cutoffs(&papers, 0), [0; 5]);
    }

    #[test]
    fn rows_are_those_of_trees_however_short_windows_are() {
        let mut controller = controller(&[(1, 1000), (7, 1600), (64, 1600 + 57 * 200)]);
        let dearer_from = |controller: &Controller| budget_of(controller, 32).cutoff.rise.after;
        assert_eq!(dearer_from(&controller), 6);
        for _ in 0..200 {
            controller.observe_round(LOOKAHEAD, 1, 1);
            controller.observe_coverage(LOOKAHEAD, 1, true);
        }
        assert!(controller.length(LOOKAHEAD) < 1.1);
        assert_eq!(dearer_from(&controller), 6);
    }

    #[test]
    fn a_row_of_each_session_makes_the_step_of_all_longer() {
        let controller = controller(&[(1, 1000), (128, 1000 + 127 * 20)]);
        for sessions in [1, 3] {
            let load = Load::of(sessions);
            let budget = controller.tree_budget(16, LOOKAHEAD, load);
            let rows = controller.pace(LOOKAHEAD, load) * 20e-6 * f64::from(sessions);
            let found = budget.expect("trees come first").cutoff.at(3);
            assert!((found - rows).abs() < 1e-4, "{found} {rows}");
        }
    }
}
