//! One sequence's tokens and page table, and the table of all sequences.

use foretoken_speculation::TokenId;

use super::{Feed, SeqError, SeqId, StepError};
use crate::kv::{Link, PagePool, pages_for};
use crate::runner::{PAGE_TOKENS, PageCopy, PageIndex, SlotMove};

/// A sequence. Slots 0 to `tokens.len()` hold the trunk, the tail's follow.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    /// The trunk.
    pub(super) tokens: Vec<TokenId>,
    /// Tokens of the tree under verification.
    pub(super) tail: Vec<TokenId>,
    /// Ancestors of each node of the tail, itself included, as bits.
    pub(super) masks: Vec<u64>,
    /// Pages of all slots.
    pub(super) pages: Vec<PageIndex>,
    /// Where its texts begin in the prefix cache, if it takes part.
    pub(super) root: Option<Link>,
    /// Tokens mapped when it was opened.
    pub(super) cached: usize,
    /// Pages offered to the cache so far.
    pub(super) published: usize,
    /// Step that last named it, to find repetitions.
    pub(super) step: u64,
}

impl Sequence {
    /// Drops the tail and what the trunk has past `len`.
    pub(super) fn truncate(&mut self, len: usize, pool: &mut PagePool) {
        self.tokens.truncate(len);
        self.tail.clear();
        self.masks.clear();
        self.published = self.published.min(len / PAGE_TOKENS);
        self.release_past_end(pool);
    }

    /// A sequence with the first `len` tokens of this one's trunk in the same pages, and room for
    /// as many more tokens.
    pub(super) fn fork(&self, len: usize, room: usize, pool: &mut PagePool) -> Self {
        let pages = self.pages[..pages_for(len)].to_vec();
        for &page in &pages {
            pool.retain(page);
        }
        let mut tokens = Vec::with_capacity(len + room);
        tokens.extend_from_slice(&self.tokens[..len]);
        Self {
            tokens,
            pages,
            root: self.root,
            published: self.published.min(len / PAGE_TOKENS),
            ..Self::default()
        }
    }

    /// Releases pages that hold no slot in use.
    fn release_past_end(&mut self, pool: &mut PagePool) {
        for page in self
            .pages
            .drain(pages_for(self.tokens.len() + self.tail.len())..)
            .rev()
        {
            pool.release(page);
        }
    }

    /// Offers the full pages of the trunk to the cache.
    pub(super) fn publish(&mut self, pool: &mut PagePool) {
        let Some(root) = self.root else { return };
        let full = self.tokens.as_chunks().0;
        debug_assert!(self.published <= full.len(), "truncation takes pages back");
        for (i, tokens) in full.iter().enumerate().skip(self.published) {
            let parent = if i == 0 {
                Some(root)
            } else {
                pool.link(self.pages[i - 1])
            };
            if let Some(parent) = parent {
                self.pages[i] = pool.publish(parent, tokens, self.pages[i]);
            }
        }
        self.published = full.len();
    }

    /// Takes pages for `rows` more slots; the page they begin in becomes the sequence's own, with
    /// a copy if others see it.
    pub(super) fn make_room(
        &mut self,
        rows: usize,
        pool: &mut PagePool,
        copies: &mut Vec<PageCopy>,
    ) -> Result<(), StepError> {
        let slots = self.slots();
        if let Some(from) = self.shared_tail(pool) {
            let to = take(pool)?;
            copies.push(PageCopy {
                from,
                to,
                slots: (slots % PAGE_TOKENS) as u32,
            });
            self.pages[slots / PAGE_TOKENS] = to;
            pool.release(from);
        } else if !slots.is_multiple_of(PAGE_TOKENS) {
            pool.unpublish(self.pages[slots / PAGE_TOKENS]);
        }
        while self.pages.len() < pages_for(slots + rows) {
            self.pages.push(take(pool)?);
        }
        Ok(())
    }

    /// Adds the masks of nodes that are about to be fed; their parents come before them.
    pub(super) fn plant(&mut self, tree: &[Option<u32>]) {
        for parent in tree {
            let above = parent.map_or(0, |parent| self.masks[parent as usize]);
            self.masks.push(above | 1 << self.masks.len());
        }
    }

    /// Adds what a step fed.
    pub(super) fn append(&mut self, feed: &Feed<'_>) {
        let end = if feed.tree.is_some() {
            &mut self.tail
        } else {
            &mut self.tokens
        };
        end.extend_from_slice(feed.tokens);
    }

    /// Takes back what was prepared for a step that failed.
    pub(super) fn abandon(&mut self, pool: &mut PagePool) {
        self.masks.truncate(self.tail.len());
        self.release_past_end(pool);
    }

    /// Whether `path` leads from the trunk down the tree.
    pub(super) fn check_path(&self, path: &[u32]) -> Result<(), SeqError> {
        let mut above = 0;
        for &node in path {
            let mask = self.masks.get(node as usize).copied().unwrap_or(0);
            let own = 1_u64.checked_shl(node).unwrap_or(0);
            if mask == 0 || mask != above | own {
                return Err(SeqError::NotAPath { node });
            }
            above = mask;
        }
        Ok(())
    }

