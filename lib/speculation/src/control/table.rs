//! A figure for each lookahead.

use alloc::vec::Vec;

/// Share of old figures that is lost in a round of another kind: after about a thousand rounds
/// without news they count for nothing, so a load that has passed is forgotten.
const FORGET: f64 = 0.001;

/// What was learned of rounds, by their lookahead. Plain rounds and speculative ones are different
/// kinds: neither says anything about the other.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    by_lookahead: Vec<Option<f64>>,
}

impl Table {
    /// Nothing learned, for lookaheads up to `max`.
    pub(super) fn new(max: u32) -> Self {
        Self {
            by_lookahead: alloc::vec![None; max as usize + 1],
        }
    }

    /// Takes over what was learned of one lookahead in this part of a round. The figures of others
    /// of its kind drift towards it, those of the other kind towards 0.
    pub(super) fn learn(&mut self, lookahead: u32, learned: f64, part: f64) {
        for (k, figure) in self.by_lookahead.iter_mut().enumerate() {
            if k == lookahead as usize {
                *figure = Some(learned);
            } else if let Some(figure) = figure {
                let towards = if is_kin(k, lookahead) { learned } else { 0.0 };
                *figure = towards + (1.0 - FORGET * part) * (*figure - towards);
            }
        }
    }

    /// The figure of the nearest lookahead of the same kind that has one; 0 if none has.
    pub(super) fn nearest(&self, lookahead: u32) -> f64 {
        let seen = self.by_lookahead.iter().enumerate();
        let seen = seen.filter_map(|(k, figure)| {
            let figure = figure.filter(|_| is_kin(k, lookahead));
            figure.map(|figure| (k, figure))
        });
        let nearest = seen.min_by_key(|(k, _)| k.abs_diff(lookahead as usize));
        nearest.map_or(0.0, |(_, figure)| figure)
    }
}

fn is_kin(k: usize, lookahead: u32) -> bool {
    (k == 0) == (lookahead == 0)
}
