//! What an endpoint has drafted for the outcomes of the round under verification.

use alloc::vec::Vec;
use core::slice;

use crate::{
    Proposals, TokenId,
    columns::Columns,
    guess::OutcomeKey,
    message::{Entries, Side, SparseDistribution},
    proposal::{self, Laws},
    saguaro::Saguaro,
};

/// Continuations by outcome, at most so many and so long as were asked for, whatever comes.
/// Memory is kept from round to round.
#[derive(Debug, Default)]
pub(super) struct Cache {
    bounds: Bounds,
    /// Those that were begun at once, and those that were begun later.
    series: [Series; 2],
}

/// What is kept at most.
#[derive(Clone, Copy, Debug, Default)]
struct Bounds {
    keys: usize,
    tokens: usize,
    /// Proposals of a continuation that is a tree.
    nodes: usize,
}

/// Continuations that come in the same parts.
#[derive(Debug, Default)]
struct Series {
    /// Outcomes that the first part named.
    sent: usize,
    /// Those that are kept, likeliest first.
    keys: Vec<OutcomeKey>,
    /// Columns of tokens that were sent, kept or not, and tokens of the last one.
    before: usize,
    width: usize,
    /// What is kept of them.
    columns: Columns<TokenId>,
    /// What each of these tokens was drawn from, if that was said.
    q: Columns<SparseDistribution>,
    saguaro: Saguaro,
    /// Second choices of kept outcomes.
    sides: Vec<Side>,
}

/// What was drafted for an outcome.
#[derive(Clone, Debug)]
pub(super) struct Hit {
    /// Place of the outcome among those that are kept, those begun later after the others; none if it is
    /// the rest of a window.
    pub(super) place: Option<u32>,
    /// Whether it was not worth more tokens.
    pub(super) ended: bool,
    /// Whether it may have more tokens than have come.
    pub(super) grows: bool,
    pub(super) proposals: Proposals,
    pub(super) laws: Laws,
}

impl Cache {
    /// Forgets everything, and expects up to `keys` outcomes with up to `tokens` tokens each, and
    /// with second choices if there may be more `nodes` than that.
    pub(super) fn expect(&mut self, keys: u32, tokens: u32, nodes: u32) {
        self.bounds = Bounds {
            keys: keys as usize,
            tokens: tokens as usize,
            nodes: nodes as usize,
        };
        self.series.iter_mut().for_each(Series::clear);
    }

    /// Whether any are expected.
    pub(super) fn is_open(&self) -> bool {
        self.expected() > 0
    }

    /// Most tokens of each that is expected.
    pub(super) fn expected(&self) -> u32 {
        if self.bounds.keys > 0 {
            self.bounds.tokens as u32
        } else {
            0
        }
    }

    /// Takes in a part of this round; false if it does not fit what is known.
    pub(super) fn take(&mut self, part: &Entries) -> bool {
        let (own, other) = (usize::from(part.late), usize::from(!part.late));
        let bounds = Bounds {
            keys: self
                .bounds
                .keys
                .saturating_sub(self.series[other].keys.len()),
            ..self.bounds
        };
        self.is_open() && bounds.keys > 0 && self.series[own].take(part, bounds)
    }

    /// What was drafted for `key`, if anything.
    pub(super) fn find(&self, key: OutcomeKey) -> Option<Hit> {
        let [early, late] = &self.series;
        let find = |series: &Series, before| {
            let mut hit = series.find(key, self.bounds)?;
            hit.place = hit.place.map(|place| place + before);
            Some(hit)
        };
        find(early, 0).or_else(|| find(late, early.keys.len() as u32))
    }

    /// Tokens held.
    pub(super) fn len(&self) -> usize {
        let held = |series: &Series| series.columns.len() + series.sides.len();
        self.series.iter().map(held).sum()
    }
}

