use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;

fn tokens(tokens: &[u32]) -> Vec<TokenId> {
    tokens.iter().map(|&token| TokenId(token)).collect()
}

fn tree(ids: &[u32], parents: &[u32]) -> Result<Proposals, TreeError> {
    Proposals::with_parents(tokens(ids), parents)
}

/// The tree of the module's picture.
fn picture() -> Proposals {
    tree(&[10, 11, 12, 13, 14], &[0, 1, 0, 2, 1]).expect("is a tree")
}

fn any_tree() -> impl Strategy<Value = Proposals> {
    prop::collection::vec((any::<u32>(), 0..4_u32), 0..40).prop_map(|nodes| {
        let mut proposals = Proposals::new();
        for (parent, token) in nodes {
            // A repeated child is left out.
            let parent = parent % (proposals.len() as u32 + 1);
            proposals.push(parent, TokenId(token)).ok();
        }
        proposals
    })
}

/// All paths from the root, as tokens.
fn paths(proposals: &Proposals) -> Vec<Vec<TokenId>> {
    let nodes = 1..=proposals.len() as u32;
    let mut paths: Vec<Vec<TokenId>> = nodes.map(|node| proposals.spelled(node)).collect();
    paths.sort();
    paths
}

#[test]
fn a_tree_knows_its_paths_and_children() {
    let tree = picture();
    assert!(!tree.is_chain());
    assert_eq!(tree.children(0).collect::<Vec<_>>(), [1, 3]);
    assert_eq!(tree.children(1).collect::<Vec<_>>(), [2, 5]);
    assert_eq!(tree.children(4).count(), 0);
    assert_eq!(tree.path(4), [1, 2, 4]);
    assert_eq!((tree.depth(0), tree.depth(5), tree.height()), (0, 2, 3));
    assert_eq!(tree.find(&tokens(&[10, 14])), Some(5));
    assert_eq!(tree.find(&tokens(&[12, 14])), None);
    assert_eq!(tree.find(&[]), Some(0));
}

#[test]
fn a_chain_with_sides_loses_those_first_and_keeps_its_depth() {
    let sides = [vec![10, 20, 21], vec![], vec![30]];
    let beside = |depth: usize| tokens(&sides[depth]);
    let whole = Proposals::with_sides(tokens(&[10, 11, 12]), beside);
    // What is there already is left out.
    let expected = tree(&[10, 11, 12, 20, 21, 30], &[0, 1, 2, 0, 0, 2]);
    assert_eq!(whole, expected.unwrap());
    assert_eq!(whole.spine().collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(whole.beside(0).collect::<Vec<_>>(), tokens(&[20, 21]));
    assert_eq!(whole.beside(1).count(), 0);
    for (len, height) in [(5, 3), (3, 3), (2, 2), (0, 0)] {
        let mut cut = Proposals::with_sides(tokens(&[10, 11, 12]), beside);
        cut.truncate(len);
        assert_eq!((cut.len(), cut.height()), (len, height));
    }
    assert_eq!(picture().spine().collect::<Vec<_>>(), [1, 2, 4]);
    assert_eq!(picture().beside(1).collect::<Vec<_>>(), tokens(&[14]));
    assert_eq!(Proposals::new().spine().count(), 0);
}

#[test]
fn parts_of_a_tree_are_trees_and_those_that_do_not_fork_are_chains() {
    assert_eq!(picture().below(1), tree(&[11, 13, 14], &[0, 1, 0]).unwrap());
    assert_eq!(picture().below(2), tokens(&[13]).into());
    assert_eq!(picture().below(9), Proposals::new());
    let mut cut = picture();
    cut.cut_below(2);
    assert_eq!(cut, tree(&[10, 11, 12, 14], &[0, 1, 0, 1]).unwrap());
    cut.truncate(2);
    assert_eq!(cut, tokens(&[10, 11]).into());
    assert!(cut.is_chain());
    assert_eq!(cut.below(1), tokens(&[11]).into());
    assert_eq!(cut.below(7), Proposals::new());
}

#[test]
fn what_is_no_tree_is_refused() {
    let count = TreeError::Count {
        tokens: 2,
        parents: 1,
    };
    assert_eq!(tree(&[1, 2], &[0]), Err(count));
    let order = |node, parent| Err(TreeError::Order { node, parent });
    assert_eq!(tree(&[1], &[1]), order(1, 1));
    assert_eq!(tree(&[1, 2], &[0, 2]), order(2, 2));
    assert_eq!(tree(&[1, 2], &[0, u32::MAX]), order(2, u32::MAX));
    let twice = TreeError::Twice {
        parent: 0,
        token: TokenId(1),
    };
    assert_eq!(tree(&[1, 1], &[0, 0]), Err(twice));
    assert!(tree(&[1, 1], &[0, 1]).is_ok(), "under another parent it is");
    let many: Vec<u32> = (0..64).collect();
    assert_eq!(tree(&many, &[0; 64]), Err(TreeError::Full));
    assert!(tree(&many[1..], &[0; 63]).is_ok());
    // A chain may be as long as it likes, but then it stays one.
    let mut long = tree(&many, &many).unwrap();
    assert!(long.is_chain());
    assert_eq!(long.push(0, TokenId(99)), Err(TreeError::Full));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn tokens_and_parents_are_all_there_is_of_a_tree(tree in any_tree()) {
        let again = Proposals::with_parents(tree.tokens().to_vec(), tree.parents());
        prop_assert_eq!(again.as_ref(), Ok(&tree));
        let parents: Vec<u32> = (1..=tree.len() as u32).map(|node| tree.parent(node)).collect();
        prop_assert_eq!(Proposals::with_parents(tree.tokens().to_vec(), &parents), Ok(tree));
    }

    #[test]
    fn every_node_is_found_by_the_tokens_on_its_path(tree in any_tree()) {
        for node in 0..=tree.len() as u32 {
            let path = tree.path(node);
            prop_assert_eq!(path.len(), tree.depth(node));
            let tokens: Vec<_> = path.iter().filter_map(|&n| tree.token(n)).collect();
            prop_assert_eq!(tree.find(&tokens), Some(node));
            prop_assert_eq!(tree.spelled(node), tokens);
            let children: Vec<_> = (1..=tree.len() as u32).filter(|&n| tree.parent(n) == node).collect();
            prop_assert_eq!(tree.children(node).collect::<Vec<_>>(), children);
        }
    }

    #[test]
    fn parts_keep_the_paths_that_are_theirs(tree in any_tree(), node in 0..40_u32, n in 0..40_usize) {
        let mut short = tree.clone();
        short.cut_below(n);
        let mut expected = paths(&tree);
        expected.retain(|path| path.len() <= n);
        prop_assert_eq!(paths(&short), expected);

        let mut first = tree.clone();
        first.truncate(n);
        prop_assert_eq!(first.tokens(), &tree.tokens()[..n.min(tree.len())]);
        prop_assert!((1..=first.len() as u32).all(|i| first.parent(i) == tree.parent(i)));

        let node = node % (tree.len() as u32 + 1);
        let prefix = tree.spelled(node);
        let mut expected = vec![];
        for path in paths(&tree) {
            if let Some(rest) = path.strip_prefix(&prefix[..]).filter(|rest| !rest.is_empty()) {
                expected.push(rest.to_vec());
            }
        }
        prop_assert_eq!(paths(&tree.below(node)), expected);
    }
}
