//! From feeds to the runner's plan: checks, positions, masks.

use super::sequence::{Sequence, Slab};
use super::{Feed, StepError, Wants};
use crate::kv::PagePool;
use crate::runner::{
    Logits, PageCopy, RunnerError, RunnerInfo, SequenceRows, SlotMove, StepPlan, Tail,
};

/// Most nodes of a tail: the bits of a mask.
const MAX_TAIL: usize = 64;

/// Buffers of one step.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    pub(super) plan: StepPlan,
    pub(super) logits: Logits,
    /// First wanted row of each feed, and the end of the last.
    pub(super) starts: Vec<usize>,
    pub(super) copies: Vec<PageCopy>,
    pub(super) moves: Vec<SlotMove>,
}

impl Assembly {
    /// Forgets the latest step. Its logits stay where they are: nobody can name their rows, and the
    /// next step overwrites them without filling the buffer with zeros first.
    pub(super) fn clear(&mut self) {
        let StepPlan {
            tokens,
            positions,
            wants_logits,
            sequences,
            pages,
            ancestors,
        } = &mut self.plan;
        tokens.clear();
        positions.clear();
        wants_logits.clear();
        sequences.clear();
        pages.clear();
        ancestors.clear();
        self.starts.clear();
        self.starts.push(0);
        self.copies.clear();
    }

    /// Adds the rows of a checked feed, whose sequence is prepared for them.
    pub(super) fn add(&mut self, feed: &Feed<'_>, sequence: &Sequence) {
        let plan = &mut self.plan;
        let rows = feed.tokens.len();
        let trunk_len = sequence.tokens.len() as u32;
        let tail = if feed.tree.is_some() {
            let masks = &sequence.masks[sequence.tail.len()..];
            plan.positions
                .extend(masks.iter().map(|mask| trunk_len + mask.count_ones() - 1));
            let first = plan.ancestors.len();
            plan.ancestors.extend_from_slice(masks);
            Tail::Tree {
                trunk_len,
                masks: first..plan.ancestors.len(),
            }
        } else {
            plan.positions.extend(trunk_len..trunk_len + rows as u32);
            Tail::Causal
        };
        let first_page = plan.pages.len();
        plan.pages.extend_from_slice(&sequence.pages);
        plan.sequences.push(SequenceRows {
            rows: rows as u32,
            first_slot: sequence.slots() as u32,
            pages: first_page..plan.pages.len(),
            tail,
        });
        plan.tokens.extend_from_slice(feed.tokens);
        let wanted = wanted_rows(feed);
        plan.wants_logits
            .extend((0..rows).map(|row| row >= rows - wanted));
        let start = self.starts.last().copied().unwrap_or(0);
        self.starts.push(start + wanted);
    }
}

/// Whether a step can run; nothing but the sequences' step stamps has changed after it.
pub(super) fn check(
    feeds: &[Feed<'_>],
    sequences: &mut Slab,
    pool: &PagePool,
    info: &RunnerInfo,
) -> Result<(), StepError> {
    let rows = feeds.iter().map(|feed| feed.tokens.len()).sum();
    if rows == 0 {
        return Err(StepError::Empty);
    }
    if rows > info.max_rows {
        return Err(RunnerError::TooManyRows {
            rows,
            limit: info.max_rows,
        }
        .into());
    }
    sequences.steps += 1;
    let step = sequences.steps;
    let mut needed = 0;
    for feed in feeds {
        let sequence = sequences.get_mut(feed.seq)?;
        if sequence.step == step {
            return Err(StepError::Repeated(feed.seq));
        }
        sequence.step = step;
        check_feed(feed, sequence, info)?;
        needed += sequence.pages_needed(feed.tokens.len(), pool);
    }
    let available = pool.available();
    if needed > available {
        return Err(StepError::OutOfPages { needed, available });
    }
    Ok(())
}

fn check_feed(feed: &Feed<'_>, sequence: &Sequence, info: &RunnerInfo) -> Result<(), StepError> {
    if feed.tokens.is_empty() {
        return Err(StepError::Empty);
    }
    for &token in feed.tokens {
        if token.index() >= info.vocab_size {
            let vocab_size = info.vocab_size;
            return Err(RunnerError::UnknownToken { token, vocab_size }.into());
        }
    }
    let longest = match feed.tree {
        None if !sequence.tail.is_empty() => return Err(StepError::TreeOpen(feed.seq)),
        None => feed.tokens.len(),
        Some(tree) => check_tree(feed, tree, sequence)?,
    };
    let end = sequence.tokens.len() + longest;
    if end > info.max_positions {
        let limit = info.max_positions;
        return Err(RunnerError::TooLong {
            position: end as u32 - 1,
            limit,
        }
        .into());
    }
    Ok(())
}

/// Checks the parents and returns the depth of the deepest node fed.
fn check_tree(
    feed: &Feed<'_>,
    tree: &[Option<u32>],
    sequence: &Sequence,
) -> Result<usize, StepError> {
    let tokens = feed.tokens.len();
    if tree.len() != tokens {
        return Err(StepError::Parents {
            tokens,
            parents: tree.len(),
        });
    }
    let old = sequence.tail.len();
    let nodes = old + tokens;
    if nodes > MAX_TAIL {
        return Err(StepError::TreeTooLarge {
            nodes,
            limit: MAX_TAIL,
        });
    }
    let mut depths = [0; MAX_TAIL];
    for (depth, mask) in depths.iter_mut().zip(&sequence.masks) {
        *depth = mask.count_ones() as usize;
    }
    for (node, parent) in (old..).zip(tree) {
        depths[node] = match *parent {
            None => 1,
            Some(parent) if (parent as usize) < node => depths[parent as usize] + 1,
            Some(parent) => return Err(StepError::ParentOrder { node, parent }),
        };
    }
    Ok(depths[old..nodes].iter().copied().max().unwrap_or(0))
}

fn wanted_rows(feed: &Feed<'_>) -> usize {
    match feed.logits {
        Wants::None => 0,
        Wants::Last => 1,
        Wants::All => feed.tokens.len(),
    }
}
