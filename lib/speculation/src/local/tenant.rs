//! What the requests of one tenant have in common, and no others see.

use alloc::vec::Vec;

use super::{Recycling, Yields};

/// Verdicts that somebody's place has to be without use before another may have it.
const IDLE: u64 = 1024;

/// Most tenants of which is kept how good proposals turned out to be.
const MOST_TENANTS: usize = 256;

/// What is learned from the requests of one tenant and proposed to them.
#[derive(Debug)]
pub struct Tenant<'a> {
    /// Which tokens followed which; none for a request that has no part in it, or while all tables are
    /// in use.
    pub recycling: Option<&'a mut Recycling>,
    /// How good proposals turned out to be.
    pub yields: &'a mut Yields,
}

/// The tenants that were served lately, by a key such as the salt of their prefix cache.
///
/// How soon a request's tokens come depends, a little, on what the table of its tenant holds, so a
/// table tells by its timing what was said before: the same leak as that of a shared prefix cache,
/// and closed the same way. Nothing in a [`Tenant`] is ever seen by a request with another key.
///
/// A table takes megabytes and begins empty, so one that is in use is never taken away: who comes
/// while all are has none until one was idle for `IDLE` verdicts. However many tenants take turns,
/// then, each place for a table is filled at most once in as many.
#[derive(Clone, Debug)]
pub struct Tenants<K> {
    vocab_size: u32,
    turn: u64,
    tables: Places<K, Recycling>,
    yields: Places<K, Yields>,
    /// Of whoever has no place: never kept from one verdict to the next.
    passing: Yields,
}

impl<K: Copy + PartialEq> Tenants<K> {
    /// Tables of tokens below `vocab_size`, of as many tenants as fit into `bytes`, but of one at
    /// least.
    pub fn new(vocab_size: u32, bytes: usize) -> Self {
        let most = bytes / Recycling::bytes(vocab_size).max(1);
        Self {
            vocab_size,
            turn: 0,
            tables: Places::new(most.clamp(1, MOST_TENANTS)),
            yields: Places::new(MOST_TENANTS),
            passing: Yields::default(),
        }
    }

    /// What the tenant with this key has for a verdict; nothing yet if it is new, or was long ago.
    /// `recycles` says whether the request has a part in its table.
    pub fn of(&mut self, key: K, recycles: bool) -> Tenant<'_> {
        self.turn += 1;
        let recycling = if recycles {
            let new = || Recycling::new(self.vocab_size);
            self.tables.of(key, self.turn, new)
        } else {
            None
        };
        self.passing = Yields::default();
        let yields = self.yields.of(key, self.turn, Yields::default);
        Tenant {
            recycling,
            yields: yields.unwrap_or(&mut self.passing),
        }
    }
}

/// What keys have, as many as there are places.
#[derive(Clone, Debug)]
struct Places<K, V> {
    most: usize,
    /// Key, turn of the last use, and what there is.
    held: Vec<(K, u64, V)>,
}

impl<K: PartialEq, V> Places<K, V> {
    const fn new(most: usize) -> Self {
        Self {
            most,
            held: Vec::new(),
        }
    }

    /// What `key` has, at this turn; something new if it had nothing, or none if all places are in use.
    fn of(&mut self, key: K, turn: u64, new: impl FnOnce() -> V) -> Option<&mut V> {
        let known = self.held.iter().position(|(known, ..)| *known == key);
        let index = known.unwrap_or_else(|| {
            if self.held.len() >= self.most {
                self.give_up(turn);
            }
            self.held.len()
        });
        if index >= self.most {
            return None;
        }
        if index == self.held.len() {
            self.held.push((key, turn, new()));
        }
        let (_, used, value) = &mut self.held[index];
        *used = turn;
        Some(value)
    }

    /// Frees the place that was not used for longest, if that is long enough.
    fn give_up(&mut self, turn: u64) {
        let places = self.held.iter().map(|(_, used, _)| *used).enumerate();
        if let Some((oldest, used)) = places.min_by_key(|&(_, used)| used)
            && turn - used > IDLE
        {
            self.held.swap_remove(oldest);
        }
    }
}
