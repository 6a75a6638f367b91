//! Numbers that are the same in every run.

use std::ops::Range;

/// A generator of numbers (Steele, Lea, Flood 2014: `SplitMix64`).
pub(crate) struct Chance(pub(crate) u64);

impl Chance {
    /// A number within a range.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        range.start + (mixed ^ (mixed >> 31)) % (range.end - range.start)
    }
}
