//! Logical KV pages: who references which page, and which are worth keeping.
//!
//! ```text
//!           take                  release (unpublished)
//! free ------------> referenced ------------------------> free
//!   ^                 |      ^
//!   | evict   release |      | find
//!   |     (published) v      |
//!   +-------------- cached --+
//! ```
//!
//! A page is *published* once it is full and its tokens are known: later sequences with the same
//! beginning find it. Pages are device independent here: an index and a count; the memory is the
//! runner's.
//!
//! Invariants, checked by `PagePool::audit`: free, cached and referenced pages add up to the pool;
//! a page's count is the number of page tables that name it; exactly the published pages without
//! references can be evicted.
//!
//! Not here: when pages are written and copied ([`crate::batch`]).

mod idle;
mod pool;
mod prefix;
#[cfg(test)]
mod tests;

pub use self::pool::AuditError;
pub(crate) use self::pool::PagePool;
pub(crate) use self::prefix::Link;
use crate::runner::PAGE_TOKENS;

/// Separates prefix caches: pages computed under one salt are never found under another. The
/// router derives it from the tenant, so that nobody can time another tenant's prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Salt(pub [u8; 32]);

impl Salt {
    /// The salt of a name, for example a tenant's.
    pub fn of(name: &str) -> Self {
        Self(*blake3::hash(name.as_bytes()).as_bytes())
    }

    /// The salt of what `owner`, a path of names, tells apart by `own`.
    pub fn owned(owner: [&str; 2], own: [u8; 32]) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&own);
        for name in owner {
            hasher.update(&(name.len() as u64).to_le_bytes());
            hasher.update(name.as_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }
}

/// How the pages of a pool are used; the three add up to the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Hold nothing.
    pub free: usize,
    /// Hold a cached prefix that no sequence references; evicted when needed.
    pub cached: usize,
    /// Belong to at least one sequence.
    pub referenced: usize,
}

/// Pages that `slots` slots occupy.
pub(crate) fn pages_for(slots: usize) -> usize {
    slots.div_ceil(PAGE_TOKENS)
}
