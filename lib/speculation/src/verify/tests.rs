//! Exactness by enumeration: all proposals, all coins.

mod sides;

use alloc::collections::BTreeMap;
use std::{vec, vec::Vec};

use proptest::prelude::*;

use super::*;
use crate::{
    Seed,
    noise::{Domain, Noise, philox},
    sampling::SamplingParams,
};

const V: usize = 3;

/// Decisions along one branch of the tree of all possible ones.
#[derive(Default)]
pub(crate) struct Enumerator {
    /// Option taken at each decision, and the probabilities of all its options.
    taken: Vec<(usize, Vec<f64>)>,
    cursor: usize,
}

impl Enumerator {
    fn decide(&mut self, options: Vec<f64>) -> usize {
        if self.cursor == self.taken.len() {
            let first = options
                .iter()
                .position(|&p| p > 0.0)
                .expect("something is possible");
            self.taken.push((first, options));
        }
        self.cursor += 1;
        self.taken[self.cursor - 1].0
    }

    pub(crate) fn probability(&self) -> f64 {
        self.taken
            .iter()
            .map(|(taken, options)| options[*taken])
            .product()
    }

    /// Goes to the next branch; false after the last one.
    pub(crate) fn advance(&mut self) -> bool {
        self.cursor = 0;
        while let Some((taken, options)) = self.taken.pop() {
            if let Some(next) = (taken + 1..options.len()).find(|&i| options[i] > 0.0) {
                self.taken.push((next, options));
                return true;
            }
        }
        false
    }
}

impl Coins for Enumerator {
    fn accept(&mut self, probability: f64) -> bool {
        let yes = probability.min(1.0);
        self.decide(vec![yes, 1.0 - yes]) == 0
    }

    fn pick(&mut self, weights: &[f64]) -> usize {
        let total: f64 = weights.iter().sum();
        self.decide(weights.iter().map(|weight| weight / total).collect())
    }
}

/// A law over three tokens that depends on the context; probabilities are multiples of 1/64, so
/// that they are exact as weights too.
fn law(context: &[TokenId], salt: u32) -> Vec<f64> {
    let hash = context.iter().fold(salt + 1, |h, t| h * 5 + t.0 + 1);
    let word = philox([hash, salt, 0, 0], [11, 7])[0];
    let first = 1 + word % 40;
    let second = 1 + (word >> 8) % (62 - first);
    let counts = [first, second, 64 - first - second];
    counts.map(|count| f64::from(count) / 64.0).to_vec()
}

fn sparse(law: &[f64]) -> SparseDistribution {
    let entry = |(token, &p): (usize, &f64)| (TokenId(token as u32), (64.0 * p) as u32);
    SparseDistribution {
        entries: law.iter().enumerate().map(entry).collect(),
    }
}

/// All sequences of `len` tokens.
fn sequences(len: usize) -> Vec<Vec<TokenId>> {
    (0..V.pow(len as u32))
        .map(|code| {
            (0..len)
                .map(|i| TokenId((code / V.pow(i as u32) % V) as u32))
                .collect()
        })
        .collect()
}

/// Probability that `tokens` come one after the other under the law with this salt.
fn joint(tokens: &[TokenId], salt: u32) -> f64 {
    (0..tokens.len())
        .map(|i| law(&tokens[..i], salt)[tokens[i].index()])
        .product()
}

/// The law of the first `len` tokens, given that of what a round emits: the target's own goes on
/// where that ends.
fn completed(emitted: &BTreeMap<Vec<TokenId>, f64>, len: usize, salt: u32) -> f64 {
    let mut worst: f64 = 0.0;
    for tokens in sequences(len) {
        let reached: f64 = (1..=len)
            .map(|n| {
                let rest: f64 = (n..len)
                    .map(|i| law(&tokens[..i], salt)[tokens[i].index()])
                    .product();
                emitted.get(&tokens[..n]).copied().unwrap_or(0.0) * rest
            })
            .sum();
        worst = worst.max((reached - joint(&tokens, salt)).abs());
    }
    worst
}

type Chain = fn(&[TokenId], &[SparseDistribution], &mut Enumerator, u32) -> Verdict;

