//! What an endpoint has drafted for the outcomes of the round under verification.

use alloc::vec::Vec;

use crate::{
    TokenId,
    guess::OutcomeKey,
    message::{Entries, SparseDistribution},
    proposal::Laws,
    saguaro::Saguaro,
};

/// Continuations by outcome, at most so many and so long as were asked for, whatever comes.
/// Memory is kept from round to round.
#[derive(Debug, Default)]
pub(super) struct Cache {
    most_keys: usize,
    most_tokens: usize,
    /// Outcomes that the first part named: a part has a multiple of as many tokens.
    sent: usize,
    /// Those that are kept, likeliest first.
    keys: Vec<OutcomeKey>,
    /// Columns of tokens that were sent, kept or not.
    before: usize,
    /// The kept ones, one after the other.
    columns: Vec<TokenId>,
    /// What each of them was drawn from, if that was said.
    q: Vec<SparseDistribution>,
    saguaro: Saguaro,
}

/// What was drafted for an outcome.
#[derive(Clone, Debug)]
pub(super) struct Hit {
    /// Place of the outcome among those that were sent; none if it is the rest of a window.
    pub(super) place: Option<u32>,
    pub(super) tokens: Vec<TokenId>,
    pub(super) laws: Laws,
}

impl Cache {
    /// Forgets everything, and expects up to `keys` outcomes with up to `tokens` tokens each.
    pub(super) fn expect(&mut self, keys: u32, tokens: u32) {
        self.most_keys = keys as usize;
        self.most_tokens = tokens as usize;
        self.sent = 0;
        self.keys.clear();
        self.before = 0;
        self.columns.clear();
        self.q.clear();
    }

    /// Whether any are expected.
    pub(super) fn is_open(&self) -> bool {
        self.most_keys > 0 && self.most_tokens > 0
    }

    /// Takes in a part of this round; false if it does not fit what is known.
    pub(super) fn take(&mut self, part: &Entries) -> bool {
        if !self.is_open() || part.before as usize != self.before {
            return false;
        }
        let explains = part.q.len() == part.tokens.len();
        let alike =
            part.saguaro == self.saguaro && explains == (self.q.len() == self.columns.len());
        if self.before > 0 && !alike {
            return false;
        }
        if self.before == 0 {
            self.saguaro = part.saguaro;
            self.sent = part.keys.len();
        } else if !part.keys.is_empty() {
            return false;
        }
        if self.sent == 0 || part.tokens.is_empty() || !part.tokens.len().is_multiple_of(self.sent)
        {
            self.sent = if self.before == 0 { 0 } else { self.sent };
            return false;
        }
        if self.before == 0 {
            let kept = self.sent.min(self.most_keys);
            self.keys.extend_from_slice(&part.keys[..kept]);
        }
        for (number, column) in part.tokens.chunks_exact(self.sent).enumerate() {
            if self.before < self.most_tokens {
                self.columns.extend_from_slice(&column[..self.keys.len()]);
                let q = part.q.get(number * self.sent..).filter(|_| explains);
                let q = q.and_then(|q| q.get(..self.keys.len()));
                self.q.extend_from_slice(q.unwrap_or_default());
            }
            self.before += 1;
        }
        true
    }

    /// What was drafted for `key`, if anything.
    pub(super) fn find(&self, key: OutcomeKey) -> Option<Hit> {
        let place = self.keys.iter().position(|&known| known == key)?;
        let columns = self.columns[place..].iter().step_by(self.keys.len());
        let q = self.q.get(place..).unwrap_or_default();
        Some(Hit {
            place: Some(place as u32),
            tokens: columns.copied().collect(),
            laws: Laws {
                q: q.iter().step_by(self.keys.len()).cloned().collect(),
                saguaro: self.saguaro,
            },
        })
    }

    /// Tokens held.
    pub(super) fn len(&self) -> usize {
        self.columns.len()
    }
}
