//! Reference counts of pages.

use super::idle::IdleList;
use super::prefix::{Holder, Link, PageTokens, Prefixes};
use super::{Salt, Usage};
use crate::runner::PageIndex;

/// The pages of a runner.
#[derive(Debug)]
pub(crate) struct PagePool {
    /// Page tables that name each page.
    counts: Vec<u32>,
    free: Vec<PageIndex>,
    /// Published pages without references.
    idle: IdleList,
    prefixes: Prefixes,
}

impl PagePool {
    pub(crate) fn new(pages: usize, model_digest: &str) -> Self {
        Self::with_prefixes(pages, Prefixes::new(pages, model_digest))
    }

    pub(super) fn with_prefixes(pages: usize, prefixes: Prefixes) -> Self {
        Self {
            counts: vec![0; pages],
            free: (0..pages as u32).rev().map(PageIndex).collect(),
            idle: IdleList::new(pages),
            prefixes,
        }
    }

    /// A page with one reference and undefined content; evicts the page unused for longest when
    /// none is free.
    pub(crate) fn take(&mut self) -> Option<PageIndex> {
        let page = self.free.pop().or_else(|| {
            let page = self.idle.pop()?;
            self.prefixes.unpublish(page);
            Some(page)
        })?;
        self.counts[page.0 as usize] = 1;
        Some(page)
    }

    /// Adds a reference to a referenced page.
    pub(crate) fn retain(&mut self, page: PageIndex) {
        debug_assert!(
            self.counts[page.0 as usize] > 0,
            "{page:?} is not referenced"
        );
        self.counts[page.0 as usize] += 1;
    }

    /// Drops a reference. Release a table from its end: the pages of a prefix are then evicted
    /// before those they continue.
    pub(crate) fn release(&mut self, page: PageIndex) {
        let count = &mut self.counts[page.0 as usize];
        debug_assert!(*count > 0, "{page:?} is released twice");
        *count -= 1;
        if *count == 0 {
            if self.prefixes.is_published(page) {
                self.idle.push(page);
            } else {
                self.free.push(page);
            }
        }
    }

    /// Adds a reference to the published page that holds `tokens` after `parent`.
    pub(crate) fn find(&mut self, parent: Link, tokens: &PageTokens) -> Option<PageIndex> {
        let page = self.prefixes.find(parent, tokens)?;
        self.acquire(page);
        Some(page)
    }

    /// Publishes a referenced page that holds `tokens` after `parent`. Returns the page that the
    /// table is to name from now on: if another one holds the same, the reference moves to it,
    /// unless that would leave fewer pages available because other tables name this one too.
    pub(crate) fn publish(
        &mut self,
        parent: Link,
        tokens: &PageTokens,
        page: PageIndex,
    ) -> PageIndex {
        if self.prefixes.is_published(page) {
            return page;
        }
        match self.prefixes.publish(parent, tokens, page) {
            Holder::Other(_) if self.is_shared(page) => page,
            Holder::Other(holder) => {
                self.acquire(holder);
                self.release(page);
                holder
            }
            Holder::This { displaced } => {
                if let Some(old) = displaced.filter(|old| self.counts[old.0 as usize] == 0) {
                    self.idle.remove(old);
                    self.free.push(old);
                }
                page
            }
        }
    }

    /// Forgets what a referenced page holds, because it is about to be overwritten.
    pub(crate) fn unpublish(&mut self, page: PageIndex) {
        debug_assert_eq!(
            self.counts[page.0 as usize], 1,
            "{page:?} is not one sequence's own"
        );
        self.prefixes.unpublish(page);
    }

    /// The beginning of every text under `salt`.
    pub(crate) fn root(&self, salt: Salt) -> Link {
        self.prefixes.root(salt)
    }

    /// The beginning that ends with a published page.
    pub(crate) fn link(&self, page: PageIndex) -> Option<Link> {
        self.prefixes.link(page)
    }

    /// Whether more than one table names the page.
    pub(crate) fn is_shared(&self, page: PageIndex) -> bool {
        self.counts[page.0 as usize] > 1
    }

    /// Pages that [`Self::take`] can give.
    pub(crate) fn available(&self) -> usize {
        self.free.len() + self.idle.len()
    }

    pub(crate) fn usage(&self) -> Usage {
        let (free, cached) = (self.free.len(), self.idle.len());
        Usage {
            free,
            cached,
            referenced: self.counts.len() - free - cached,
        }
    }

    /// Compares counts with the page tables that there are.
    pub(crate) fn audit<'a>(
        &self,
        tables: impl Iterator<Item = &'a [PageIndex]>,
    ) -> Result<Usage, AuditError> {
        let mut counted = vec![0; self.counts.len()];
        for page in tables.flatten() {
            counted[page.0 as usize] += 1;
        }
        for (page, (&count, &tables)) in (0..).map(PageIndex).zip(self.counts.iter().zip(&counted))
        {
            if count != tables {
                return Err(AuditError::Count {
                    page,
                    count,
                    tables,
                });
            }
        }
        let mut seen = counted;
        for page in &self.free {
            seen[page.0 as usize] += 1;
            if self.prefixes.is_published(*page) {
                return Err(AuditError::Misplaced { page: *page });
            }
        }
        for page in self.idle.iter() {
            seen[page.0 as usize] += 1;
            if !self.prefixes.is_published(page) {
                return Err(AuditError::Misplaced { page });
            }
        }
        for (page, &seen) in (0..).map(PageIndex).zip(&seen) {
            let once = seen == 1 || (seen > 0 && self.counts[page.0 as usize] == seen);
            if !once {
                return Err(AuditError::Misplaced { page });
            }
        }
        self.prefixes.audit().ok_or(AuditError::Prefixes)?;
        Ok(self.usage())
    }

    /// Adds a reference to a published page.
    fn acquire(&mut self, page: PageIndex) {
        if self.counts[page.0 as usize] == 0 {
            self.idle.remove(page);
        }
        self.counts[page.0 as usize] += 1;
    }
}

/// How the accounting of pages is broken; a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuditError {
    /// A reference count is wrong.
    #[error("{page:?} has count {count} and is in {tables} page tables")]
    Count {
        /// The page.
        page: PageIndex,
        /// Its reference count.
        count: u32,
        /// Page tables that name it.
        tables: u32,
    },
    /// A page is not exactly one of free, cached and referenced.
    #[error("{page:?} is not exactly one of free, cached and referenced")]
    Misplaced {
        /// The page.
        page: PageIndex,
    },
    /// The index of published pages contradicts itself.
    #[error("the prefix index contradicts itself")]
    Prefixes,
    /// A page table does not fit its sequence's length.
    #[error("a sequence of {slots} slots has {pages} pages")]
    Table {
        /// Slots in use.
        slots: usize,
        /// Pages in its table.
        pages: usize,
    },
}