fn by_token(w: &[TokenId], q: &[SparseDistribution], coins: &mut Enumerator, p: u32) -> Verdict {
    rejection(w, q, |i, out| *out = law(&w[..i], p), coins)
}

fn by_block(w: &[TokenId], q: &[SparseDistribution], coins: &mut Enumerator, p: u32) -> Verdict {
    block(w, q, |i, out| *out = law(&w[..i], p), coins)
}

/// A chain is a tree: the same law, decided by traversal.
fn by_traversal(
    w: &[TokenId],
    q: &[SparseDistribution],
    coins: &mut Enumerator,
    p: u32,
) -> Verdict {
    let target = |node: u32, out: &mut Vec<f64>| *out = law(&w[..node as usize], p);
    let verdict = traversal(&w.into(), |node| q.get(node as usize), target, coins);
    Verdict {
        accepted: verdict.node as usize,
        decided: verdict.decided,
    }
}

/// What a round emits, and the expected number of accepted tokens, over all windows of `n` tokens.
fn emitted(verify: Chain, n: usize, p: u32, q: u32) -> (BTreeMap<Vec<TokenId>, f64>, f64) {
    let mut law_of = BTreeMap::new();
    let mut accepted = 0.0;
    for window in sequences(n) {
        let drawn = joint(&window, q);
        let laws: Vec<_> = (0..n).map(|i| sparse(&law(&window[..i], q))).collect();
        let mut coins = Enumerator::default();
        loop {
            let verdict = verify(&window, &laws, &mut coins, p);
            let probability = drawn * coins.probability();
            let mut tokens = window[..verdict.accepted].to_vec();
            tokens.push(verdict.decided);
            *law_of.entry(tokens).or_insert(0.0) += probability;
            accepted += probability * verdict.accepted as f64;
            if !coins.advance() {
                break;
            }
        }
    }
    (law_of, accepted)
}

#[test]
fn every_rule_for_chains_emits_the_targets_law() {
    for salt in 0..12 {
        for n in 0..=2 {
            for verify in [by_token as Chain, by_block, by_traversal] {
                let (law_of, _) = emitted(verify, n, salt, salt + 100);
                assert!(completed(&law_of, n + 1, salt) < 1e-12, "{n} {salt}");
            }
        }
    }
}

#[test]
fn a_single_proposal_is_accepted_with_the_overlap_of_the_laws() {
    for salt in 0..12 {
        let (p, q) = (law(&[], salt), law(&[], salt + 100));
        let overlap: f64 = p.iter().zip(&q).map(|(p, q)| p.min(*q)).sum();
        for verify in [by_token as Chain, by_block, by_traversal] {
            assert!((emitted(verify, 1, salt, salt + 100).1 - overlap).abs() < 1e-12);
        }
    }
}

#[test]
fn block_verification_accepts_more_and_traversal_of_a_chain_is_the_same() {
    let mut gained = 0;
    for salt in 0..12 {
        let accepted = |verify| emitted(verify, 2, salt, salt + 100).1;
        assert!(accepted(by_block) >= accepted(by_token) - 1e-12);
        assert!((accepted(by_block) - accepted(by_traversal)).abs() < 1e-12);
        gained += u32::from(accepted(by_block) > accepted(by_token) + 1e-6);
    }
    assert!(gained > 3);
}

#[test]
fn proposals_without_a_law_count_as_certain_and_stay_exact() {
    for window in sequences(2) {
        for verify in [by_token as Chain, by_block, by_traversal] {
            let mut law_of = BTreeMap::new();
            let mut coins = Enumerator::default();
            loop {
                let verdict = verify(&window, &[], &mut coins, 3);
                let mut tokens = window[..verdict.accepted].to_vec();
                tokens.push(verdict.decided);
                *law_of.entry(tokens).or_insert(0.0) += coins.probability();
                if !coins.advance() {
                    break;
                }
            }
            assert!(completed(&law_of, 3, 3) < 1e-12);
        }
    }
}

