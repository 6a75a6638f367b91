//! What an endpoint has drafted for the outcomes of the round under verification.

use alloc::vec::Vec;

use crate::{TokenId, guess::OutcomeKey, message::Entries};

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
}

/// What was drafted for an outcome.
#[derive(Clone, Debug)]
pub(super) struct Hit {
    /// Place of the outcome among those that were sent; none if it is the rest of a window.
    pub(super) place: Option<u32>,
    pub(super) tokens: Vec<TokenId>,
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
        if self.before == 0 {
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
        for column in part.tokens.chunks_exact(self.sent) {
            if self.before < self.most_tokens {
                self.columns.extend_from_slice(&column[..self.keys.len()]);
            }
            self.before += 1;
        }
        true
    }

    /// What was drafted for `key`, if anything.
    pub(super) fn find(&self, key: OutcomeKey) -> Option<Hit> {
        let place = self.keys.iter().position(|&known| known == key)?;
        let columns = self.columns[place..].iter().step_by(self.keys.len());
        Some(Hit {
            place: Some(place as u32),
            tokens: columns.copied().collect(),
        })
    }

    /// Tokens held.
    pub(super) fn len(&self) -> usize {
        self.columns.len()
    }
}
