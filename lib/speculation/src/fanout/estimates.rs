//! What becomes of proposals and candidates, learned online from verdicts.
//!
//! A row is a list of tokens, best first: before the window's end the proposed token, then the
//! candidates. The decided token is the first that holds, so everything is a conditional
//! probability of one kind: that the token at a rank is it, given that none before it is. It
//! depends mostly on the *margin* by which the token's score beats the next one's: a target that
//! is like the draft seldom overturns a wide margin, and often a narrow one.
//!
//! One verdict teaches all ranks up to the decided token's; those after it were not tried, so they
//! count neither way. The same holds for the window's positions after the first rejection. A rank
//! is known on misses too, so the curve is learned well past the fan-out that is in use.

use super::PowerLaw;
use crate::{
    TokenId,
    guess::{Candidates, OutcomeKey, Row},
    tally::Tally,
};

/// Weight that an observation keeps with each later one of the same kind: about the last thousand
/// count.
const MEMORY: f64 = 0.999;
/// Share of a build in what is known of where continuations end.
const ENDS_WEIGHT: f64 = 1.0 / 16.0;
/// Observations that the next coarser estimate is worth.
const PRIOR_WEIGHT: f64 = 8.0;
/// Ranks that are told apart without regard to margins.
const RANKS: usize = 32;
/// First ranks of the classes that are told apart with regard to margins.
const CLASSES: [usize; 6] = [0, 1, 2, 3, 5, 9];
/// Upper ends of classes of margins, in nats; the last class has none.
const MARGINS: [f64; 13] = [
    -1.0, 0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.5, 7.0, 12.0,
];

/// Probability that a token drawn beside one that is turned down is accepted, until verdicts say
/// otherwise.
const BESIDE: f64 = 0.2;

/// What is assumed until verdicts say otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    /// Probability that a proposed token is accepted given those before it.
    pub acceptance: f64,
    /// Miss rate by number of guesses.
    pub ranks: PowerLaw,
}

impl Default for Prior {
    fn default() -> Self {
        Self {
            acceptance: 0.7,
            ranks: PowerLaw::TYPICAL,
        }
    }
}

impl Prior {
    /// Probability that the candidate at `rank` is decided given that none before it is.
    fn holds(&self, rank: usize) -> f64 {
        let miss = |guesses| 1.0 - self.ranks.hit(guesses);
        let before = miss(rank as u32);
        if before > 0.0 {
            1.0 - miss(rank as u32 + 1) / before
        } else {
            1.0
        }
    }
}

/// Acceptance and ranks, for sessions whose target and draft sample alike: scores of greedy, noisy
/// and likelihood rankings mean different things, so each mode should have its own.
#[derive(Clone, Debug)]
pub struct Estimates {
    prior: Prior,
    /// Proposed tokens; a single rank.
    proposals: Curve,
    /// Candidates after a rejection.
    corrections: Curve,
    /// Candidates after the whole window.
    bonuses: Curve,
    /// Tokens proposed beside one that was turned down, given that those before them were too.
    beside: [Tally; Chances::SIDES],
    /// Share of continuations that end before the next token, for it is not likely enough.
    ends: f64,
}

impl Estimates {
    /// Knows nothing but `prior`.
    pub fn new(prior: Prior) -> Self {
        Self {
            prior,
            proposals: Curve::default(),
            corrections: Curve::default(),
            bonuses: Curve::default(),
            beside: Default::default(),
            ends: 0.0,
        }
    }

    /// Takes in how the verification of the window that `candidates` belong to ended. Returns the
    /// rank of the decided token in its row, if it is listed. A decided token that comes next in the window
    /// was accepted, for all that is known: not all of the window was verified.
    pub fn observe(&mut self, candidates: &Candidates, outcome: OutcomeKey) -> Option<usize> {
        let window = candidates.window();
        if outcome.accepted as usize > window.len() {
            return None;
        }
        let mut node = 0;
        for child in window.path(outcome.accepted) {
            // What was drawn has no row for its last token.
            let (row, token) = (candidates.row(node as usize)?, window.token(child)?);
            self.observe_beside(row.proposed, window.beside(node), token);
            self.row(&row, token);
            node = child;
        }
        let row = candidates.row(node as usize)?;
        self.observe_beside(row.proposed, window.beside(node), outcome.token);
        self.row(&row, outcome.token)
    }

