//! The best tokens of a row, in the order in which they would be chosen.

use alloc::vec::Vec;

use super::{
    Sampler, Scratch, argmax,
    bounds::{Bounded, NoisyRow},
    support,
    support::FEW,
};
use crate::{
    TokenId,
    noise::{Domain, Noise},
};

/// So few tokens are nearly always the best of different lanes.
const FEW_OF_LANES: usize = 4;

/// What tokens are ranked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RankBy {
    /// Log-probability plus the noise of this stream: the first is what [`Sampler::choose_with`]
    /// gives, the second what it would give without the first, and so on.
    Noise(Domain),
    /// Log-probability alone.
    Likelihood,
}

/// Which of a row's tokens are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranking {
    /// What they are ranked by. Greedy requests are ranked by likelihood, whatever this says.
    pub by: RankBy,
    /// How many are wanted.
    pub n: usize,
    /// Is left out, as if it could not be chosen.
    pub without: Option<TokenId>,
}

/// One of the best tokens of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// The token.
    pub token: TokenId,
    /// Adjusted logit over temperature, plus noise if that counts: comparable within a row, in
    /// nats. Minus infinity if the request's truncation (top-k, top-p, min-p) leaves it out.
    pub score: f64,
}

impl Sampler {
    /// Replaces `best` by the best `ranking.n` tokens at the next position, best first, ties to the
    /// lower id; fewer if the row has no more. Tokens that truncation leaves out come last, by
    /// likelihood: another model's truncation may keep them. Returns the score of
    /// `ranking.without`.
    ///
    /// Goes the way of [`Self::choose`] (bias, penalties, temperature, truncation, noise) and, as
    /// that, needs no more memory than `scratch` and `best` once had.
    pub fn rank(
        &self,
        ranking: Ranking,
        logits: &[f32],
        scratch: &mut Scratch,
        best: &mut Vec<Ranked>,
    ) -> Option<f64> {
        best.clear();
        let Scratch {
            logits: adjusted,
            ceilings,
            bounds,
            bound,
            keys,
            weigh: _,
        } = scratch;
        let logits = self.adjusted(logits, adjusted);
        let greedy = self.params.is_greedy();
        let scores = Scores {
            logits,
            inverse: if greedy {
                1.0
            } else {
                1.0 / f64::from(self.params.temperature)
            },
            noise: match ranking.by {
                RankBy::Noise(domain) if !greedy => {
                    Some(Noise::new(self.seed, domain, self.history.len() as u32))
                }
                _ => None,
            },
        };
        let mut cut = support::EVERYTHING;
        let mut few = false;
        if !greedy && self.params.truncates() {
            let support = support::cut(logits, &self.params, keys);
            cut = support.cut;
            few = support.len <= FEW;
        }
        let mut list = List {
            scores: &scores,
            cut,
            ranking,
            best,
        };
        if few {
            for &key in keys.iter() {
                list.offer(support::token(key));
            }
        } else if scores.noise.is_some() || ranking.n <= FEW {
            let row = NoisyRow {
                logits,
                inverse: scores.inverse as f32,
                noise: scores.noise.as_ref(),
            };
            list.offer_bounded(&bounds.of(row, ceilings, *bound), keys);
        }
        list.fill(keys);
        let without = ranking.without?;
        let logit = *logits.get(without.index())?;
        let kept = support::key(logit, without.index()) >= cut;
        Some(if kept {
            scores.of(logit, without)
        } else {
            f64::NEG_INFINITY
        })
    }
}

/// How tokens of a row are scored.
struct Scores<'a> {
    logits: &'a [f32],
    inverse: f64,
    noise: Option<Noise>,
}

impl Scores<'_> {
    fn of(&self, logit: f32, token: TokenId) -> f64 {
        let noise = self.noise.map_or(0.0, |noise| noise.gumbel(token));
        let score = f64::from(logit) * self.inverse + noise;
        if score.is_nan() {
            f64::NEG_INFINITY
        } else {
            score
        }
    }
}

/// The best tokens so far.
struct List<'a> {
    scores: &'a Scores<'a>,
    /// Tokens with smaller keys are left out by truncation.
    cut: u64,
    ranking: Ranking,
    best: &'a mut Vec<Ranked>,
}

impl List<'_> {
    /// Takes the token in if it is kept by truncation and good enough.
    fn offer(&mut self, token: TokenId) {
        let Some(&logit) = self.scores.logits.get(token.index()) else {
            return;
        };
        if self.ranking.without == Some(token) || support::key(logit, token.index()) < self.cut {
            return;
        }
        let score = self.scores.of(logit, token);
        if score == f64::NEG_INFINITY {
            return;
        }
        let before =
            |other: &Ranked| other.score > score || (other.score >= score && other.token < token);
        let place = self.best.partition_point(before);
        if place < self.ranking.n {
            self.best.truncate(self.ranking.n - 1);
            self.best.insert(place, Ranked { token, score });
        }
    }

    /// Offers all tokens whose bound says that they may be good enough. Those with the largest
    /// bounds come first: their scores rule out nearly all others.
    fn offer_bounded(&mut self, bounds: &Bounded<'_>, keys: &mut Vec<u64>) {
        if self.ranking.n == 0 {
            return;
        }
        let wanted = self.ranking.n + usize::from(self.ranking.without.is_some());
        let lanes = bounds.lanes();
        let tops = if wanted <= FEW_OF_LANES {
            &lanes
        } else {
            bounds.tops
        };
        let start = reached_by(wanted, tops, keys);
        bounds.reaching(start, |token, bound| {
            if bound >= self.threshold() {
                self.offer(token);
            }
            start
        });
        bounds.reaching(self.threshold(), |token, bound| {
            if bound < start {
                self.offer(token);
            }
            self.threshold()
        });
    }

    /// A bound below this cannot belong to a token of the list.
    fn threshold(&self) -> f32 {
        match self.best.last() {
            Some(last) if self.best.len() >= self.ranking.n => argmax::threshold(last.score),
            _ => f32::NEG_INFINITY,
        }
    }

    /// Fills the list with the likeliest tokens it does not have: those that truncation leaves out, and
    /// all if they are many and noise does not count.
    fn fill(&mut self, keys: &mut Vec<u64>) {
        let n = self.ranking.n;
        if self.best.len() >= n {
            return;
        }
        // Those already listed, and the one left out, may be among the likeliest.
        support::likeliest(self.scores.logits, n + self.best.len() + 1, keys);
        for &key in keys.iter() {
            let (token, logit) = (support::token(key), support::logit(key));
            let listed = self.best.iter().any(|ranked| ranked.token == token);
            if self.best.len() >= n || logit == f32::NEG_INFINITY {
                break;
            }
            if listed || self.ranking.without == Some(token) {
                continue;
            }
            let score = if key >= self.cut {
                self.scores.of(logit, token)
            } else {
                f64::NEG_INFINITY
            };
            self.best.push(Ranked { token, score });
        }
    }
}

/// A number that `n` tokens reach, one of each that `tops` is the largest bound of; any if those are not
/// more.
fn reached_by(n: usize, tops: &[f32], keys: &mut Vec<u64>) -> f32 {
    if n >= tops.len() {
        return f32::NEG_INFINITY;
    }
    keys.clear();
    keys.extend(
        tops.iter()
            .enumerate()
            .map(|(i, &top)| support::key(top, i)),
    );
    support::logit(*keys.select_nth_unstable_by(n - 1, |a, b| b.cmp(a)).1)
}

#[cfg(test)]
mod tests;
