//! Which page holds the KV of which beginning of a text.
//!
//! A page's key is a hash of its tokens and of the key of the page before it; the first page's
//! parent is a hash of the model and the salt. A hit is verified: the entry must hold the same
//! tokens and name the same parent, so a collision of hashes costs a cache entry and never a
//! wrong token.

use std::collections::HashMap;

use foretoken_speculation::TokenId;

use super::Salt;
use crate::runner::{PAGE_TOKENS, PageIndex};

/// Tokens of a full page.
pub(crate) type PageTokens = [TokenId; PAGE_TOKENS];

/// Hash of a page's tokens and of all before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PageHash(pub(super) [u8; 32]);

/// Identity of one beginning of a text: two links are equal only if they were made for the same
/// entry, or for the same model and salt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    hash: PageHash,
    /// Number of the entry, never reused; 0 for the beginning itself.
    serial: u64,
}

/// Who holds a beginning after a page was offered for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// Another page did before.
    Other(PageIndex),
    /// The page offered.
    This {
        /// The page that was published under the same hash until now.
        displaced: Option<PageIndex>,
    },
}

/// Hash of a page, given that of its parent.
pub(super) type HashPage = fn(&PageHash, &PageTokens) -> PageHash;

/// All published pages.
#[derive(Debug)]
pub(super) struct Prefixes {
    model_digest: String,
    hash_page: HashPage,
    entries: HashMap<PageHash, Entry>,
    /// Key of each page, if it is published.
    keys: Vec<Option<PageHash>>,
    serial: u64,
}

#[derive(Debug)]
struct Entry {
    page: PageIndex,
    parent: Link,
    tokens: PageTokens,
    serial: u64,
}

impl Prefixes {
    pub(super) fn new(pages: usize, model_digest: &str) -> Self {
        Self::with_hash(pages, model_digest, hash_page)
    }

    pub(super) fn with_hash(pages: usize, model_digest: &str, hash_page: HashPage) -> Self {
        Self {
            model_digest: model_digest.to_owned(),
            hash_page,
            entries: HashMap::with_capacity(pages),
            keys: vec![None; pages],
            serial: 0,
        }
    }

    /// Publishes a page after `parent`. The page that holds the same beginning already goes on
    /// doing so. An entry of the same hash that holds another one gives way: it is either out of
    /// reach, because its parent was evicted and computed again, or a collision.
    pub(super) fn publish(&mut self, parent: Link, tokens: &PageTokens, page: PageIndex) -> Holder {
        let hash = (self.hash_page)(&parent.hash, tokens);
        let old = self.entries.get(&hash);
        if let Some(entry) = old.filter(|entry| entry.holds(parent, tokens)) {
            return Holder::Other(entry.page);
        }
        let displaced = old.map(|entry| entry.page);
        if let Some(displaced) = displaced {
            self.unpublish(displaced);
        }
        self.serial += 1;
        let entry = Entry {
            page,
            parent,
            tokens: *tokens,
            serial: self.serial,
        };
        self.entries.insert(hash, entry);
        self.keys[page.0 as usize] = Some(hash);
        Holder::This { displaced }
    }

    /// Forgets a page; does nothing if it is not published.
    pub(super) fn unpublish(&mut self, page: PageIndex) {
        if let Some(key) = self.keys[page.0 as usize].take() {
            self.entries.remove(&key);
        }
    }

    /// The beginning of every text under `salt`.
    pub(super) fn root(&self, salt: Salt) -> Link {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&salt.0);
        hasher.update(self.model_digest.as_bytes());
        Link {
            hash: PageHash(*hasher.finalize().as_bytes()),
            serial: 0,
        }
    }

    /// The page with `tokens` after `parent`.
    pub(super) fn find(&self, parent: Link, tokens: &PageTokens) -> Option<PageIndex> {
        let entry = self.entries.get(&(self.hash_page)(&parent.hash, tokens))?;
        entry.holds(parent, tokens).then_some(entry.page)
    }

    /// The beginning that ends with `page`, if it is published.
    pub(super) fn link(&self, page: PageIndex) -> Option<Link> {
        let hash = self.keys[page.0 as usize]?;
        self.entries.get(&hash).map(|entry| Link {
            hash,
            serial: entry.serial,
        })
    }

    pub(super) fn is_published(&self, page: PageIndex) -> bool {
        self.keys[page.0 as usize].is_some()
    }

    /// Number of published pages, or `None` if keys and entries contradict each other.
    pub(super) fn audit(&self) -> Option<usize> {
        let keyed = |page: usize, key: &PageHash| {
            self.entries
                .get(key)
                .is_some_and(|entry| entry.page.0 as usize == page)
        };
        let mut keys = self.keys.iter().enumerate();
        let sound = keys.all(|(page, key)| key.as_ref().is_none_or(|key| keyed(page, key)));
        let published = self.keys.iter().flatten().count();
        (sound && published == self.entries.len()).then_some(published)
    }
}

impl Entry {
    fn holds(&self, parent: Link, tokens: &PageTokens) -> bool {
        self.parent == parent && self.tokens == *tokens
    }
}

fn hash_page(parent: &PageHash, tokens: &PageTokens) -> PageHash {
    let mut bytes = [0; 32 + 4 * PAGE_TOKENS];
    bytes[..32].copy_from_slice(&parent.0);
    for (place, token) in bytes[32..].chunks_exact_mut(4).zip(tokens) {
        place.copy_from_slice(&token.0.to_le_bytes());
    }
    PageHash(*blake3::hash(&bytes).as_bytes())
}