/// Draws a tree with the given numbers of children by level, without replacement among siblings.
fn draw_tree(widths: &[usize], q: u32, coins: &mut Enumerator) -> Proposals {
    let mut tree = Proposals::new();
    let mut level = vec![0];
    for &width in widths {
        let mut next = vec![];
        for &parent in &level {
            let mut left = law(&tree.spelled(parent), q);
            for _ in 0..width {
                let token = coins.pick(&left);
                left[token] = 0.0;
                next.push(tree.push(parent, TokenId(token as u32)).unwrap());
            }
        }
        level = next;
    }
    tree
}

#[test]
fn traversal_of_trees_emits_the_targets_law() {
    for widths in [&[1][..], &[1, 1], &[2], &[2, 1], &[2, 2], &[3, 1]] {
        for salt in 0..4 {
            let mut law_of = BTreeMap::new();
            let mut coins = Enumerator::default();
            loop {
                let tree = draw_tree(widths, salt + 50, &mut coins);
                let laws: Vec<_> = (0..=tree.len() as u32)
                    .map(|node| sparse(&law(&tree.spelled(node), salt + 50)))
                    .collect();
                let target = |node: u32, p: &mut Vec<f64>| *p = law(&tree.spelled(node), salt);
                let draft = |node: u32| laws.get(node as usize);
                let verdict = traversal(&tree, draft, target, &mut coins);
                let mut tokens = tree.spelled(verdict.node);
                tokens.push(verdict.decided);
                *law_of.entry(tokens).or_insert(0.0) += coins.probability();
                if !coins.advance() {
                    break;
                }
            }
            let worst = completed(&law_of, widths.len() + 1, salt);
            assert!(worst < 1e-12, "{widths:?} {salt}: {worst}");
        }
    }
}

/// How often each token comes out of one round with one proposal, drawn from `q` with the noise
/// of its position; `decide` gives the token after a rejection.
fn frequencies(decide: impl Fn(&mut RoundCoins, &Noise, &[f64]) -> usize) -> [f64; V] {
    let (p, q) = ([0.1, 0.6, 0.3], [0.5, 0.25, 0.25]);
    let n = 200_000;
    let mut counts = [0.0; V];
    for round in 0..n {
        let position = 10 + round;
        let draft = Noise::new(Seed(1), Domain::Propose, position);
        let proposed = gumbel_argmax(&q, &draft);
        let mut coins = RoundCoins::new(Seed(1), position, round);
        let residual: Vec<f64> = p.iter().zip(q).map(|(p, q)| (p - q).max(0.0)).collect();
        let token = if coins.accept(p[proposed] / q[proposed]) {
            proposed
        } else {
            decide(&mut coins, &draft, &residual)
        };
        counts[token] += 1.0 / f64::from(n);
    }
    counts
}

fn gumbel_argmax(weights: &[f64], noise: &Noise) -> usize {
    let score = |i: usize| libm::log(weights[i]) + noise.gumbel(TokenId(i as u32));
    (0..weights.len())
        .max_by(|&a, &b| score(a).total_cmp(&score(b)))
        .unwrap()
}

#[test]
fn noise_by_position_alone_gives_the_wrong_law_and_round_coins_the_right_one() {
    let right = frequencies(|coins, _, residual| coins.pick(residual));
    for (found, p) in right.into_iter().zip([0.1, 0.6, 0.3]) {
        assert!((found - p).abs() < 0.005, "{right:?}");
    }
    // The correction reuses the noise that the rejected proposal was drawn with.
    let wrong = frequencies(|_, draft, residual| gumbel_argmax(residual, draft));
    for (found, known) in wrong.into_iter().zip([0.1, 0.63, 0.27]) {
        assert!((found - known).abs() < 0.005, "{wrong:?}");
    }
}

#[test]
fn round_coins_follow_their_weights() {
    let mut coins = RoundCoins::new(Seed(3), 5, 9);
    let mut counts = [0; 4];
    for _ in 0..100_000 {
        counts[coins.pick(&[1.0, 0.0, 2.0, 1.0])] += 1;
    }
    assert_eq!(counts[1], 0);
    for (count, p) in counts.into_iter().zip([0.25, 0.0, 0.5, 0.25]) {
        assert!((f64::from(count) / 1e5 - p).abs() < 0.01);
    }
    assert!((0..1000).all(|_| coins.accept(1.0)) && !(0..1000).any(|_| coins.accept(0.0)));
    assert_eq!(coins.pick(&[0.0; 4]), 0);
}