    /// What brings the slots of a checked path in order behind the trunk, here or in another page
    /// table. Ids rise along a path, so no move overwrites what a later one reads.
    pub(super) fn moves_to<'a>(
        &'a self,
        other: &'a Self,
        path: &'a [u32],
    ) -> impl Iterator<Item = SlotMove> + 'a {
        let trunk = self.tokens.len();
        let moves = (0..).zip(path).map(move |(to, from)| SlotMove {
            from: self.place(trunk + *from as usize),
            to: other.place(trunk + to),
        });
        moves.filter(|moved| moved.from != moved.to)
    }

    /// Where a slot is.
    fn place(&self, slot: usize) -> (PageIndex, u32) {
        (self.pages[slot / PAGE_TOKENS], (slot % PAGE_TOKENS) as u32)
    }

    /// Makes a checked path part of the trunk.
    pub(super) fn accept_path(&mut self, path: &[u32], pool: &mut PagePool) {
        self.tokens
            .extend(path.iter().map(|node| self.tail[*node as usize]));
        self.tail.clear();
        self.masks.clear();
        self.release_past_end(pool);
    }

    /// Slots in use.
    pub(super) fn slots(&self) -> usize {
        self.tokens.len() + self.tail.len()
    }

    /// Pages that `rows` more rows would take.
    pub(super) fn pages_needed(&self, rows: usize, pool: &PagePool) -> usize {
        self.pages_needed_from(self.slots(), rows, pool)
    }

    /// Pages that `rows` more rows would take once all slots behind `keep` are gone, less those that are free
    /// by that.
    pub(super) fn pages_needed_from(&self, keep: usize, rows: usize, pool: &PagePool) -> usize {
        let keep = keep.min(self.slots());
        let kept = pages_for(keep);
        let copied = usize::from(rows > 0 && self.shared_end(keep, pool).is_some());
        let behind = self.pages[kept..].iter();
        let freed = behind.filter(|page| !pool.is_shared(**page)).count();
        (pages_for(keep + rows) + copied).saturating_sub(kept + freed)
    }

    /// The partly filled last page, if other sequences reference it as well.
    pub(super) fn shared_tail(&self, pool: &PagePool) -> Option<PageIndex> {
        self.shared_end(self.slots(), pool)
    }

    /// The page that `keep` slots fill in part, if other sequences reference it as well.
    fn shared_end(&self, keep: usize, pool: &PagePool) -> Option<PageIndex> {
        let partial = !keep.is_multiple_of(PAGE_TOKENS);
        let page = self.pages.get(keep / PAGE_TOKENS).copied();
        page.filter(|page| partial && pool.is_shared(*page))
    }
}

/// The step was checked to fit, so this does not fail unless the accounting is broken.
fn take(pool: &mut PagePool) -> Result<PageIndex, StepError> {
    pool.take().ok_or(StepError::OutOfPages {
        needed: 1,
        available: 0,
    })
}

/// All sequences, open and closed; buffers of closed ones are used again.
#[derive(Debug, Default)]
pub(super) struct Slab {
    entries: Vec<Entry>,
    closed: Vec<u32>,
    /// Steps so far, see [`Sequence::step`].
    pub(super) steps: u64,
}

#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    open: bool,
    sequence: Sequence,
}

impl Slab {
    /// A new, empty sequence.
    pub(super) fn insert(&mut self) -> (SeqId, &mut Sequence) {
        let index = self.closed.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            self.entries.len() as u32 - 1
        });
        let entry = &mut self.entries[index as usize];
        entry.open = true;
        entry.sequence.root = None;
        entry.sequence.cached = 0;
        (
            SeqId {
                index,
                generation: entry.generation,
            },
            &mut entry.sequence,
        )
    }

    /// Forgets an open sequence, whose pages are released.
    pub(super) fn remove(&mut self, id: SeqId) {
        let entry = &mut self.entries[id.index as usize];
        debug_assert!(
            entry.open && entry.sequence.pages.is_empty(),
            "{id:?} still holds pages"
        );
        entry.open = false;
        entry.generation = entry.generation.wrapping_add(1);
        self.closed.push(id.index);
    }

    pub(super) fn get(&self, id: SeqId) -> Result<&Sequence, SeqError> {
        let entry = self.entries.get(id.index as usize);
        let entry = entry.filter(|entry| entry.open && entry.generation == id.generation);
        entry
            .map(|entry| &entry.sequence)
            .ok_or(SeqError::Unknown(id))
    }

    pub(super) fn get_mut(&mut self, id: SeqId) -> Result<&mut Sequence, SeqError> {
        let entry = self.entries.get_mut(id.index as usize);
        let entry = entry.filter(|entry| entry.open && entry.generation == id.generation);
        entry
            .map(|entry| &mut entry.sequence)
            .ok_or(SeqError::Unknown(id))
    }

    /// The sequence, if its trunk has at least `len` tokens.
    pub(super) fn at_least(&mut self, id: SeqId, asked: usize) -> Result<&mut Sequence, SeqError> {
        let sequence = self.get_mut(id)?;
        let len = sequence.tokens.len();
        if asked > len {
            Err(SeqError::PastEnd { asked, len })
        } else {
            Ok(sequence)
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.entries
            .iter()
            .filter(|entry| entry.open)
            .map(|entry| &entry.sequence)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Sequence> {
        self.entries
            .iter_mut()
            .filter(|entry| entry.open)
            .map(|entry| &mut entry.sequence)
    }
}
