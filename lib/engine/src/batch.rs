//! Sequences over a model: who owns which pages, and one ragged step for all of them.
//!
//! ```text
//! open --cached pages--> Sequence --Feed--> step --StepPlan--> ModelRunner
//!                          ^                 |
//!                          +-- truncate, accept_path <-- verdict on the logits
//! ```
//!
//! A sequence is a *trunk* (tokens in order, all with KV) and, while a token tree is being
//! verified, a *tail* of tree nodes. Feeding tokens without a tree extends the trunk: a window of
//! proposed tokens is fed like any others and what was rejected is taken back by
//! [`Engine::truncate`].
//!
//! Invariants, checked by [`Engine::audit`]: every page is free, cached or referenced; a page's
//! reference count is the number of page tables that name it; a shared page is never written where
//! another sequence can see it. A failed call changes no sequence.
//!
//! Not here: who runs and when ([`crate::schedule`]), sampling (`foretoken-speculation`).

mod assemble;
mod costs;
mod fault;
mod feed;
mod sequence;
#[cfg(test)]
mod tests;

use foretoken_speculation::TokenId;

use self::assemble::Assembly;
pub use self::fault::{SeqError, StepError};
pub use self::feed::{Feed, StepLogits, Wants};
use self::sequence::Slab;
use crate::kv::{AuditError, PagePool, Salt, Usage, pages_for};
use crate::runner::{ModelRunner, PAGE_TOKENS, PageIndex, RunnerInfo};

/// Names an open sequence of one [`Engine`]. Ids are not reused: that of a closed sequence is an
/// error, never somebody else's sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SeqId {
    index: u32,
    generation: u32,
}

/// Whether a sequence takes part in the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// Neither reads from nor adds to the cache.
    Off,
    /// Shares pages with sequences of the same salt, and with no others.
    Within(Salt),
}

/// A model with the sequences it serves.
pub struct Engine {
    runner: Box<dyn ModelRunner>,
    pool: PagePool,
    sequences: Slab,
    /// The latest step; its buffers are kept for the next.
    step: Assembly,
}

impl Engine {
    /// An engine without sequences; owns all pages of the runner.
    pub fn new(runner: Box<dyn ModelRunner>) -> Self {
        let info = runner.info();
        let pool = PagePool::new(info.pages, &info.model_digest);
        Self {
            runner,
            pool,
            sequences: Slab::default(),
            step: Assembly::default(),
        }
    }

    /// Opens a sequence that is to begin with `tokens` and maps what the cache has of them: whole
    /// pages, but never all of `tokens`, because somebody will want the last one's logits. The
    /// caller goes on by feeding `tokens[self.cached_len(seq)?..]`.
    pub fn open(&mut self, tokens: &[TokenId], reuse: Reuse) -> SeqId {
        // What others have finished since their last step may be what this one begins with.
        for sequence in self.sequences.iter_mut() {
            sequence.publish(&mut self.pool);
        }
        let (id, sequence) = self.sequences.insert();
        let Reuse::Within(salt) = reuse else {
            return id;
        };
        let root = self.pool.root(salt);
        sequence.root = Some(root);
        let mut link = Some(root);
        for page_tokens in tokens[..tokens.len().saturating_sub(1)].as_chunks().0 {
            let Some(page) = link.and_then(|link| self.pool.find(link, page_tokens)) else {
                break;
            };
            sequence.pages.push(page);
            sequence.tokens.extend_from_slice(page_tokens);
            link = self.pool.link(page);
        }
        sequence.cached = sequence.tokens.len();
        sequence.published = sequence.pages.len();
        id
    }

    /// A new sequence with the first `len` tokens of `seq`'s trunk. Pages are shared; the last,
    /// partly filled one is copied when either side writes to it.
    pub fn fork(&mut self, seq: SeqId, len: usize) -> Result<SeqId, SeqError> {
        let parent = self.sequences.at_least(seq, len)?;
        let child = parent.fork(len, 0, &mut self.pool);
        let (id, sequence) = self.sequences.insert();
        *sequence = child;
        self.debug_audit();
        Ok(id)
    }