/// Logits after a context, for tests of coupled verification.
fn logits(context: &[TokenId]) -> Vec<f32> {
    let hash = context
        .iter()
        .fold(1_u32, |h, t| h.wrapping_mul(7).wrapping_add(t.0 + 1));
    (0..6)
        .map(|v| 3.0 * philox([hash, v, 0, 0], [1, 2])[0] as f32 / u32::MAX as f32)
        .collect()
}

fn coupled_sampler(seed: u64, temperature: f32) -> Sampler {
    let params = SamplingParams {
        temperature,
        frequency_penalty: 0.4,
        ..Default::default()
    };
    Sampler::new(params, Seed(seed), &[TokenId(1)], 1).unwrap()
}

/// What plain decoding emits.
fn plain(seed: u64, temperature: f32, n: usize) -> Vec<TokenId> {
    let mut sampler = coupled_sampler(seed, temperature);
    for _ in 0..n {
        let token = sampler.choose(&logits(sampler.history().output()), &mut Scratch::new());
        sampler.push(token);
    }
    sampler.history().output().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn coupled_chains_emit_what_plain_decoding_does_whatever_is_proposed(
        seed in any::<u64>(), greedy in any::<bool>(), wrong in 0..9_usize, n in 0..8_usize,
    ) {
        let temperature = if greedy { 0.0 } else { 1.0 };
        let expected = plain(seed, temperature, 9);
        let mut window = expected[..n].to_vec();
        if let Some(token) = window.get_mut(wrong) {
            token.0 = (token.0 + 1) % 6;
        }
        let rows: Vec<_> = (0..=n).map(|i| logits(&window[..i])).collect();
        let mut sampler = coupled_sampler(seed, temperature);
        let verdict = coupled_chain(&mut sampler, &mut Scratch::new(), &window, |i| {
            assert!(i <= wrong, "a row past the first mismatch was asked for");
            &rows[i]
        });
        prop_assert_eq!(verdict.accepted, n.min(wrong));
        prop_assert_eq!(sampler.history().output(), &expected[..=verdict.accepted]);
    }

    #[test]
    fn coupled_trees_emit_what_plain_decoding_does(
        seed in any::<u64>(), nodes in prop::collection::vec((any::<u32>(), 0..6_u32), 0..40),
    ) {
        let mut tree = Proposals::new();
        for (parent, token) in nodes {
            // A repeated child is left out.
            tree.push(parent % (tree.len() as u32 + 1), TokenId(token)).ok();
        }
        let rows: Vec<_> = (0..=tree.len() as u32).map(|i| logits(&tree.spelled(i))).collect();
        let mut sampler = coupled_sampler(seed, 1.0);
        let verdict = coupled_tree(&mut sampler, &mut Scratch::new(), &tree, |node| &rows[node as usize]);
        let depth = tree.depth(verdict.node);
        prop_assert_eq!(sampler.history().output(), &plain(seed, 1.0, depth + 1)[..]);
        prop_assert!(tree.child(verdict.node, verdict.decided).is_none());
    }
}

#[test]
fn ratio_verification_pushes_what_it_emits() {
    for rule in [RatioRule::Token, RatioRule::Block] {
        for seed in 0..50 {
            let mut sampler = coupled_sampler(seed, 1.0);
            let window = [TokenId(2), TokenId(4)];
            let rows: Vec<_> = (0..3).map(|i| logits(&window[..i])).collect();
            let mut coins = RoundCoins::new(Seed(seed), 1, 0);
            let verdict = {
                let drawn = Drawn {
                    window: &window,
                    q: &[],
                };
                let (scratch, row) = (&mut Scratch::new(), |i: usize| &rows[i][..]);
                ratio_chain(rule, &mut sampler, scratch, drawn, row, &mut coins)
            };
            let mut emitted = window[..verdict.accepted].to_vec();
            emitted.push(verdict.decided);
            assert_eq!(sampler.history().output(), &emitted[..]);
        }
    }
}
