//! Logical KV pages: who references which page, and which are worth keeping.

/// Separates prefix caches: pages computed under one salt are never found under another. The
/// router derives it from the tenant, so that nobody can time another tenant's prompts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Salt(pub [u8; 32]);

impl Salt {
    /// The salt of a name, for example a tenant's.
    pub fn of(name: &str) -> Self {
        Self(*blake3::hash(name.as_bytes()).as_bytes())
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
