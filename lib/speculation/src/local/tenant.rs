//! What the requests of one tenant have in common, and no others see.

use alloc::vec::Vec;

use super::{Recycling, Yields};

/// What is learned from the requests of one tenant and proposed to them.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Which tokens followed which.
    pub recycling: Recycling,
    /// How good proposals turned out to be.
    pub yields: Yields,
}

/// The tenants that were served lately, by a key such as the salt of their prefix cache.
///
/// How soon a request's tokens come depends, a little, on what the table of its tenant holds, so a
/// table tells by its timing what was said before: the same leak as that of a shared prefix cache,
/// and closed the same way. Nothing in a [`Tenant`] is ever seen by a request with another key.
/// Tables are bounded in number; the one that was not used for longest gives way.
#[derive(Clone, Debug)]
pub struct Tenants<K> {
    vocab_size: u32,
    most: usize,
    turn: u64,
    /// Key, turn of the last use, and what there is.
    known: Vec<(K, u64, Tenant)>,
}

impl<K: PartialEq> Tenants<K> {
    /// Tables of tokens below `vocab_size`, of as many tenants as fit into `bytes`, but of one at
    /// least.
    pub fn new(vocab_size: u32, bytes: usize) -> Self {
        Self {
            vocab_size,
            most: (bytes / Recycling::bytes(vocab_size).max(1)).max(1),
            turn: 0,
            known: Vec::new(),
        }
    }

    /// What the tenant with this key has; empty if it is new, or was long ago.
    pub fn of(&mut self, key: K) -> &mut Tenant {
        self.turn += 1;
        let known = self.known.iter().position(|(known, ..)| *known == key);
        let index = known.unwrap_or_else(|| {
            if self.known.len() >= self.most {
                let ages = self.known.iter().enumerate();
                if let Some((oldest, _)) = ages.min_by_key(|(_, (_, used, _))| *used) {
                    self.known.swap_remove(oldest);
                }
            }
            let tenant = Tenant {
                recycling: Recycling::new(self.vocab_size),
                yields: Yields::default(),
            };
            self.known.push((key, 0, tenant));
            self.known.len() - 1
        });
        let (_, used, tenant) = &mut self.known[index];
        *used = self.turn;
        tenant
    }
}
