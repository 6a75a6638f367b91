//! How much of what each source proposes is accepted.

use super::{Origin, suffix::LENGTHS};
use crate::control::Acceptance;

/// Suffixes by their length, and the recycling table.
const KINDS: usize = LENGTHS.len() + 1;

/// Acceptance by position of proposals from a suffix of each length, and from the recycling table.
///
/// A long suffix that occurred before is a better sign than a short one, so they are told apart.
#[derive(Clone, Debug, Default)]
pub struct Yields {
    kinds: [Acceptance; KINDS],
}

impl Yields {
    /// Takes in that of `proposed` tokens from `origin` the first `accepted` were what the target
    /// said. Only those count as proposed that were held against what it said.
    pub fn observe(&mut self, origin: Origin, proposed: u32, accepted: u32) {
        if let Some(kind) = kind(origin) {
            self.kinds[kind].observe(proposed, accepted);
        }
    }

    /// For each of the proposals from `origin` the probability that it and all before it are
    /// accepted; without end, nothing for [`Origin::Nothing`].
    pub fn reached(&self, origin: Origin) -> impl Iterator<Item = f64> + '_ {
        let kind = kind(origin).map(|kind| &self.kinds[kind]);
        kind.into_iter().flat_map(Acceptance::reached)
    }
}

fn kind(origin: Origin) -> Option<usize> {
    match origin {
        Origin::Nothing => None,
        Origin::Recycled => Some(LENGTHS.len()),
        Origin::Suffix(matched) => LENGTHS.iter().position(|&length| length as u32 == matched),
    }
}
