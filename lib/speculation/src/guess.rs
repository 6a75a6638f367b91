//! Which token the target may decide after each prefix of the window: the candidates that branches
//! are built for.
//!
//! While `x_1..x_K` is under verification, a glue pass gives the draft's logits after the decided
//! token and after each of the `x_i`. Row k says what comes after k accepted tokens, and there
//! (k < K) `x_{k+1}` cannot be decided, or it would have been accepted: under coupled and greedy
//! verification by definition, under rejection because what rejects it, `p < q`, leaves it no
//! residual mass (SSD, arXiv 2603.03251, section 4). The last row excludes nothing.
//!
//! Coupled verification decides `argmax(log p + G)`, so the candidates are the draft's own order by
//! `log q + G` with the same noise; otherwise they are the likeliest by `q`.

use alloc::vec::Vec;

use crate::{
    Proposals, TokenId,
    sampling::{RankBy, Ranked, Ranking, Sampler, Scratch},
};

/// How a verification may end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OutcomeKey {
    /// The last proposal that is accepted: its node in the window, 0 if none is. In a chain that is
    /// how many are accepted.
    pub accepted: u32,
    /// The token decided after them.
    pub token: TokenId,
}

/// A token that may be decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: TokenId,
    /// How far its score is behind that of the row's first candidate, in nats: 0 for the first,
    /// infinite for what the request's truncation leaves out.
    pub gap: f64,
}

/// Candidates after some proposal was accepted last.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row<'a> {
    /// The first token that the window proposes next, which cannot be decided here; `None` if it
    /// proposes none. What it proposes beside it is among the candidates, and cannot be decided
    /// either.
    pub proposed: Option<TokenId>,
    /// By how much the score of `proposed` beats that of the first candidate, in nats; negative if
    /// it does not, not a number if there is nothing to compare.
    pub margin: f64,
    /// Best first.
    pub candidates: &'a [Candidate],
}

/// Candidates of all rows of one glue pass. Kept by a session, it stops allocating.
#[derive(Clone, Debug)]
pub struct Candidates {
    by: RankBy,
    n: usize,
    window: Proposals,
    listed: Vec<Candidate>,
    rows: Vec<Head>,
    /// Whether the last row is yet to be read.
    open: bool,
    ranked: Vec<Ranked>,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    proposed: Option<TokenId>,
    margin: f64,
    end: usize,
}

impl Candidates {
    /// In the place of a token, in a row that is yet to be read.
    pub(crate) const UNREAD: TokenId = TokenId(u32::MAX);

    /// No rows yet; `n` candidates of each will be ranked `by` this. Coupled verification wants
    /// [`RankBy::Noise`] of the domain that the target chooses with, any other
    /// [`RankBy::Likelihood`].
    pub fn new(by: RankBy, n: usize) -> Self {
        Self {
            by,
            n,
            window: Proposals::new(),
            listed: Vec::new(),
            rows: Vec::new(),
            open: false,
            ranked: Vec::new(),
        }
    }

