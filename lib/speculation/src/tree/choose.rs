//! Chain or tree: which proposals are worth their rows.
//!
//! A round emits one token, and one more for each proposal on the way that the target takes. So a
//! proposal is worth its row iff the probability that it is on it is more than what could be emitted in the
//! time that the row takes, which the target tells
//! ([`tree_budget`](crate::control::Controller::tree_budget)). A child is never likelier than its
//! parent, so the likeliest nodes are a tree, up to the first that is not worth it. Where the draft is
//! sure, they are a chain; a second choice comes in where it is likelier than what lies far down the
//! chain, and is verified if a row is cheap enough.

use alloc::vec::Vec;

use super::Proposals;
use crate::{TokenId, fanout::Chances, guess::Candidates, message::TreeBudget};

/// A chain that is being drawn, beside whose tokens second choices are chosen before the rest of it is
/// there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spine {
    /// Tokens that it may have.
    pub tokens: u32,
    /// Probability that one more of them is accepted.
    pub acceptance: f64,
}

impl Spine {
    /// How many of its tokens come before something of this `probability`: the first `drawn`, which are all
    /// accepted with probability `reached`, and of the others those that are likelier, as far as is known.
    pub fn before(self, (drawn, reached): (u32, f64), probability: f64) -> u32 {
        let others = (drawn..self.tokens).scan(reached, |reached, _| {
            *reached *= self.acceptance;
            Some(*reached)
        });
        let likelier = others.take_while(|&reached| reached > probability);
        drawn + likelier.count() as u32
    }
}

/// The best chain or tree within `budget` of what was drawn: the chain, and second choices beside
/// its tokens. Its first tokens are the likeliest.
pub fn window(drawn: &Candidates, chances: &Chances, budget: TreeBudget) -> Proposals {
    struct Node {
        parent: usize,
        token: TokenId,
        probability: f64,
        /// Its number, once it is part of the window.
        number: Option<u32>,
    }
    let node = |parent, token, probability| Node {
        parent,
        token,
        probability,
        number: None,
    };
    let mut nodes = alloc::vec![node(0, TokenId(0), 1.0)];
    nodes[0].number = Some(0);
    let mut last = 0;
    for row in drawn.rows() {
        let Some(proposed) = row.proposed else { break };
        let reached = nodes[last].probability;
        let (accepts, sides) = chances.of(&row);
        let next = nodes.len();
        nodes.push(node(last, proposed, reached * accepts));
        nodes.extend(sides.map(|(token, p)| node(last, token, reached * p)));
        last = next;
    }
    let mut order: Vec<usize> = (1..nodes.len()).collect();
    // Stable: parents come before children that are as likely.
    order.sort_by(|&a, &b| nodes[b].probability.total_cmp(&nodes[a].probability));
    order.truncate((budget.nodes as usize).min(Proposals::MAX_TREE));
    let probabilities = order.iter().map(|&i| nodes[i].probability);
    let count = budget.cutoff.tokens(probabilities) as usize;
    let mut proposals = Proposals::new();
    for &i in &order[..count] {
        let parent = nodes[nodes[i].parent].number;
        nodes[i].number = parent.and_then(|p| proposals.push(p, nodes[i].token).ok());
    }
    proposals
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::{
        Seed,
        message::Rise,
        noise::Domain,
        sampling::{RankBy, Sampler, SamplingParams, Scratch},
    };

    fn budget(nodes: u32, likely: f64) -> TreeBudget {
        TreeBudget::new(nodes, likely)
    }

    /// A chain of `rows` drawn tokens, each ahead of the next one by `margin`.
    fn drawn(rows: usize, margin: f32) -> Candidates {
        let params = SamplingParams {
            temperature: 0.0,
            ..SamplingParams::default()
        };
        let mut sampler = Sampler::new(params, Seed(1), &[TokenId(0)], 1).unwrap();
        let mut drawn = Candidates::new(RankBy::Noise(Domain::Coupled), Chances::SIDES + 1);
        for i in 0..rows {
            let row: vec::Vec<f32> = (0..8).map(|v| -margin * ((v + 8 - i) % 8) as f32).collect();
            let token = drawn.draw(&sampler, &mut Scratch::new(), &row);
            assert_eq!(token, TokenId(i as u32 % 8));
            sampler.push(token);
        }
        drawn
    }

    /// What is known after many verdicts in which tokens with wide margins are accepted always,
    /// those with narrow ones with this probability, and the second choice otherwise.
    fn learned(narrow: f64) -> Chances {
        let mut estimates = crate::fanout::Estimates::new(crate::fanout::Prior::default());
        for (margin, accepts) in [(20.0, 1.0), (0.05, narrow)] {
            let drawn = drawn(1, margin);
            let side = drawn.row(0).unwrap().candidates[0].token;
            for i in 0..4000 {
                let accepted = f64::from(i % 100) < 100.0 * accepts;
                let outcome = crate::guess::OutcomeKey {
                    accepted: u32::from(accepted),
                    token: side,
                };
                estimates.observe(&drawn, outcome);
            }
        }
        estimates.chances()
    }

    #[test]
    fn without_uncertainty_a_chain_wins_and_with_it_a_tree_where_rows_are_cheap() {
        let chances = learned(0.4);
        let sure = window(&drawn(5, 20.0), &chances, budget(32, 0.01));
        assert!(sure.is_chain());
        assert_eq!(sure.len(), 5);
        // Unsure, with rows for nothing: second choices, those near the root first.
        let tree = window(&drawn(5, 0.05), &chances, budget(12, 0.001));
        assert!(!tree.is_chain());
        assert_eq!(tree.parents()[..2], [0, 0]);
        assert!(tree.len() <= 12);
        // Unsure, with rows as dear as on a core that computes all it can: no tree, and less.
        let chain = window(&drawn(5, 0.05), &chances, budget(32, 0.5));
        assert!(chain.is_chain());
        assert!(chain.len() < 2, "{chain:?}");
        assert!(window(&drawn(5, 20.0), &chances, budget(0, 0.0)).is_empty());
        // As many as have cheap rows.
        let mut budget = budget(12, 0.001);
        budget.cutoff.rise = Rise::new(4, 0.9);
        assert_eq!(window(&drawn(5, 0.05), &chances, budget).len(), 4);
    }

    #[test]
    fn tokens_of_a_chain_come_before_what_is_less_likely_than_they_will_be() {
        let spine = Spine {
            tokens: 6,
            acceptance: 0.5,
        };
        // The three that come are accepted with probability .4, .2 and .1.
        for (probability, before) in [(0.9, 3), (0.4, 3), (0.3, 4), (0.15, 5), (0.01, 6)] {
            assert_eq!(spine.before((3, 0.8), probability), before, "{probability}");
        }
        assert_eq!(spine.before((6, 0.8), 0.01), 6);
        assert_eq!(spine.before((7, 0.8), 0.01), 7);
    }
}