    /// A new sequence with the trunk of `seq` and, behind it, the nodes of `path` in its tail: each a
    /// child of the one before and the first a child of the trunk. `seq` stays as it is. Full pages
    /// of the trunk are shared, the rest is copied.
    pub fn fork_path(&mut self, seq: SeqId, path: &[u32]) -> Result<SeqId, StepError> {
        let parent = self.sequences.get(seq)?;
        parent.check_path(path)?;
        let (len, shared) = (parent.tokens.len(), parent.tokens.len() / PAGE_TOKENS);
        let needed = pages_for(len + path.len()) - shared;
        let available = self.pool.available();
        if needed > available {
            return Err(StepError::OutOfPages { needed, available });
        }
        let (copies, moves) = (&mut self.step.copies, &mut self.step.moves);
        copies.clear();
        let mut child = parent.fork(len, path.len(), &mut self.pool);
        child.make_room(path.len(), &mut self.pool, copies)?;
        let nodes = path.iter().map(|&node| parent.tail[node as usize]);
        child.tokens.extend(nodes);
        moves.clear();
        moves.extend(parent.moves_to(&child, path));
        self.runner.copy_pages(copies);
        self.runner.move_slots(moves);
        let (id, sequence) = self.sequences.insert();
        *sequence = child;
        self.debug_audit();
        Ok(id)
    }

    /// Puts the nodes of `path` in the tail of `fork` (each a child of the one before and the first a
    /// child of its trunk) behind the trunk's tokens in `seq`, which has these, too. What `seq` had after them
    /// is gone; `fork` stays as it is.
    pub fn graft(&mut self, seq: SeqId, fork: SeqId, path: &[u32]) -> Result<(), StepError> {
        if seq == fork {
            return Ok(self.accept_path(seq, path)?);
        }
        let from = self.sequences.get(fork)?;
        from.check_path(path)?;
        let len = from.tokens.len();
        let nodes: Vec<_> = path.iter().map(|&node| from.tail[node as usize]).collect();
        self.sequences.at_least(seq, len)?;
        if self.sequences.get(seq)?.tokens[..len] != self.sequences.get(fork)?.tokens[..] {
            return Err(SeqError::OtherTrunk { len }.into());
        }
        let needed = self.pages_needed_from(seq, len, path.len())?;
        let available = self.pool.available();
        if needed > available {
            return Err(StepError::OutOfPages { needed, available });
        }
        let (copies, moves) = (&mut self.step.copies, &mut self.step.moves);
        copies.clear();
        moves.clear();
        let sequence = self.sequences.get_mut(seq)?;
        sequence.truncate(len, &mut self.pool);
        if !path.is_empty() {
            sequence.make_room(path.len(), &mut self.pool, copies)?;
        }
        let (from, to) = (self.sequences.get(fork)?, self.sequences.get(seq)?);
        moves.extend(from.moves_to(to, path));
        self.sequences.get_mut(seq)?.tokens.extend(nodes);
        self.runner.copy_pages(copies);
        self.runner.move_slots(moves);
        self.debug_audit();
        Ok(())
    }

    /// Takes back tokens of the trunk, so that `len` are left, and the whole tail.
    pub fn truncate(&mut self, seq: SeqId, len: usize) -> Result<(), SeqError> {
        self.sequences
            .at_least(seq, len)?
            .truncate(len, &mut self.pool);
        self.debug_audit();
        Ok(())
    }

    /// Ends the tail: the nodes of `path`, each a child of the one before and the first a child of
    /// the trunk, join the trunk in order, the others are dropped.
    pub fn accept_path(&mut self, seq: SeqId, path: &[u32]) -> Result<(), SeqError> {
        let sequence = self.sequences.get_mut(seq)?;
        sequence.check_path(path)?;
        let moves = &mut self.step.moves;
        moves.clear();
        moves.extend(sequence.moves_to(sequence, path));
        // Pages shared with forks may be written here: a fork never sees slots past the trunk.
        self.runner.move_slots(moves);
        sequence.accept_path(path, &mut self.pool);
        self.debug_audit();
        Ok(())
    }

    /// Ends a sequence. Its full pages stay cached (if it takes part) until others need them.
    pub fn close(&mut self, seq: SeqId) -> Result<(), SeqError> {
        let sequence = self.sequences.get_mut(seq)?;
        sequence.publish(&mut self.pool);
        sequence.truncate(0, &mut self.pool);
        self.sequences.remove(seq);
        self.debug_audit();
        Ok(())
    }

