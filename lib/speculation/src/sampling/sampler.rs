//! From a row of logits to the token at the next position.

use alloc::vec::Vec;

use super::{
    History, InvalidSampling, SamplingParams, argmax,
    bounds::{BoundRow, Bounds, NoisyRow},
    ceilings::{Ceiling, Ceilings},
    law::{LawRow, WeighRow, law},
    support,
    support::{FEW, Support},
};
use crate::{
    Seed, TokenId,
    noise::{Domain, Noise},
};

/// How one request samples: checked parameters, seed, and the sequence so far.
#[derive(Clone, Debug)]
pub struct Sampler {
    pub(super) params: SamplingParams,
    pub(super) seed: Seed,
    pub(super) history: History,
}

/// Buffers for [`Sampler`]s; one per thread is enough. They grow to the vocabulary once.
#[derive(Debug)]
pub struct Scratch {
    /// Adjusted logits.
    pub(super) logits: Vec<f32>,
    /// Bounds on noise, by position.
    pub(super) ceilings: Ceilings,
    /// Bounds on noisy scores.
    pub(super) bounds: Bounds,
    /// How they are made.
    pub(super) bound: BoundRow,
    /// Sort keys of the tokens that truncation considers.
    pub(super) keys: Vec<u64>,
    /// How weights of whole rows are made.
    pub(super) weigh: WeighRow,
}

impl Scratch {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::with_vectors(bound, weigh)
    }

    /// Empty buffers, for a thread that has a faster way to call [`NoisyRow::bound`] and
    /// [`LawRow::weigh`].
    pub fn with_vectors(bound: BoundRow, weigh: WeighRow) -> Self {
        Self {
            logits: Vec::new(),
            ceilings: Ceilings::default(),
            bounds: Bounds::default(),
            bound,
            keys: Vec::new(),
            weigh,
        }
    }

    /// The bounds that were made last.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }
}

/// Bounds with the instructions that this crate is compiled for.
fn bound(row: &NoisyRow<'_>, ceiling: &mut Ceiling, bounds: &mut Bounds) {
    row.bound(ceiling, bounds);
}

/// Weights with the same ones.
fn weigh(row: &LawRow<'_>, weights: &mut [f64]) -> f64 {
    row.weigh(weights)
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Sampler {
    /// A sampler for a sequence of `tokens`, of which the first `prompt_len` are the prompt.
    ///
    /// # Errors
    /// If a parameter is out of range.
    pub fn new(
        params: SamplingParams,
        seed: Seed,
        tokens: &[TokenId],
        prompt_len: usize,
    ) -> Result<Self, InvalidSampling> {
        params.validate()?;
        let history = History::new(tokens, prompt_len, params.has_penalties());
        Ok(Self {
            params,
            seed,
            history,
        })
    }

    /// The token at the next position, given the logits after the last one (one value per entry of
    /// the vocabulary). A function of the logits, the parameters, the seed and the sequence.
    ///
    /// Logits that are not numbers count as minus infinity. If nothing is left to choose from, it
    /// is token 0.
    pub fn choose(&self, logits: &[f32], scratch: &mut Scratch) -> TokenId {
        self.choose_with(Domain::Coupled, logits, scratch)
    }

    /// As [`Self::choose`], with noise of another stream.
    pub fn choose_with(&self, domain: Domain, logits: &[f32], scratch: &mut Scratch) -> TokenId {
        let Scratch {
            logits: adjusted,
            ceilings,
            bounds,
            bound,
            keys,
            weigh: _,
        } = scratch;
        let logits = self.adjusted(logits, adjusted);
        if self.params.is_greedy() {
            return argmax::greedy(logits);
        }
        let noise = Noise::new(self.seed, domain, self.history.len() as u32);
        let temperature = self.params.temperature;
        let mut cut = support::EVERYTHING;
        if self.params.truncates() {
            let support = support::cut(logits, &self.params, keys);
            if support.len <= FEW {
                return argmax::noisy_among(keys, temperature, &noise);
            }
            cut = support.cut;
        }
        let row = NoisyRow {
            logits,
            inverse: (1.0 / f64::from(temperature)) as f32,
            noise: Some(&noise),
        };
        let bounds = bounds.of(row, ceilings, *bound);
        argmax::noisy(logits, temperature, &noise, cut, &bounds)
    }

    /// The distribution that [`Self::choose`] samples, one probability per entry of the vocabulary
    /// (zero outside the support); `probabilities` is overwritten. Greedy: all mass on the argmax.
    pub fn distribution(
        &self,
        logits: &[f32],
        scratch: &mut Scratch,
        probabilities: &mut Vec<f64>,
    ) {
        let Scratch {
            logits: adjusted,
            keys,
            weigh,
            ..
        } = scratch;
        let logits = self.adjusted(logits, adjusted);
        let top = argmax::maximum(logits);
        if self.params.is_greedy() || top == f32::NEG_INFINITY {
            probabilities.clear();
            probabilities.resize(logits.len(), 0.0);
            if let Some(p) = probabilities.get_mut(argmax::greedy(logits).index()) {
                *p = 1.0;
            }
            return;
        }
        let mut support = Support::EVERYTHING;
        if self.params.truncates() {
            support = support::cut(logits, &self.params, keys);
        }
        let row = LawRow {
            logits,
            top: f64::from(top),
            inverse: 1.0 / f64::from(self.params.temperature),
            cut: support.cut,
        };
        let few = (support.len <= FEW).then_some(keys);
        law(&row, *weigh, few, probabilities);
    }

    /// Appends a token to the sequence.
    pub fn push(&mut self, token: TokenId) {
        self.history.push(token);
    }

    /// Removes output from the end, down to a sequence of `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        self.history.truncate(len);
    }

    /// The sequence so far.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The position of the token that [`Self::choose`] gives.
    pub fn position(&self) -> u32 {
        self.history.len() as u32
    }

    /// The request's parameters.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The request's seed.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    fn bans(&self) -> bool {
        !self.params.banned_until_min.is_empty()
            && self.history.output().len() < self.params.min_tokens as usize
    }

    /// The logits with bans, bias and penalties, in `buffer` unless nothing is to be changed.
    pub(super) fn adjusted<'a>(&self, logits: &'a [f32], buffer: &'a mut Vec<f32>) -> &'a [f32] {
        if !self.adjusts() {
            return logits;
        }
        self.adjust(logits, buffer);
        buffer
    }

    /// Whether the logits have to be changed at all at this position.
    fn adjusts(&self) -> bool {
        self.bans() || self.params.has_penalties() || !self.params.logit_bias.is_empty()
    }

    /// Bans, bias and penalties, in vLLM's order. Only tokens that are named or were seen are
    /// touched.
    fn adjust(&self, logits: &[f32], adjusted: &mut Vec<f32>) {
        adjusted.clear();
        adjusted.extend_from_slice(logits);
        let params = &self.params;
        if self.bans() {
            for token in &params.banned_until_min {
                if let Some(logit) = adjusted.get_mut(token.index()) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        for &(token, bias) in &params.logit_bias {
            if let Some(logit) = adjusted.get_mut(token.index()) {
                *logit += bias;
            }
        }
        for seen in self.history.seen() {
            let Some(logit) = adjusted.get_mut(seen.token.index()) else {
                continue;
            };
            if *logit > 0.0 {
                *logit /= params.repetition_penalty;
            } else {
                *logit *= params.repetition_penalty;
            }
            if seen.outputs > 0 {
                *logit -= params.frequency_penalty * seen.outputs as f32;
                *logit -= params.presence_penalty;
            }
        }
    }
}
