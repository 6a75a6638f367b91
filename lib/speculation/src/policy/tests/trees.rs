//! Windows and continuations that are trees.

use proptest::prelude::*;

use super::*;
use crate::{
    message::{Cutoffs, Rise, Side, TreeBudget},
    verify::coupled_tree,
};

/// How likely proposals have to be where rows are cheap.
const CHEAP: Option<f64> = Some(0.0005);

/// With trees of proposals that have to be so likely, or none.
fn play(policy: Policy, seed: u64, faults: Faults, blur: f32, likely: Option<f64>) -> World {
    let params = demanding([0.0, 0.7, 1.0][seed as usize % 3]);
    let tree = likely.map(|likely| TreeBudget::new(14, likely));
    // Every third request's windows and continuations may end early besides.
    let ends = if seed % 3 == 2 { 0.2 } else { 0.0 };
    let (world, _) = played(policy, params, seed, faults, blur, |world| {
        world.tree = tree;
        world.cutoffs = Cutoffs::new(ends, ends, Rise::new(2, ends));
    });
    let stats = world.target.stats();
    assert!(stats.accepted <= stats.drafted);
    world
}

fn ssd(delivery: Delivery) -> Policy {
    Policy::Ssd(SsdOptions {
        lookahead: Lookahead::Fixed(4),
        budget: 16,
        delivery,
        ..SsdOptions::default()
    })
}

#[test]
fn trees_of_every_policy_change_no_token() {
    for policy in [fixed(4), ssd(Delivery::Push), ssd(Delivery::Pull)] {
        let mut sizes = 0;
        for seed in 0..12 {
            let world = play(policy, seed, Faults::default(), 2.0, CHEAP);
            assert!(world.trees.iter().all(|&(_, nodes)| nodes <= 14));
            sizes += world.trees.len();
        }
        assert!(sizes > 100, "{policy:?} made {sizes} trees");
    }
}

#[test]
fn trees_over_bad_links_from_lost_and_restarted_endpoints_change_no_token() {
    for policy in [fixed(5), ssd(Delivery::Push), ssd(Delivery::Pull)] {
        let mut trees = 0;
        for seed in 0..24 {
            trees += play(policy, seed, Faults::ALL, 1.5, CHEAP).trees.len();
        }
        assert!(trees > 50, "{policy:?} made {trees} trees");
    }
}

#[test]
fn with_rows_for_nothing_trees_are_accepted_further_than_chains() {
    for policy in [fixed(4), ssd(Delivery::Push)] {
        let accepted = |likely: Option<f64>| -> (u32, u32) {
            let stats = (0..12).map(|seed| {
                let world = play(policy, seed, Faults::default(), 3.0, likely);
                (world.target.stats().rounds, world.trees.len() as u32)
            });
            stats.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
        };
        let (with, trees) = accepted(CHEAP);
        let (without, none) = accepted(None);
        assert!(trees > 0 && none == 0, "{trees} {none}");
        assert!(
            with * 100 < without * 95,
            "{with} rounds, {without} without"
        );
    }
}

#[test]
fn a_draft_that_is_always_right_comes_to_propose_chains() {
    for policy in [fixed(4), ssd(Delivery::Push)] {
        for seed in 0..6 {
            let world = play(policy, seed, Faults::default(), 0.0, Some(0.05));
            let late = world.trees.iter().filter(|(round, _)| *round > 20);
            assert_eq!(late.count(), 0, "{policy:?}: {:?}", world.trees);
        }
    }
}

/// A target that verifies, in every round, a window made from what would come next.
fn verify_wild(seed: u64, nodes: &[(u32, u32)], budget: Option<TreeBudget>) -> TargetStats {
    let params = demanding(if seed.is_multiple_of(2) { 0.0 } else { 1.0 });
    let expected = plain(&params, Seed(seed), 60);
    let policy = if seed.is_multiple_of(3) {
        ssd(Delivery::Push)
    } else {
        fixed(6)
    };
    let mut world = World::new(policy, params.clone(), seed, Faults::default(), 0.0, 60);
    let target = &mut world.target;
    let mut sampler = Sampler::new(params, Seed(seed), &prompt(), prompt().len()).unwrap();
    target.handle(US, Input::LinkUp);
    let mut now = US;
    loop {
        let window = match target.next(now) {
            Next::Verify(window) => window.clone(),
            Next::Wait { until } => {
                now = until;
                continue;
            }
            Next::Finished => break,
        };
        let base = target.tokens().to_vec();
        let rows: Vec<_> = (0..=window.len() as u32)
            .map(|node| logits(&[&base[..], &window.spelled(node)].concat(), 0.0))
            .collect();
        let verdict = coupled_tree(&mut sampler, &mut Scratch::new(), &window, |node| {
            &rows[node as usize]
        });
        let mut tokens = window.spelled(verdict.node);
        let accepted = tokens.len() as u32;
        tokens.push(verdict.decided);
        tokens.truncate(60 - base.len());
        let verified = Verified {
            tokens: &tokens,
            accepted: accepted.min(tokens.len() as u32),
            suggested: 6,
            tree: budget,
            ..Verified::default()
        };
        target.handle(now, Input::Verified(verified));
        // Whatever was asked for, the endpoint sends the same tree, with the truth in some places.
        let len = target.tokens().len();
        let mut proposals = Proposals::new();
        for &(parent, token) in nodes {
            let parent = parent % (proposals.len() as u32 + 1);
            let depth = proposals.depth(parent);
            let truth = expected.get(len + depth).filter(|_| token % 2 == 0);
            let token = truth.map_or(token % VOCAB, |token| token.0);
            proposals.push(parent, TokenId(token)).ok();
        }
        let round = target.stats().rounds;
        let message = ToTarget::Window(Window {
            session: SessionId(3),
            epoch: target.epoch(),
            round: Round(round),
            base_len: len as u32,
            proposals,
            ..Window::default()
        });
        target.handle(now, Input::Received(&message));
    }
    assert_eq!(target.tokens(), expected);
    target.stats()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(100) })]

    #[test]
    fn any_trees_of_an_endpoint_change_no_token(
        seed in 0..1000_u64,
        nodes in prop::collection::vec((any::<u32>(), any::<u32>()), 0..30),
        asked in any::<bool>(),
    ) {
        let budget = asked.then(|| TreeBudget::new(20, 0.01));
        let stats = verify_wild(seed, &nodes, budget);
        prop_assert!(stats.drafted <= 20 * stats.rounds);
    }
}

