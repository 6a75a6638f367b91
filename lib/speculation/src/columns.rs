//! Columns of continuations: what outcomes have, step by step.

use alloc::vec::Vec;

/// A column a step, with an item for each of the first outcomes, likeliest first: for as many as
/// the column before it, or fewer. Memory is kept.
#[derive(Clone, Debug)]
pub(crate) struct Columns<T> {
    items: Vec<T>,
    /// Where each column ends.
    ends: Vec<usize>,
}

impl<T> Columns<T> {
    /// No columns.
    pub(crate) const fn new() -> Self {
        Self {
            items: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.ends.clear();
    }

    /// Adds one.
    pub(crate) fn push(&mut self, column: impl IntoIterator<Item = T>) {
        self.items.extend(column);
        self.ends.push(self.items.len());
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.ends.len()
    }

    /// A column; empty if there are not as many.
    pub(crate) fn get(&self, number: usize) -> &[T] {
        let start = number.checked_sub(1).map_or(0, |before| self.end(before));
        &self.items[start..self.end(number)]
    }

    /// What one outcome has, column by column.
    pub(crate) fn of(&self, place: usize) -> impl Iterator<Item = &T> {
        (0..self.count()).map_while(move |number| self.get(number).get(place))
    }

    /// Items of all columns.
    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    fn end(&self, number: usize) -> usize {
        self.ends.get(number).map_or(self.items.len(), |&end| end)
    }
}

impl<T> Default for Columns<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    #[test]
    fn an_outcome_has_an_item_of_each_column_that_reaches_it() {
        let mut columns = Columns::new();
        columns.push([1, 2, 3]);
        columns.push([4, 5]);
        columns.push([6]);
        let of = |place| columns.of(place).copied().collect::<Vec<_>>();
        assert_eq!(of(0), [1, 4, 6]);
        assert_eq!(of(1), [2, 5]);
        assert_eq!(of(2), [3]);
        assert_eq!(of(3), []);
        assert_eq!((columns.get(1), columns.get(3)), (&[4, 5][..], &[][..]));
        assert_eq!((columns.count(), columns.len()), (3, 6));
        columns.clear();
        assert_eq!((columns.count(), columns.of(0).count()), (0, 0));
    }
}
