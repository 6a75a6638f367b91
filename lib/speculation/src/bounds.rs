//! What kept choices from being larger, and how often.

use core::marker::PhantomData;

/// A reason why something is not larger: one of a fixed list.
pub trait Bound: Copy + Eq + 'static {
    /// All of them, at most [`MOST`]. A place in the list is sent over the wire, so it only grows at its
    /// end.
    const ALL: &'static [Self];

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

    /// Counts a choice.
    pub fn add(&mut self, bound: B) {
        if let Some(place) = B::ALL.iter().position(|&other| other == bound) {
            self.counts[place] = self.counts[place].saturating_add(1);
        }
    }

    /// How often it was this one.
    pub fn of(&self, bound: B) -> u32 {
        let mut counts = self.counts();
        counts
            .find(|&(other, _)| other == bound)
            .map_or(0, |(_, count)| count)
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
            for _ in 0..=place {
                all.add(bound);
            }
        }
        for (place, &bound) in B::ALL.iter().enumerate() {
            assert_eq!(all.of(bound), place as u32 + 1, "{bound:?}");
        }
        let told = all.counts().map(|(_, count)| count);
        assert_eq!(BoundCounts::<B>::by_place(told.chain([7])), all);
    }

    #[test]
    fn counts_are_kept_apart() {
        check::<control::Limit>();
        check::<fanout::Limit>();
    }
}
