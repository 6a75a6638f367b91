//! Chain or tree: which proposals are worth their rows.
//!
//! A round emits one token, and one more for each proposal on the way that the target takes. With
//! `P(v)` the probability that node v is on it, and `t(n)` the time of a round with n proposals,
//!
//! ```text
//! tokens a second = (1 + sum of P(v) over the proposals) / t(number of proposals)
//! ```
//!
//! A child is never likelier than its parent, so the n likeliest nodes are a tree, and no other n
//! nodes have more. What is left to choose is n. Where the draft is sure, the likeliest nodes are
//! a chain; a second choice comes in where it is likelier than what lies far down the chain, and
//! is verified if a row is cheap enough.

use alloc::vec::Vec;

use super::Proposals;
use crate::{
    TokenId, fanout::Chances, guess::Candidates, message::TreeBudget, theory::expected_tokens,
};

/// How many proposals to verify, of those with these probabilities, likeliest first: the number
/// with the most expected tokens in its time. Of equally good numbers the smallest.
pub fn worthwhile(
    probabilities: impl IntoIterator<Item = f64>,
    time: impl Fn(usize) -> f64,
) -> usize {
    let mut expected = 1.0;
    let mut best = (0, expected / time(0));
    for (i, probability) in probabilities.into_iter().enumerate() {
        expected += probability;
        let rate = expected / time(i + 1);
        if rate > best.1 {
            best = (i + 1, rate);
        }
    }
    best.0
}

/// The probability from which a further proposal pays, beside a chain of `proposals` tokens of
/// which each is accepted with probability `acceptance`: what it costs in time, in tokens at the
/// chain's own pace.
pub fn price(budget: TreeBudget, acceptance: f64, proposals: usize) -> f64 {
    let pace = expected_tokens(acceptance, proposals as u32) / budget.time(proposals);
    pace * (budget.time(proposals + 1) - budget.time(proposals))
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
    let count = worthwhile(probabilities, |n| budget.time(n));
    let mut proposals = Proposals::new();
    for &i in &order[..count] {
        let parent = nodes[nodes[i].parent].number;
        nodes[i].number = parent.and_then(|p| proposals.push(p, nodes[i].token).ok());
    }
    proposals
}

/// Those of a row's second choices (see [`Chances::of`]) that are worth `price`, likeliest first, if
/// the row is reached with probability `reached`.
pub fn sides(
    choices: impl Iterator<Item = (TokenId, f64)>,
    reached: f64,
    price: f64,
) -> impl Iterator<Item = TokenId> {
    choices
        .take_while(move |(_, probability)| reached * probability > price)
        .map(|(token, _)| token)
}

#[cfg(test)]
mod tests {
    use std::vec;

    use super::*;
    use crate::{
        Seed,
        noise::Domain,
        sampling::{RankBy, Sampler, SamplingParams, Scratch},
    };

    fn budget(nodes: u32, row_cost: f64) -> TreeBudget {
        TreeBudget::new(nodes, row_cost)
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
    fn as_many_are_verified_as_have_the_most_tokens_in_their_time() {
        let probabilities = [0.9, 0.8, 0.5, 0.2, 0.1];
        let linear = |cost: f64| move |n: usize| 1.0 + cost * n as f64;
        assert_eq!(worthwhile(probabilities, linear(0.0)), 5);
        // (1 + 0.9 + 0.8 + 0.5) / 1.3 = 2.46, with the next 3.4 / 1.4 = 2.43.
        assert_eq!(worthwhile(probabilities, linear(0.1)), 3);
        assert_eq!(worthwhile(probabilities, linear(1.0)), 0);
        // A staircase: the step to four is taken once, and then all of it is used.
        let stairs = |n: usize| if n < 4 { 1.0 } else { 1.05 };
        assert_eq!(worthwhile(probabilities, stairs), 5);
        assert_eq!(worthwhile([0.9, 0.9, 0.9, 0.01], stairs), 3);
        assert_eq!(worthwhile([0.5; 3], |_| 1.0), 3);
        assert_eq!(worthwhile([], linear(0.0)), 0);
    }

    #[test]
    fn the_best_number_is_that_of_trying_all() {
        for seed in 0..300_u32 {
            let word = |i| f64::from(crate::noise::philox([i, seed, 0, 0], [3, 1])[0] % 1000) / 1e3;
            let mut probabilities: vec::Vec<f64> = (0..12).map(word).collect();
            probabilities.sort_by(|a, b| b.total_cmp(a));
            let time = |n: usize| 1.0 + word(50) * n as f64 / 3.0;
            let rate = |n: usize| (1.0 + probabilities[..n].iter().sum::<f64>()) / time(n);
            let best = (0..=12)
                .max_by(|&a, &b| rate(a).total_cmp(&rate(b)))
                .unwrap();
            let found = worthwhile(probabilities.iter().copied(), time);
            assert!((rate(found) - rate(best)).abs() < 1e-12, "{found} {best}");
        }
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
    }

    #[test]
    fn a_second_choice_pays_if_it_is_likelier_than_its_share_of_the_round() {
        // A chain of three certain tokens emits four in 1.3; one more row takes 0.1 of that.
        let price = price(budget(9, 0.1), 1.0, 3);
        assert!((price - 4.0 / 1.3 * 0.1).abs() < 1e-9);
        let chances = learned(0.4);
        let (drawn, sure) = (drawn(1, 0.05), drawn(1, 20.0));
        let count = |drawn: &Candidates, reached| {
            let row = drawn.row(0).unwrap();
            sides(chances.of(&row).1, reached, price).count()
        };
        // The second choice is right more than half of the time.
        assert_eq!((count(&drawn, 1.0), count(&sure, 1.0)), (1, 0));
        assert_eq!(count(&drawn, 0.3), 0);
    }
}
