//! Trees of a spine and tokens beside it, as endpoints draw them for verification by ratio.

use super::*;

const SALT: u32 = 60;

/// Draws a spine of two tokens, and beside each as many others as `wanted` says, given what was
/// drawn at that depth and before; `keeps` says which of them are proposed.
fn draw(
    coins: &mut Enumerator,
    wanted: impl Fn(&[TokenId]) -> usize,
    keeps: fn(TokenId) -> bool,
) -> (Proposals, Vec<SparseDistribution>) {
    let (mut spine, mut laws) = (vec![], vec![]);
    let mut beside: Vec<Vec<TokenId>> = vec![];
    for _ in 0..2 {
        let mut left = law(&spine, SALT);
        laws.push(sparse(&left));
        let mut next = || {
            let token = coins.pick(&left);
            left[token] = 0.0;
            TokenId(token as u32)
        };
        spine.push(next());
        let others: Vec<_> = (0..wanted(&spine)).map(|_| next()).collect();
        beside.push(others.into_iter().filter(|&token| keeps(token)).collect());
    }
    let tree = Proposals::with_sides(spine, |depth| beside[depth].clone());
    (tree, laws)
}

/// How far what is emitted is from the target's law.
fn distance(wanted: impl Fn(&[TokenId]) -> usize, keeps: fn(TokenId) -> bool, p: u32) -> f64 {
    let mut law_of = BTreeMap::new();
    let mut coins = Enumerator::default();
    let mut trees = 0;
    loop {
        let (tree, q) = draw(&mut coins, &wanted, keeps);
        trees += u32::from(!tree.is_chain());
        let spine: Vec<_> = core::iter::once(0).chain(tree.spine()).collect();
        let draft = |node| q.get(spine.iter().position(|&own| own == node)?);
        let target = |node: u32, out: &mut Vec<f64>| *out = law(&tree.spelled(node), p);
        let verdict = traversal(&tree, draft, target, &mut coins);
        let mut tokens = tree.spelled(verdict.node);
        tokens.push(verdict.decided);
        *law_of.entry(tokens).or_insert(0.0) += coins.probability();
        if !coins.advance() {
            break;
        }
    }
    assert!(trees > 0);
    completed(&law_of, 3, p)
}

#[test]
fn tokens_beside_a_spine_may_depend_on_what_was_drawn_before_them() {
    for p in 0..4 {
        for wanted in [0, 1, 2] {
            let ids = |drawn: &[TokenId]| drawn.iter().map(|t| t.index()).sum::<usize>();
            let distance = distance(|drawn| (ids(drawn) + wanted) % 3, |_| true, p);
            assert!(distance < 1e-12, "{p} {wanted}: {distance}");
        }
    }
}

#[test]
fn it_shows_if_they_depend_on_what_they_are() {
    let found: Vec<_> = (0..4)
        .map(|p| distance(|_| 1, |token| token.0 != 1, p))
        .collect();
    assert!(found.iter().all(|&distance| distance > 1e-3), "{found:?}");
}
