//! Where a request's last tokens occurred before.

use alloc::vec::Vec;

use crate::TokenId;

/// Lengths of suffixes that are looked for, longest first.
pub(super) const LENGTHS: [usize; 5] = [8, 6, 4, 3, 2];
/// Slots of a new table.
const FEWEST_SLOTS: usize = 64;
/// Marks an empty slot.
const EMPTY: u32 = u32::MAX;

/// For each of the last n-grams of a sequence, where it last occurred. (Prompt lookup decoding,
/// Saxena 2023; suffix matches: arXiv 2411.04975.)
///
/// The sequence itself stays with its owner and is passed in: [`Self::extend`] takes in what is new
/// of it, in O(1) amortised time a token (one hash table entry for each of five lengths);
/// [`Self::propose`] takes O(1) to find the place and O(n) to copy. Two tables of up to `positions`
/// tokens each take turns, so that memory is bounded (at most about 240 bytes a token, twice
/// `positions` tokens) and at least the last `positions` tokens are found.
#[derive(Clone, Debug)]
pub struct SuffixIndex {
    positions: usize,
    /// Tokens taken in: n-grams that end before the last of them have an entry.
    len: usize,
    /// Tokens whose n-grams are in `young`.
    filled: usize,
    young: Table,
    old: Table,
}

impl SuffixIndex {
    /// An index of no tokens that will find those of the last `positions` at least.
    pub fn new(positions: usize) -> Self {
        Self {
            positions: positions.max(1),
            len: 0,
            filled: 0,
            young: Table::default(),
            old: Table::default(),
        }
    }

    /// Takes in what `tokens` has more than last time. Only tokens that will not be taken back
    /// belong here: decided ones.
    pub fn extend(&mut self, tokens: &[TokenId]) {
        // An n-gram is of use once it is known what follows.
        // Of much at once the first would be forgotten again.
        let least = tokens
            .len()
            .saturating_sub(self.positions.saturating_mul(2));
        for end in self.len.max(least).max(1)..tokens.len() {
            if self.filled >= self.positions {
                core::mem::swap(&mut self.young, &mut self.old);
                self.young.clear();
                self.filled = 0;
            }
            for key in keys(&tokens[..end]).into_iter().flatten() {
                self.young.insert(key, end as u32);
            }
            self.filled += 1;
        }
        self.len = self.len.max(tokens.len());
    }

    /// Replaces `proposals` by `n` tokens to follow `tokens` (the sequence that was taken in): what
    /// followed the longest of its suffixes that occurred before (of 8, 6, 4, 3 or 2 tokens), where
    /// it did so last. A place near the end is continued with the proposals themselves, as for
    /// periodic text. Returns the length of the suffix; `None`, and no proposals, if none occurred.
    pub fn propose(
        &self,
        tokens: &[TokenId],
        n: usize,
        proposals: &mut Vec<TokenId>,
    ) -> Option<u32> {
        proposals.clear();
        let (end, length) = self.find(tokens)?;
        for i in end..end + n {
            let token = match tokens.get(i) {
                Some(&token) => token,
                None => *proposals.get(i - tokens.len())?,
            };
            proposals.push(token);
        }
        Some(length as u32)
    }

    /// Slots of both tables, of 12 bytes each.
    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.young.ends.len() + self.old.ends.len()
    }

    /// Where the longest suffix that occurred before ended when it last did, and its length.
    fn find(&self, tokens: &[TokenId]) -> Option<(usize, usize)> {
        let candidates = keys(tokens).into_iter().zip(LENGTHS);
        candidates
            .filter_map(|(key, length)| Some((key?, length)))
            .find_map(|(key, length)| {
                let found = self.young.get(key).or_else(|| self.old.get(key));
                let end = found? as usize;
                // Different n-grams may share a key, and the sequence may be another one.
                let place = tokens.get(end.checked_sub(length)?..end)?;
                let suffix = &tokens[tokens.len() - length..];
                (place == suffix && end < tokens.len()).then_some((end, length))
            })
    }
}

/// Keys of the suffixes of each of [`LENGTHS`], if there are so many tokens.
fn keys(tokens: &[TokenId]) -> [Option<u64>; LENGTHS.len()] {
    let mut keys = [None; LENGTHS.len()];
    let mut key = 0;
    for (length, token) in (1..=LENGTHS[0]).zip(tokens.iter().rev()) {
        // SplitMix64's increments and multiplier: every token changes all bits above it.
        let mixed: u64 = key ^ u64::from(token.0).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        key = mixed ^ (mixed >> 29);
        if let Some(place) = LENGTHS.iter().position(|&wanted| wanted == length) {
            // Keys of different lengths must not meet.
            keys[place] = Some(key.wrapping_add(length as u64));
        }
    }
    keys
}

/// A hash table from keys to positions, with linear probing.
#[derive(Clone, Debug, Default)]
struct Table {
    keys: Vec<u64>,
    ends: Vec<u32>,
    used: usize,
}

impl Table {
    fn insert(&mut self, key: u64, end: u32) {
        if self.used * 2 >= self.ends.len() {
            self.grow();
        }
        let slot = self.slot(key);
        if self.ends[slot] == EMPTY {
            self.used += 1;
        }
        self.keys[slot] = key;
        self.ends[slot] = end;
    }

    fn get(&self, key: u64) -> Option<u32> {
        if self.ends.is_empty() {
            return None;
        }
        let end = self.ends[self.slot(key)];
        (end != EMPTY).then_some(end)
    }

    fn clear(&mut self) {
        self.ends.fill(EMPTY);
        self.used = 0;
    }

    /// The slot of the key, or the empty one where it belongs. At most half of all are in use.
    fn slot(&self, key: u64) -> usize {
        let mask = self.ends.len() - 1;
        let mut slot = (key >> 32) as usize & mask;
        while self.ends[slot] != EMPTY && self.keys[slot] != key {
            slot = (slot + 1) & mask;
        }
        slot
    }

    fn grow(&mut self) {
        let slots = (self.ends.len() * 2).max(FEWEST_SLOTS);
        let mut larger = Self {
            keys: alloc::vec![0; slots],
            ends: alloc::vec![EMPTY; slots],
            used: self.used,
        };
        for (&key, &end) in self.keys.iter().zip(&self.ends) {
            if end != EMPTY {
                let slot = larger.slot(key);
                larger.keys[slot] = key;
                larger.ends[slot] = end;
            }
        }
        *self = larger;
    }
}
