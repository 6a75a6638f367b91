//! What a draft proposes from when verification is by ratio: a distribution short enough to send.
//!
//! The draft cuts its distribution to the likeliest tokens, may lower some of them
//! ([`Saguaro`]), draws, and sends what it drew from. Nothing is lost by
//! cutting: verification by ratio is exact for whatever distribution the proposals really come
//! from (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.5).
//!
//! Proposals are drawn with noise of their own, keyed by where their window starts and by their
//! place in it: of all windows that start at a place one is verified at most, whatever was lost,
//! repeated or replayed, so no noise is ever consulted twice. The position alone would not do: what
//! becomes of a window tells something about all of its tokens, so the noise of those that were
//! turned down is spent. The same holds for tokens that are drawn beside one, without replacement.

use alloc::{borrow::Cow, vec::Vec};

use crate::{
    Proposals, Seed, TokenId,
    message::SparseDistribution,
    noise::{Domain, Noise},
    saguaro::Saguaro,
    sampling::{RankBy, Ranked, Ranking, Sampler, Scratch},
};

/// Weight of the likeliest token. Others are rounded to whole numbers, which moves at most a
/// thousandth of the mass and keeps most of them to a byte on the wire.
const TOP_WEIGHT: f64 = 4095.0;

/// More tokens than any window has: the noise of a place is numbered by its index, and that of tokens
/// drawn beside its first one follows at this distance each.
const LONGEST_WINDOW: u32 = 1 << 16;

/// Where a proposal stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Position of the first token of its window.
    pub start: u32,
    /// Tokens of the window before it.
    pub index: u32,
}

/// Draws proposals. Kept by a session, it stops allocating but for what it gives.
#[derive(Clone, Debug, Default)]
pub struct Proposer {
    ranked: Vec<Ranked>,
    /// What the next token at this place would be drawn from: lowered, and without those drawn.
    left: SparseDistribution,
    place: Place,
    /// Tokens drawn at it.
    drawn: u32,
}

impl Proposer {
    /// Most tokens that are ever drawn among.
    pub const MAX_SUPPORT: u32 = 256;

    /// Draws the token at `sampler`'s position, given the logits there, among the `support`
    /// likeliest by the request's own distribution, lowered by `saguaro`. Gives what it was drawn
    /// from before that, too.
    pub fn draw(
        &mut self,
        sampler: &Sampler,
        scratch: &mut Scratch,
        logits: &[f32],
        place: Place,
        (support, saguaro): (u32, Saguaro),
    ) -> (TokenId, SparseDistribution) {
        let ranking = Ranking {
            by: RankBy::Likelihood,
            n: support.clamp(1, Self::MAX_SUPPORT) as usize,
            without: None,
        };
        sampler.rank(ranking, logits, scratch, &mut self.ranked);
        let q = law(&self.ranked);
        self.left.entries.clone_from(&q.entries);
        saguaro.apply(&mut self.left);
        (self.place, self.drawn) = (place, 0);
        let token = self.draw_beside(sampler.seed()).unwrap_or_default();
        (token, q)
    }

    /// Draws another token at the place of the last [`Self::draw`], among those that were not drawn
    /// there yet; `None` if there are none.
    pub fn draw_beside(&mut self, seed: Seed) -> Option<TokenId> {
        let noise = Noise::new(seed, Domain::Propose, self.place.start);
        let number = self.place.index + self.drawn * LONGEST_WINDOW;
        let token = draw(&self.left, noise.uniform(number))?;
        self.drawn += 1;
        let entries = &mut self.left.entries;
        entries.retain(|&(left, _)| left != token);
        Some(token)
    }

    /// The tokens that were drawn among, likeliest first.
    pub fn ranked(&self) -> &[Ranked] {
        &self.ranked
    }
}

/// The distribution over tokens in proportion to `e^score`. Tokens that are thousands of times less
/// likely than the first are left out. Without any, all mass is on token 0, which is what a sampler
/// chooses then.
pub fn law(ranked: &[Ranked]) -> SparseDistribution {
    let top = ranked.first().map_or(0.0, |best| best.score);
    let weigh = |ranked: &Ranked| {
        let weight = libm::round(libm::exp(ranked.score - top) * TOP_WEIGHT) as u32;
        (weight > 0).then_some((ranked.token, weight))
    };
    let mut entries: Vec<_> = ranked.iter().filter_map(weigh).collect();
    entries.sort_unstable_by_key(|entry| entry.0);
    if entries.is_empty() {
        entries.push((TokenId(0), 1));
    }
    SparseDistribution { entries }
}