impl Series {
    fn clear(&mut self) {
        self.sent = 0;
        self.keys.clear();
        self.before = 0;
        self.width = 0;
        self.columns.clear();
        self.q.clear();
        self.sides.clear();
    }

    /// Whether the continuation at this place was said to end.
    fn ended(&self, place: usize) -> bool {
        let mut tokens = self.columns.of(place);
        tokens.any(|&token| token == Entries::ENDED)
    }

    fn take(&mut self, part: &Entries, bounds: Bounds) -> bool {
        if part.before as usize != self.before {
            return false;
        }
        let first = self.before == 0;
        let known = if first { part.keys.len() } else { self.width };
        // A column may end some continuations: then it is the only one.
        let ends_some = !first && !part.tokens.is_empty() && part.tokens.len() < known;
        let width = if ends_some { part.tokens.len() } else { known };
        let columns = part.tokens.len().checked_div(width).unwrap_or(0);
        let whole = columns > 0 && part.tokens.len() == columns * width;
        let sent = if first { width } else { self.sent };
        let after = self.before + columns;
        let explains = part.q.len() == part.tokens.len();
        // What it was drawn from came with the token beside it.
        let law_of = |entry: usize, depth: usize| {
            let column = depth.checked_sub(self.before).filter(|_| entry < width)?;
            part.q.get(column * width + entry)
        };
        let placed = |side: &Side| (side.entry as usize) < sent && (side.after as usize) < after;
        let explained = |side: &Side| {
            let law = law_of(side.entry as usize, side.after as usize);
            let law = law.map_or(&[][..], slice::from_ref);
            proposal::explains(law, part.saguaro, [(side.token, 0)])
        };
        let alike =
            part.saguaro == self.saguaro && explains == (self.q.len() == self.columns.len());
        let fits = first || (alike && part.keys.is_empty());
        let keys = if first {
            sent.min(bounds.keys)
        } else {
            self.keys.len()
        };
        // Of no more than are kept, however many come, is it seen whether their laws explain them.
        let room = (keys * bounds.nodes).saturating_sub(self.sides.len());
        let kept = |side: &&Side| (side.entry as usize) < keys;
        let sides = part.sides.iter().filter(kept).take(room);
        if !whole || !fits || !part.sides.iter().all(placed) {
            return false;
        }
        if explains && !sides.clone().all(explained) {
            return false;
        }
        if first {
            self.sent = sent;
            self.saguaro = part.saguaro;
            self.keys.extend_from_slice(&part.keys[..keys]);
        }
        self.width = width;
        let kept = width.min(keys);
        for (number, column) in part.tokens.chunks_exact(width).enumerate() {
            if self.before < bounds.tokens {
                self.columns.push(column[..kept].iter().copied());
                let q = part.q.get(number * width..).filter(|_| explains);
                let q = q.and_then(|q| q.get(..kept)).unwrap_or_default();
                self.q.push(q.iter().cloned());
            }
            self.before += 1;
        }
        self.sides.extend(sides);
        true
    }

    fn find(&self, key: OutcomeKey, bounds: Bounds) -> Option<Hit> {
        let place = self.keys.iter().position(|&known| known == key)?;
        let tokens = self.columns.of(place).copied();
        let tokens = tokens.take_while(|&token| token != Entries::ENDED);
        let beside = |depth| {
            let sides = self.sides.iter();
            let here = sides
                .filter(move |side| (side.entry as usize, side.after as usize) == (place, depth));
            here.map(|side| side.token)
        };
        let mut proposals = Proposals::with_sides(tokens, beside);
        if !proposals.is_chain() {
            proposals.truncate(bounds.nodes);
        }
        Some(Hit {
            place: Some(place as u32),
            ended: self.ended(place),
            grows: self.before < bounds.tokens && place < self.width && !self.ended(place),
            proposals,
            laws: Laws {
                q: self.q.of(place).cloned().collect(),
                saguaro: self.saguaro,
            },
        })
    }
}