    /// Runs one forward pass over all feeds. Nothing is split: more rows than the runner takes are
    /// an error. After an error every sequence is as before.
    pub fn step(&mut self, feeds: &[Feed<'_>]) -> Result<StepLogits<'_>, StepError> {
        assemble::check(feeds, &mut self.sequences, &self.pool, self.runner.info())?;
        self.step.clear();
        let ran = self.run(feeds);
        for feed in feeds {
            let sequence = self.sequences.get_mut(feed.seq)?;
            match ran {
                Ok(()) => sequence.append(feed),
                Err(_) => sequence.abandon(&mut self.pool),
            }
        }
        self.debug_audit();
        if let Err(error) = ran {
            self.step.clear();
            return Err(error);
        }
        Ok(self.logits())
    }

    /// Logits of the latest step that was sound enough to run; none if the runner then failed.
    pub fn logits(&self) -> StepLogits<'_> {
        StepLogits {
            logits: &self.step.logits,
            starts: &self.step.starts,
        }
    }

    /// The runner's facts.
    pub fn info(&self) -> &RunnerInfo {
        self.runner.info()
    }

    /// How many tokens of `seq` came from the cache when it was opened.
    pub fn cached_len(&self, seq: SeqId) -> Result<usize, SeqError> {
        Ok(self.sequences.get(seq)?.cached)
    }

    /// Tokens of the trunk.
    pub fn len(&self, seq: SeqId) -> Result<usize, SeqError> {
        Ok(self.sequences.get(seq)?.tokens.len())
    }

    /// The trunk.
    pub fn tokens(&self, seq: SeqId) -> Result<&[TokenId], SeqError> {
        Ok(&self.sequences.get(seq)?.tokens)
    }

    /// Nodes of the tail, in the order they were fed.
    pub fn tail(&self, seq: SeqId) -> Result<&[TokenId], SeqError> {
        Ok(&self.sequences.get(seq)?.tail)
    }

    /// Pages that a step can take: free ones and cached ones that no sequence references.
    pub fn free_pages(&self) -> usize {
        self.pool.available()
    }

    /// Pages that feeding `rows` more rows to `seq` would take from [`Self::free_pages`].
    pub fn pages_needed(&self, seq: SeqId, rows: usize) -> Result<usize, SeqError> {
        Ok(self.sequences.get(seq)?.pages_needed(rows, &self.pool))
    }

    /// The same once `seq` is no longer than `keep`, less what it gives back by that.
    pub fn pages_needed_from(
        &self,
        seq: SeqId,
        keep: usize,
        rows: usize,
    ) -> Result<usize, SeqError> {
        let sequence = self.sequences.get(seq)?;
        Ok(sequence.pages_needed_from(keep, rows, &self.pool))
    }

    /// Pages that closing `seq` would give back: those no other sequence references.
    pub fn owned_pages(&self, seq: SeqId) -> Result<usize, SeqError> {
        let pages = &self.sequences.get(seq)?.pages;
        Ok(pages
            .iter()
            .filter(|page| !self.pool.is_shared(**page))
            .count())
    }

    /// The page table of `seq`: pages of its trunk and of its tail, in order and none twice. Others
    /// may name the same.
    pub fn pages(&self, seq: SeqId) -> Result<&[PageIndex], SeqError> {
        Ok(&self.sequences.get(seq)?.pages)
    }

    /// Whether the next row of `seq` must copy a page first, because a fork shares it.
    pub fn shares_tail(&self, seq: SeqId) -> Result<bool, SeqError> {
        Ok(self.sequences.get(seq)?.shared_tail(&self.pool).is_some())
    }

    /// How the pages are used.
    pub fn usage(&self) -> Usage {
        self.pool.usage()
    }

    /// Checks the accounting of all pages; used by tests, and after every change in debug builds.
    pub fn audit(&self) -> Result<Usage, AuditError> {
        for sequence in self.sequences.iter() {
            let (slots, pages) = (sequence.slots(), sequence.pages.len());
            if pages != pages_for(slots) {
                return Err(AuditError::Table { slots, pages });
            }
        }
        self.pool.audit(
            self.sequences
                .iter()
                .map(|sequence| sequence.pages.as_slice()),
        )
    }

    /// Gives every feed the pages it writes to and runs the model on them.
    fn run(&mut self, feeds: &[Feed<'_>]) -> Result<(), StepError> {
        for feed in feeds {
            let sequence = self.sequences.get_mut(feed.seq)?;
            // All before the end is final now: whoever wanted it back has truncated.
            sequence.publish(&mut self.pool);
            sequence.make_room(feed.tokens.len(), &mut self.pool, &mut self.step.copies)?;
            sequence.plant(feed.tree.unwrap_or_default());
            self.step.add(feed, sequence);
        }
        self.runner.copy_pages(&self.step.copies);
        self.runner
            .forward(&self.step.plan, &mut self.step.logits)?;
        Ok(())
    }

    fn debug_audit(&self) {
        debug_assert_eq!(self.audit().err(), None);
    }
}
