//! What a target's host proposes for one request.

use alloc::vec::Vec;

use super::{Origin, SuffixIndex, tenant::Tenant, yields::Yields};
use crate::{TokenId, ids::common_prefix};

/// Tokens of a sequence, counted from its end, that a new request brings into the table of its
/// tenant.
const RECYCLED_AT_ONCE: usize = 4096;

/// One request's proposals: its own text, and what its tenant's requests have in common.
///
/// After each verdict the driver has it [`Self::follow`] and then [`Self::propose`]. Memory is 4
/// bytes a token of the sequence besides that of [`SuffixIndex`], which is bounded.
#[derive(Clone, Debug)]
pub struct Proposer {
    said: Vec<TokenId>,
    suffixes: SuffixIndex,
    /// What each source has to follow `said`.
    guesses: [Guess; 2],
}

/// What a source has to say.
#[derive(Clone, Debug, Default)]
struct Guess {
    origin: Origin,
    tokens: Vec<TokenId>,
}

/// Proposals that are worth their rows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Proposal<'a> {
    /// Where they come from.
    pub origin: Origin,
    /// The tokens, in order; none if none are worth it.
    pub tokens: &'a [TokenId],
    /// How many of them are expected to be accepted.
    pub accepted: f64,
}

impl Proposer {
    /// A proposer of a request of which nothing is known yet. It finds again what was said in the
    /// last `positions` tokens at least.
    pub fn new(positions: usize) -> Self {
        Self {
            said: Vec::new(),
            suffixes: SuffixIndex::new(positions),
            guesses: [Guess::default(), Guess::default()],
        }
    }

    /// Takes in that the sequence is `tokens`, followed by `emitted`, learns how good the proposals
    /// of last time were, and has every source say what follows: up to `most` tokens. Verdicts may
    /// be left out; the sequence only ever grows.
    pub fn follow(
        &mut self,
        tokens: &[TokenId],
        emitted: &[TokenId],
        most: u32,
        tenant: &mut Tenant<'_>,
    ) {
        let before = self.said.len();
        self.said
            .extend_from_slice(tokens.get(before..).unwrap_or_default());
        let known = self.said.len().saturating_sub(tokens.len());
        self.said
            .extend_from_slice(emitted.get(known..).unwrap_or_default());
        self.judge(before, tenant.yields);
        self.suffixes.extend(&self.said);
        let mut table = tenant.recycling.as_deref_mut();
        if let Some(table) = &mut table {
            let from = self.said.len().saturating_sub(RECYCLED_AT_ONCE);
            // The last token before is the neighbour of the first new one.
            let from = from.max(before.saturating_sub(1));
            table.extend(&self.said[from..]);
        }
        let [suffix, recycled] = &mut self.guesses;
        let most = most as usize;
        let matched = self.suffixes.propose(&self.said, most, &mut suffix.tokens);
        suffix.origin = matched.map_or(Origin::Nothing, Origin::Suffix);
        recycled.tokens.clear();
        if let Some((table, &last)) = table.zip(self.said.last()) {
            table.propose(last, most, &mut recycled.tokens);
        }
        recycled.origin = if recycled.tokens.is_empty() {
            Origin::Nothing
        } else {
            Origin::Recycled
        };
    }

    /// The proposals that bring the most tokens after what their rows cost: `price(n)` is what `n`
    /// rows more cost, in tokens that would be decided meanwhile.
    pub fn propose(&self, yields: &Yields, price: impl Fn(u32) -> f64) -> Proposal<'_> {
        let mut best = (0.0, Proposal::default());
        for guess in &self.guesses {
            let mut accepted = 0.0;
            for (i, reached) in (1..=guess.tokens.len()).zip(yields.reached(guess.origin)) {
                accepted += reached;
                let worth = accepted - price(i as u32);
                if worth > best.0 {
                    let (origin, tokens) = (guess.origin, &guess.tokens[..i]);
                    best = (
                        worth,
                        Proposal {
                            origin,
                            tokens,
                            accepted,
                        },
                    );
                }
            }
        }
        best.1
    }

    /// Holds what every source said last time, to follow the first `before` tokens, against what
    /// the target said then.
    fn judge(&mut self, before: usize, yields: &mut Yields) {
        let followed = &self.said[before..];
        for guess in &mut self.guesses {
            let accepted = common_prefix(&guess.tokens, followed);
            let proposed = guess.tokens.len().min(followed.len());
            yields.observe(guess.origin, proposed as u32, accepted as u32);
            guess.tokens.clear();
        }
    }
}