/// What the tokens of a chain were drawn from, as it came with them, or those of a tree's spine and
/// beside it; none for certain tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Laws {
    /// By depth, before it was lowered.
    pub q: Vec<SparseDistribution>,
    /// How it was lowered.
    pub saguaro: Saguaro,
}

impl Laws {
    /// What the tokens really were drawn from.
    pub fn lowered(&self) -> Cow<'_, [SparseDistribution]> {
        lower(&self.q, self.saguaro)
    }
}

/// Whether each of these tokens can have been drawn from the one of `q` with this number, lowered by
/// `saguaro`.
pub fn explains(
    q: &[SparseDistribution],
    saguaro: Saguaro,
    drawn: impl IntoIterator<Item = (TokenId, usize)>,
) -> bool {
    let lowered = lower(q, saguaro);
    let mut drawn = drawn.into_iter();
    drawn.all(|(token, number)| lowered.get(number).is_some_and(|q| q.weight(token) > 0))
}

/// Whether `q`, lowered by `saguaro`, has one law for each depth of `proposals`, which explains the
/// tokens there. A tree has to be its spine and tokens beside it (see [`Proposals::with_sides`]).
pub fn explains_all(q: &[SparseDistribution], saguaro: Saguaro, proposals: &Proposals) -> bool {
    let mut spine = alloc::vec![0];
    spine.extend(proposals.spine());
    let nodes = (1..).zip(proposals.tokens());
    let drawn = nodes.map(|(node, &token)| {
        // What hangs on another node has no law, whatever its number.
        let depth = spine.binary_search(&proposals.parent(node));
        (token, depth.unwrap_or(usize::MAX))
    });
    q.len() == spine.len() - 1 && explains(q, saguaro, drawn)
}

fn lower(q: &[SparseDistribution], saguaro: Saguaro) -> Cow<'_, [SparseDistribution]> {
    let mut lowered = Cow::from(q);
    if !saguaro.is_off() {
        for q in lowered.to_mut() {
            saguaro.apply(q);
        }
    }
    lowered
}

/// The token that a uniform number in (0, 1) stands for, by ascending token; `None` if `q` is empty.
pub fn draw(q: &SparseDistribution, uniform: f64) -> Option<TokenId> {
    let mut left = uniform * q.total();
    let mut drawn = None;
    for &(token, weight) in &q.entries {
        let weight = f64::from(weight);
        if weight > 0.0 {
            drawn = Some(token);
            if left < weight {
                break;
            }
            left -= weight;
        }
    }
    drawn
}

#[cfg(test)]
mod tests {
    use std::{vec, vec::Vec};

    use super::*;
    use crate::{noise::philox, sampling::SamplingParams};

    fn sampler(params: SamplingParams) -> Sampler {
        Sampler::new(params, Seed(3), &[TokenId(1); 5], 5).unwrap()
    }

    #[test]
    fn proposals_are_drawn_among_the_likeliest_in_proportion() {
        let params = SamplingParams {
            temperature: 0.7,
            top_k: 9,
            repetition_penalty: 1.3,
            ..SamplingParams::default()
        };
        let sampler = sampler(params);
        let mut scratch = Scratch::new();
        for i in 0..100 {
            let word = |j| philox([i, j, 0, 0], [2, 6])[0] as f32 / u32::MAX as f32;
            let logits: Vec<f32> = (0..40).map(|j| 6.0 * word(j)).collect();
            let support = 1 + i % 12;
            let (token, q) = Proposer::default().draw(
                &sampler,
                &mut scratch,
                &logits,
                Place { start: 5, index: i },
                (support, Saguaro::default()),
            );
            assert!(q.weight(token) > 0 && q.entries.is_sorted_by_key(|entry| entry.0));
            let mut p = Vec::new();
            sampler.distribution(&logits, &mut scratch, &mut p);
            let mut order: Vec<usize> = (0..40).filter(|&t| p[t] > 0.0).collect();
            order.sort_by(|&a, &b| p[b].total_cmp(&p[a]).then(a.cmp(&b)));
            order.truncate(support as usize);
            let kept: f64 = order.iter().map(|&t| p[t]).sum();
            for (t, p) in p.iter().enumerate() {
                let expected = if order.contains(&t) { p / kept } else { 0.0 };
                let found = f64::from(q.weight(TokenId(t as u32))) / q.total();
                assert!((found - expected).abs() < 1e-3, "{found} {expected}");
            }
        }
    }

