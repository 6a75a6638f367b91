//! Cached pages in the order in which they will be evicted.

use crate::runner::PageIndex;

/// A list over page indices, linked through arrays so that a page can leave from anywhere in
/// constant time and nothing is allocated after construction.
#[derive(Debug)]
pub(super) struct IdleList {
    /// Neighbours of each page, and of the list's ends at index `pages`.
    links: Vec<Neighbours>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Neighbours {
    before: u32,
    after: u32,
}

impl IdleList {
    pub(super) fn new(pages: usize) -> Self {
        let links = (0..=pages as u32).map(|page| Neighbours {
            before: page,
            after: page,
        });
        Self {
            links: links.collect(),
            len: 0,
        }
    }

    /// Adds a page at the end: the last to be evicted.
    pub(super) fn push(&mut self, page: PageIndex) {
        let end = self.end();
        let last = self.links[end as usize].before;
        self.links[page.0 as usize] = Neighbours {
            before: last,
            after: end,
        };
        self.links[last as usize].after = page.0;
        self.links[end as usize].before = page.0;
        self.len += 1;
    }

    /// Takes a page that is in the list out of it.
    pub(super) fn remove(&mut self, page: PageIndex) {
        let Neighbours { before, after } = self.links[page.0 as usize];
        self.links[before as usize].after = after;
        self.links[after as usize].before = before;
        self.len -= 1;
    }

    /// Takes the first page: the one unused for longest.
    pub(super) fn pop(&mut self) -> Option<PageIndex> {
        let first = self.iter().next()?;
        self.remove(first);
        Some(first)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = PageIndex> + '_ {
        let end = self.end();
        let next = move |page: &u32| Some(self.links[*page as usize].after);
        let pages = std::iter::successors(next(&end), next);
        pages.take_while(move |page| *page != end).map(PageIndex)
    }

    fn end(&self) -> u32 {
        self.links.len() as u32 - 1
    }
}
