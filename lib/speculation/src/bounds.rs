//! What kept choices from being larger, and how often.

use alloc::vec::Vec;
use core::marker::PhantomData;

/// A reason why something is not larger: one of a fixed list.
pub trait Bound: Copy + Eq + 'static {
    /// All of them, at most [`MOST`], each at its [`Self::place`].
    const ALL: &'static [Self];

    /// Its place among all. That is sent over the wire, so new ones come last.
    fn place(self) -> usize;

    /// The name used as a metric label.
    fn name(self) -> &'static str;
}

/// Most reasons of a list.
pub const MOST: usize = 8;

/// How often each reason was the one.
pub struct BoundCounts<B> {
    counts: [u32; MOST],
    of: PhantomData<B>,
}

impl<B: Bound> BoundCounts<B> {
    /// As it was counted elsewhere, by the places of [`Bound::ALL`]. What comes behind the last is left
    /// out.
    pub fn by_place(counts: impl IntoIterator<Item = u32>) -> Self {
        let mut own = Self::default();
        let places = own.counts.iter_mut().take(B::ALL.len());
        for (place, count) in places.zip(counts) {
            *place = count;
        }
        own
    }

    /// The same to be told: the counts by their places, up to the last that is not 0.
    pub fn to_places(&self) -> Vec<u32> {
        let last = self.counts.iter().rposition(|&count| count > 0);
        self.counts[..last.map_or(0, |last| last + 1)].to_vec()
    }

    /// Counts a choice.
    pub fn add(&mut self, bound: B) {
        const { assert!(B::ALL.len() <= MOST) };
        let count = &mut self.counts[bound.place()];
        *count = count.saturating_add(1);
    }

    /// Counts what others were.
    pub fn merge(&mut self, others: &Self) {
        for (count, more) in self.counts.iter_mut().zip(others.counts) {
            *count = count.saturating_add(more);
        }
    }

    /// How often it was this one.
    pub fn of(&self, bound: B) -> u32 {
        self.counts[bound.place()]
    }

    /// Each with how often it was the one, in the order of the list.
    pub fn counts(&self) -> impl Iterator<Item = (B, u32)> {
        B::ALL.iter().copied().zip(self.counts)
    }
}

impl<B> Clone for BoundCounts<B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for BoundCounts<B> {}

impl<B> Default for BoundCounts<B> {
    fn default() -> Self {
        Self {
            counts: [0; MOST],
            of: PhantomData,
        }
    }
}

impl<B> PartialEq for BoundCounts<B> {
    fn eq(&self, other: &Self) -> bool {
        self.counts == other.counts
    }
}

impl<B> Eq for BoundCounts<B> {}

impl<B: Bound> core::fmt::Debug for BoundCounts<B> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let named = self.counts().map(|(bound, count)| (bound.name(), count));
        f.debug_map().entries(named).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{control, fanout};

    /// Each has its own count, which survives being told by its place.
    fn check<B: Bound + core::fmt::Debug>() {
        assert!(B::ALL.len() <= MOST);
        let mut all = BoundCounts::<B>::default();
        for (place, &bound) in B::ALL.iter().enumerate() {
            assert_eq!(bound.place(), place, "{bound:?}");
            for _ in 0..=place {
                all.add(bound);
            }
        }
        for (place, &bound) in B::ALL.iter().enumerate() {
            assert_eq!(all.of(bound), place as u32 + 1, "{bound:?}");
        }
        assert_eq!(all.to_places().len(), B::ALL.len());
        assert_eq!(BoundCounts::by_place(all.to_places()), all);
        let later = all.to_places().into_iter().chain([7; MOST]);
        assert_eq!(
            BoundCounts::by_place(later),
            all,
            "what comes behind is left out"
        );
        let mut few = BoundCounts::<B>::default();
        assert!(few.to_places().is_empty());
        few.add(B::ALL[1]);
        assert_eq!(few.to_places(), [0, 1]);
        all.merge(&few);
        assert_eq!((all.of(B::ALL[0]), all.of(B::ALL[1])), (1, 3));
    }

    #[test]
    fn counts_are_kept_apart() {
        check::<control::Limit>();
        check::<fanout::Limit>();
    }
}