    #[test]
    fn tokens_drawn_beside_one_are_others_in_proportion_whatever_that_is() {
        let mut scratch = Scratch::new();
        let logits: Vec<f32> = [4, 3, 2, 1, 9].map(|weight| (weight as f32).ln()).to_vec();
        let mut counts = std::collections::BTreeMap::new();
        let rounds = 60_000;
        for start in 0..rounds {
            let tokens = vec![TokenId(1); start as usize % 7 + 1];
            let params = SamplingParams {
                temperature: 1.0,
                ..SamplingParams::default()
            };
            let sampler = Sampler::new(params, Seed(u64::from(start / 7)), &tokens, 1).unwrap();
            let mut proposer = Proposer::default();
            let place = Place { start, index: 2 };
            let never = Saguaro::new(1, 20);
            let first = proposer.draw(&sampler, &mut scratch, &logits, place, (4, never));
            let mut drawn = vec![first.0.0];
            while let Some(token) = proposer.draw_beside(sampler.seed()) {
                drawn.push(token.0);
            }
            *counts.entry(drawn).or_insert(0) += 1;
        }
        // Of five the four likeliest, without the first of them: weights 4, 3, 2.
        assert_eq!(counts.len(), 6);
        for (drawn, count) in counts {
            let weight = |i: usize| 4.0 - f64::from(drawn[i]);
            let expected = weight(0) / 9.0 * weight(1) / (9.0 - weight(0));
            let found = f64::from(count) / f64::from(rounds);
            assert!(
                (found - expected).abs() < 0.008,
                "{drawn:?} {found} {expected}"
            );
        }
    }

    #[test]
    fn what_nearly_never_comes_is_left_out() {
        let ranked = |token, score| Ranked {
            token: TokenId(token),
            score,
        };
        let q = law(&[
            ranked(7, 0.0),
            ranked(2, -core::f64::consts::LN_2),
            ranked(9, -9.5),
            ranked(1, f64::NEG_INFINITY),
        ]);
        assert_eq!(q.entries, [(TokenId(2), 2048), (TokenId(7), 4095)]);
        assert_eq!(law(&[]).entries, [(TokenId(0), 1)]);
    }

    #[test]
    fn laws_explain_what_they_give_a_chance_to_and_nothing_else() {
        let entries = vec![(TokenId(3), 9), (TokenId(5), 1)];
        let q = vec![SparseDistribution { entries }; 2];
        let explains = |saguaro, tokens: &[u32]| {
            let tokens: Vec<_> = tokens.iter().copied().map(TokenId).collect();
            explains_all(&q, saguaro, &tokens.into())
        };
        let (off, never) = (Saguaro::default(), Saguaro::new(1, 20));
        assert!(explains(off, &[3, 5]));
        assert!(!explains(off, &[3]) && !explains(off, &[3, 4]));
        assert!(explains(never, &[5, 5]) && !explains(never, &[3, 5]));
        let nothing = |tokens: &[TokenId]| explains_all(&[], off, &tokens.into());
        assert!(nothing(&[]) && !nothing(&[TokenId(0)]));
    }

    #[test]
    fn laws_that_are_not_lowered_are_not_copied() {
        let mut laws = Laws::default();
        assert!(matches!(laws.lowered(), Cow::Borrowed(_)));
        laws.saguaro = Saguaro::new(1, 5);
        assert!(matches!(laws.lowered(), Cow::Owned(_)));
    }

    #[test]
    fn draws_follow_the_distribution() {
        let entries = vec![(TokenId(3), 1), (TokenId(5), 2), (TokenId(9), 1)];
        let q = SparseDistribution { entries };
        let mut counts = [0; 10];
        for i in 0..4000 {
            let token = draw(&q, (f64::from(i) + 0.5) / 4000.0).unwrap();
            counts[token.index()] += 1;
        }
        assert_eq!((counts[3], counts[5], counts[9]), (1000, 2000, 1000));
        assert_eq!(draw(&q, 1.0), Some(TokenId(9)));
        assert_eq!(draw(&SparseDistribution::default(), 0.5), None);
    }
}