    /// Ranks the best candidates of each row of a glue pass over `window`: `row(i)` are the logits
    /// after its node i, for i from 0 to `window.len()`. Replaces what was there.
    ///
    /// `sampler` is at the token after the last decided one, and is there again afterwards.
    pub fn rank<'a>(
        &mut self,
        sampler: &mut Sampler,
        scratch: &mut Scratch,
        window: &Proposals,
        row: impl Fn(usize) -> &'a [f32],
    ) {
        self.clear();
        self.window.clone_from(window);
        let base = sampler.history().len();
        for node in 0..=window.len() as u32 {
            if !window.is_chain() {
                sampler.truncate(base);
                let spelled = window.spelled(node).into_iter();
                spelled.for_each(|token| sampler.push(token));
            }
            let proposed = window.children(node).next();
            let proposed = proposed.and_then(|child| window.token(child));
            let ranking = Ranking {
                by: self.by,
                n: self.n,
                without: proposed,
            };
            let score = sampler.rank(ranking, row(node as usize), scratch, &mut self.ranked);
            let first = self.ranked.first().map_or(f64::NAN, |best| best.score);
            let margin = score.map_or(f64::NAN, |score| distance(score, first));
            self.list(proposed, margin, 0);
            if let Some(token) = proposed.filter(|_| window.is_chain()) {
                sampler.push(token);
            }
        }
        sampler.truncate(base);
    }

    /// Takes over the rows that the tokens of `window`, a chain, were drawn from, in place of a glue pass;
    /// `rows` may go on. The row after the window is the next of them; if there is none it is open until
    /// [`Self::read_last`], with as many candidates as are ranked, of which nothing is known. Returns
    /// whether the rows are those of this window; otherwise there are none.
    pub(crate) fn recall<'a>(
        &mut self,
        window: &Proposals,
        mut rows: impl Iterator<Item = Row<'a>>,
    ) -> bool {
        self.clear();
        for &token in window.tokens() {
            let drawn = rows.next().filter(|row| row.proposed == Some(token));
            let Some(row) = drawn.filter(|_| window.is_chain()) else {
                self.clear();
                return false;
            };
            self.keep(&row);
        }
        self.window.clone_from(window);
        if let Some(row) = rows.next() {
            // Nothing is proposed there any more: what was drawn next is the best candidate.
            let best = row.proposed.map(|token| Candidate { token, gap: 0.0 });
            let others = row.candidates.iter().map(|other| Candidate {
                gap: other.gap + row.margin,
                ..*other
            });
            self.listed.extend(best.into_iter().chain(others));
        } else {
            let unread = Candidate {
                token: Self::UNREAD,
                gap: f64::NAN,
            };
            self.listed.extend(core::iter::repeat_n(unread, self.n));
            self.open = true;
        }
        self.end_row(None, f64::NAN);
        true
    }

    /// Ranks the row after the window, which was open. `sampler` is at the token after the window.
    pub(crate) fn read_last(&mut self, sampler: &Sampler, scratch: &mut Scratch, row: &[f32]) {
        self.drop_open();
        let ranking = Ranking {
            by: self.by,
            n: self.n,
            without: None,
        };
        sampler.rank(ranking, row, scratch, &mut self.ranked);
        self.list(None, f64::NAN, 0);
    }

    /// Whether the row after the window is yet to be read.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// Forgets the last row if it was not read: a verdict teaches nothing of it.
    pub(crate) fn drop_open(&mut self) {
        if core::mem::take(&mut self.open) {
            self.rows.pop();
            self.listed
                .truncate(self.rows.last().map_or(0, |row| row.end));
        }
    }

    /// Adds a row as it was ranked elsewhere, and nothing to the window.
    pub(crate) fn keep(&mut self, row: &Row<'_>) {
        self.listed.extend_from_slice(row.candidates);
        self.end_row(row.proposed, row.margin);
    }

    /// Draws the token after those drawn so far, as [`Sampler::choose`] does, and keeps the next
    /// best ones as candidates beside it.
    pub fn draw(&mut self, sampler: &Sampler, scratch: &mut Scratch, logits: &[f32]) -> TokenId {
        let ranking = Ranking {
            by: self.by,
            n: self.n + 1,
            without: None,
        };
        sampler.rank(ranking, logits, scratch, &mut self.ranked);
        let token = match self.ranked.first() {
            Some(best) => best.token,
            None => sampler.choose(logits, scratch),
        };
        let margin = match &self.ranked[..] {
            [first, second, ..] => distance(first.score, second.score),
            _ => f64::NAN,
        };
        self.take(token, margin, 1);
        token
    }

    /// Takes `token` as drawn next among those that are `ranked`, and keeps the best others as
    /// candidates beside it.
    pub fn drawn(&mut self, token: TokenId, ranked: &[Ranked]) {
        let own = ranked.iter().find(|own| own.token == token);
        let others = ranked.iter().filter(|other| other.token != token);
        self.ranked.clear();
        self.ranked.extend(others.take(self.n).copied());
        let margin = match (own, self.ranked.first()) {
            (Some(own), Some(first)) => distance(own.score, first.score),
            _ => f64::NAN,
        };
        self.take(token, margin, 0);
    }

    /// Takes `token` as drawn next, of which nothing else is known.
    pub fn assume(&mut self, token: TokenId) {
        self.ranked.clear();
        self.take(token, f64::NAN, 0);
    }

    /// Adds `token` to what was drawn, and a row of what was ranked beside it.
    fn take(&mut self, token: TokenId, margin: f64, skip: usize) {
        self.list(Some(token), margin, skip);
        let last = self.window.len() as u32;
        // After the last token of a chain there is always room.
        let _ = self.window.push(last, token);
    }

    /// Adds a row of what was ranked, without the first `skip`.
    fn list(&mut self, proposed: Option<TokenId>, margin: f64, skip: usize) {
        let ranked = self.ranked.get(skip..).unwrap_or_default();
        let first = ranked.first().map_or(f64::NAN, |best| best.score);
        let candidate = |ranked: &Ranked| Candidate {
            token: ranked.token,
            gap: distance(first, ranked.score),
        };
        self.listed.extend(ranked.iter().map(candidate));
        self.end_row(proposed, margin);
    }

    fn end_row(&mut self, proposed: Option<TokenId>, margin: f64) {
        let end = self.listed.len();
        self.rows.push(Head {
            proposed,
            margin,
            end,
        });
    }

    /// Forgets all rows; of the next ones `n` candidates of each will be ranked `by` this, as by
    /// [`Self::new`]. Keeps its memory.
    pub fn reset(&mut self, by: RankBy, n: usize) {
        self.clear();
        self.by = by;
        self.n = n;
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        self.window.clear();
        self.listed.clear();
        self.rows.clear();
        self.open = false;
    }

    /// Whether what the window proposes was drawn, for verification by ratio, so that a token's rank
    /// does not say whether it is proposed.
    pub fn are_drawn(&self) -> bool {
        self.by == RankBy::Likelihood
    }

    /// The window that the rows belong to.
    pub fn window(&self) -> &Proposals {
        &self.window
    }

    /// The rows, by node of the window; none before the first ranking. What was drawn has none for
    /// its last token.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = Row<'_>> {
        (0..self.rows.len()).map(|node| self.at(node))
    }

    /// The row after a node of the window.
    pub fn row(&self, node: usize) -> Option<Row<'_>> {
        (node < self.rows.len()).then(|| self.at(node))
    }

    /// The rank of an outcome's token in its row, 0 being the best, if it is listed.
    pub fn rank_of(&self, outcome: OutcomeKey) -> Option<usize> {
        let row = self.row(outcome.accepted as usize)?;
        row.candidates
            .iter()
            .position(|candidate| candidate.token == outcome.token)
    }

    fn at(&self, accepted: usize) -> Row<'_> {
        let start = accepted
            .checked_sub(1)
            .map_or(0, |before| self.rows[before].end);
        let head = self.rows[accepted];
        Row {
            proposed: head.proposed,
            margin: head.margin,
            candidates: &self.listed[start..head.end],
        }
    }
}

/// `a - b`; infinities of one sign are equally far.
fn distance(a: f64, b: f64) -> f64 {
    if a.is_infinite() && b.is_infinite() && (a > 0.0) == (b > 0.0) {
        0.0
    } else {
        a - b
    }
}

#[cfg(test)]
mod tests;
