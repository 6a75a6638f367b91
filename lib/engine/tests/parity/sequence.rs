//! Sequences on a runner, without any batching above it.

use foretoken_engine::model::CpuRunner;
use foretoken_engine::runner::{
    Logits, ModelRunner, PAGE_TOKENS, PageIndex, SequenceRows, StepPlan, Tail,
};
use foretoken_speculation::TokenId;

/// A sequence: its pages and how many of its slots are filled.
#[derive(Clone)]
pub(crate) struct Sequence {
    pub(crate) pages: Vec<PageIndex>,
    pub(crate) len: usize,
}

impl Sequence {
    /// An empty sequence with pages `first`, `first + 1`, ... for `slots` slots.
    pub(crate) fn new(first: u32, slots: usize) -> Self {
        Self::on((first..first + slots.div_ceil(PAGE_TOKENS) as u32).collect())
    }

    /// An empty sequence on the given pages.
    pub(crate) fn on(pages: Vec<u32>) -> Self {
        Self {
            pages: pages.into_iter().map(PageIndex).collect(),
            len: 0,
        }
    }
}

/// The rows of one sequence in a step.
pub(crate) struct Rows<'a> {
    pub(crate) sequence: &'a mut Sequence,
    pub(crate) tokens: &'a [u32],
    /// For a tree: where the speculative tail starts, and each row's parent as an index into the
    /// tail (`None` hangs on the trunk).
    pub(crate) tree: Option<(usize, &'a [Option<usize>])>,
}

/// Causal rows.
pub(crate) fn causal<'a>(sequence: &'a mut Sequence, tokens: &'a [u32]) -> Rows<'a> {
    Rows {
        sequence,
        tokens,
        tree: None,
    }
}

/// Runs one step and returns the logits of every row, or of the last row of each sequence.
pub(crate) fn step(runner: &mut CpuRunner, batch: &mut [Rows<'_>], all: bool) -> Vec<Vec<f32>> {
    let mut plan = StepPlan::default();
    for rows in batch.iter_mut() {
        append(&mut plan, rows, all);
    }
    let mut logits = Logits::default();
    runner.forward(&plan, &mut logits).unwrap();
    (0..logits.rows()).map(|i| logits.row(i).to_vec()).collect()
}

fn append(plan: &mut StepPlan, rows: &mut Rows<'_>, all: bool) {
    let count = rows.tokens.len();
    let first_slot = rows.sequence.len;
    let tail = match rows.tree {
        None => {
            plan.positions
                .extend((first_slot..first_slot + count).map(|p| p as u32));
            Tail::Causal
        }
        Some((trunk_len, parents)) => {
            let earlier = first_slot - trunk_len;
            let from = plan.ancestors.len();
            let masks = ancestors(parents);
            for mask in &masks[earlier..earlier + count] {
                plan.positions.push(trunk_len as u32 + mask.count_ones());
                plan.ancestors.push(*mask);
            }
            Tail::Tree {
                trunk_len: trunk_len as u32,
                masks: from..plan.ancestors.len(),
            }
        }
    };
    plan.tokens.extend(rows.tokens.iter().map(|t| TokenId(*t)));
    plan.wants_logits
        .extend((0..count).map(|i| all || i + 1 == count));
    let from = plan.pages.len();
    let covering = (first_slot + count).div_ceil(PAGE_TOKENS);
    plan.pages.extend(&rows.sequence.pages[..covering]);
    plan.sequences.push(SequenceRows {
        rows: count as u32,
        first_slot: first_slot as u32,
        pages: from..plan.pages.len(),
        tail,
    });
    rows.sequence.len += count;
}

/// Ancestor words of a tree given by parents.
fn ancestors(parents: &[Option<usize>]) -> Vec<u64> {
    let mut masks: Vec<u64> = Vec::new();
    for parent in parents {
        masks.push(parent.map_or(0, |p| masks[p] | 1 << p));
    }
    masks
}

/// Index of the largest value, the first of equals.
pub(crate) fn argmax(row: &[f32]) -> u32 {
    let best = row
        .iter()
        .enumerate()
        .fold(0, |best, (i, x)| if *x > row[best] { i } else { best });
    best as u32
}

/// Asserts equality in every bit.
#[track_caller]
pub(crate) fn assert_same_bits(found: &[f32], wanted: &[f32], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(wanted).enumerate() {
        assert!(
            a.to_bits() == b.to_bits(),
            "{what}: logit {i} is {a:e}, alone it is {b:e}"
        );
    }
}