#[test]
fn a_tree_that_was_not_asked_for_is_not_verified() {
    let mut target = open_target().0;
    target.next(US);
    target.handle(US, verified(&[TokenId(4)], 0));
    let mut proposals = chain(&[1, 2]);
    proposals.push(0, TokenId(3)).unwrap();
    let ToTarget::Window(window) = window(1, 1, 10, &[]) else {
        unreachable!("it is a window")
    };
    let message = ToTarget::Window(Window {
        proposals,
        ..window
    });
    target.handle(US, Input::Received(&message));
    assert_eq!(target.next(US), Next::Verify(&Proposals::new()));
}

#[test]
fn continuations_with_second_choices_are_trees_and_sides_out_of_place_are_dropped() {
    let side = |entry, after, token| Side {
        entry,
        after,
        token: TokenId(token),
    };
    let key = |accepted, token| OutcomeKey {
        accepted,
        token: TokenId(token),
    };
    // What the sides of the second part are, and what is proposed after the second outcome.
    let tree = |tokens: &[u32], parents: &[u32]| {
        let tokens = tokens.iter().map(|&t| TokenId(t)).collect();
        Proposals::with_parents(tokens, parents).unwrap()
    };
    let cases = [
        (vec![], tree(&[2, 4, 8], &[0, 1, 0])),
        (vec![side(1, 1, 6)], tree(&[2, 4, 8, 6], &[0, 1, 0, 1])),
        (vec![side(1, 0, 6)], tree(&[2, 4, 8, 6], &[0, 1, 0, 0])),
        // The continuation's own token: it is there already.
        (vec![side(1, 1, 4)], tree(&[2, 4, 8], &[0, 1, 0])),
        // Beside what nobody sent, or of an outcome that nobody named: the part is dropped.
        (vec![side(1, 2, 6)], tree(&[2, 8], &[0, 0])),
        (vec![side(2, 0, 6)], tree(&[2, 8], &[0, 0])),
        (vec![side(1, u32::MAX, 6)], tree(&[2, 8], &[0, 0])),
        // More than was asked for: the chain, and beside it as much as was.
        (
            (0..10).map(|token| side(1, 1, token)).collect(),
            tree(&[2, 4, 8, 0, 1, 2], &[0, 1, 0, 1, 1, 1]),
        ),
    ];
    for (sides, expected) in cases {
        let options = SsdOptions {
            lookahead: Lookahead::Fixed(3),
            fallback: crate::fallback::OnMiss::Nothing,
            ..SsdOptions::default()
        };
        let policy = Policy::Ssd(options);
        let mut world = World::new(policy, sampling(0.0), 1, Faults::default(), 0.0, 64);
        let target = &mut world.target;
        target.handle(US, Input::LinkUp);
        target.next(US);
        let asks = Verified {
            tokens: &[TokenId(9)],
            suggested: 3,
            tree: Some(TreeBudget::new(6, 0.0)),
            ..Verified::default()
        };
        target.handle(US, Input::Verified(asks));
        let part = |before, keys: &[OutcomeKey], tokens: [u32; 2], sides: &[Side]| {
            ToTarget::Entries(Entries {
                session: SessionId(3),
                epoch: Epoch(1),
                round: Round(1),
                base_len: 10,
                before,
                keys: keys.to_vec(),
                tokens: tokens.map(TokenId).to_vec(),
                sides: sides.to_vec(),
                ..Entries::default()
            })
        };
        let keys = [key(0, 5), key(0, 7)];
        let first = part(0, &keys, [1, 2], &[side(1, 0, 8)]);
        target.handle(US, Input::Received(&first));
        target.handle(US, Input::Received(&part(1, &[], [3, 4], &sides)));
        target.next(US);
        target.handle(US, verified(&[TokenId(7)], 0));
        assert_eq!(target.next(US), Next::Verify(&expected), "{sides:?}");
    }
}