    /// Takes in which token came where `proposed` was proposed first, and these in turn if it was
    /// turned down.
    pub fn observe_beside(
        &mut self,
        proposed: Option<TokenId>,
        beside: impl IntoIterator<Item = TokenId>,
        came: TokenId,
    ) {
        if proposed == Some(came) {
            return;
        }
        for (tally, side) in self.beside.iter_mut().zip(beside) {
            tally.observe(side == came, MEMORY);
            if side == came {
                break;
            }
        }
    }

    /// Takes in how many continuations were about to go on, and how many of them ended instead.
    pub fn observe_ends(&mut self, looked_at: u32, ended: u32) {
        if looked_at > 0 {
            let share = f64::from(ended.min(looked_at)) / f64::from(looked_at);
            self.ends += ENDS_WEIGHT * (share - self.ends);
        }
    }

    /// Probability that a continuation goes on after its first token, and after each later one.
    pub fn goes_on(&self) -> f64 {
        1.0 - self.ends
    }

    /// Takes in which token a row came to; its rank, if it is listed.
    fn row(&mut self, row: &Row<'_>, token: TokenId) -> Option<usize> {
        if let Some(proposed) = row.proposed {
            self.proposals.observe(0, row.margin, proposed == token);
            if proposed == token {
                return None;
            }
        }
        let mut listed = row.candidates.iter();
        let rank = listed.position(|candidate| candidate.token == token);
        let curve = if row.proposed.is_some() {
            &mut self.corrections
        } else {
            &mut self.bonuses
        };
        let tried = rank.map_or(row.candidates.len(), |rank| rank + 1);
        for other in 0..tried {
            curve.observe(other, margin(row, other), Some(other) == rank);
        }
        rank
    }

    /// What is thought of the first tokens of rows, by their margins.
    pub fn chances(&self) -> Chances {
        let table = |curve: &Curve, rank: usize, prior: f64| {
            let pooled = curve.pooled(rank, prior);
            let mut table = [pooled; MARGINS.len() + 2];
            for (value, tally) in table.iter_mut().zip(curve.margins[class(rank)]) {
                *value = tally.estimate(pooled, PRIOR_WEIGHT);
            }
            table
        };
        let side = |rank| table(&self.corrections, rank, self.prior.holds(rank));
        Chances {
            proposed: table(&self.proposals, 0, self.prior.acceptance),
            sides: core::array::from_fn(side),
            drawn_beside: self.drawn_beside(),
            acceptance: self.acceptance(),
        }
    }

    /// Probability that a token drawn beside one that is turned down is accepted, by how many were
    /// drawn before it and turned down too.
    pub fn drawn_beside(&self) -> [f64; Chances::SIDES] {
        self.beside
            .map(|tally| tally.estimate(BESIDE, PRIOR_WEIGHT))
    }

    /// Probability that a proposed token is accepted given those before it, whatever its margin.
    pub fn acceptance(&self) -> f64 {
        self.proposals.pooled(0, self.prior.acceptance)
    }

    /// The same for the proposed token of this row; 0 after the whole window, where there is none.
    pub fn accepts(&self, row: &Row<'_>) -> f64 {
        if row.proposed.is_none() {
            return 0.0;
        }
        self.proposals.holds(0, row.margin, self.prior.acceptance)
    }

    /// Probability that the candidate of `row` at `rank` is decided, given that the row decides and
    /// none before it is decided.
    pub fn holds(&self, row: &Row<'_>, rank: usize) -> f64 {
        let curve = self.curve(row.proposed.is_none());
        curve.holds(rank, margin(row, rank), self.prior.holds(rank))
    }

    /// Probability that none of the first `guesses` candidates is decided, whatever their margins,
    /// after the whole window (`bonus`) or after a rejection.
    pub fn misses(&self, bonus: bool, guesses: usize) -> f64 {
        let curve = self.curve(bonus);
        let holds = |rank| curve.pooled(rank, self.prior.holds(rank));
        (0..guesses).map(|rank| 1.0 - holds(rank)).product()
    }

    /// The power law of [`Self::misses`] over the first `guesses` guesses.
    pub fn power_law(&self, bonus: bool, guesses: usize) -> PowerLaw {
        PowerLaw::fit((1..=guesses).map(|guesses| self.misses(bonus, guesses)))
    }

    fn curve(&self, bonus: bool) -> &Curve {
        if bonus {
            &self.bonuses
        } else {
            &self.corrections
        }
    }
}

/// Probabilities of the first tokens of rows that were drawn: a copy of what [`Estimates`] has on
/// them, for sessions that draft while others learn.
#[derive(Clone, Debug, PartialEq)]
pub struct Chances {
    /// By margin; the last is for rows of which none is known.
    proposed: [f64; MARGINS.len() + 2],
    /// The same for the best candidates, given that nothing before them is decided.
    sides: [[f64; MARGINS.len() + 2]; Self::SIDES],
    drawn_beside: [f64; Self::SIDES],
    acceptance: f64,
}

impl Chances {
    /// Candidates of a row beside the proposed token.
    pub const SIDES: usize = 3;

    /// Candidates to rank beside each token that is drawn: one to tell its margin, and as many more as
    /// may be proposed beside it.
    pub(crate) fn beside(trees: bool) -> usize {
        if trees { Self::SIDES + 1 } else { 1 }
    }

    /// Probability that a proposed token is accepted, whatever its margin.
    pub fn acceptance(&self) -> f64 {
        self.acceptance
    }

    /// See [`Estimates::drawn_beside`].
    pub fn drawn_beside(&self) -> [f64; Self::SIDES] {
        self.drawn_beside
    }

    /// The probability of the row's proposed token, and of each of its best candidates.
    pub fn of(&self, row: &Row<'_>) -> (f64, impl Iterator<Item = (TokenId, f64)>) {
        let at = |margin: f64| bucket(margin).unwrap_or(MARGINS.len() + 1);
        let accepts = self.proposed[at(row.margin)];
        let ranked = row.candidates.iter().zip(&self.sides).enumerate();
        let sides = ranked.scan(1.0 - accepts, move |left, (rank, (candidate, table))| {
            let holds = table[at(margin(row, rank))];
            let probability = *left * holds;
            *left -= probability;
            Some((candidate.token, probability))
        });
        (accepts, sides)
    }
}

impl Default for Chances {
    fn default() -> Self {
        Estimates::new(Prior::default()).chances()
    }
}

/// By how much the candidate at `rank` beats the next one; not a number if there is none.
fn margin(row: &Row<'_>, rank: usize) -> f64 {
    match row.candidates.get(rank..) {
        Some([own, next, ..]) => next.gap - own.gap,
        _ => f64::NAN,
    }
}

/// Conditional probabilities by rank, and by class of rank and margin.
#[derive(Clone, Debug, Default)]
struct Curve {
    ranks: [Tally; RANKS],
    margins: [[Tally; MARGINS.len() + 1]; CLASSES.len()],
}

impl Curve {
    fn observe(&mut self, rank: usize, margin: f64, held: bool) {
        self.ranks[rank.min(RANKS - 1)].observe(held, MEMORY);
        if let Some(bucket) = bucket(margin) {
            self.margins[class(rank)][bucket].observe(held, MEMORY);
        }
    }

    fn pooled(&self, rank: usize, prior: f64) -> f64 {
        self.ranks[rank.min(RANKS - 1)].estimate(prior, PRIOR_WEIGHT)
    }

    fn holds(&self, rank: usize, margin: f64, prior: f64) -> f64 {
        let pooled = self.pooled(rank, prior);
        bucket(margin).map_or(pooled, |bucket| {
            self.margins[class(rank)][bucket].estimate(pooled, PRIOR_WEIGHT)
        })
    }
}

fn class(rank: usize) -> usize {
    CLASSES.partition_point(|&first| first <= rank) - 1
}

fn bucket(margin: f64) -> Option<usize> {
    (!margin.is_nan()).then(|| MARGINS.partition_point(|&end| end <= margin))
}
