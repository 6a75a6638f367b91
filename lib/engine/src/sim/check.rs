//! Whether a step's plan is sound. The simulated runner is strict, because it is what batching is
//! tested on.

use crate::runner::{PAGE_TOKENS, RunnerError, RunnerInfo, SequenceRows, StepPlan, Tail};

/// Remembers, across steps, which sequence of a step writes which page.
#[derive(Debug)]
pub(super) struct Checker {
    /// Per page: one more than the number of the latest sequence that wrote it, counted over all
    /// steps.
    writer: Vec<u64>,
    /// Sequences of all steps before this one.
    past: u64,
}

impl Checker {
    pub(super) fn new(pages: usize) -> Self {
        Self {
            writer: vec![0; pages],
            past: 0,
        }
    }

    /// Checks a plan against the runner's limits, itself, and the rule that no sequence reads a
    /// page while another one writes to it.
    pub(super) fn check(&mut self, plan: &StepPlan, info: &RunnerInfo) -> Result<(), RunnerError> {
        check_rows(plan, info)?;
        for sequence in &plan.sequences {
            check_sequence(plan, sequence, info)?;
        }
        let base = self.past;
        self.past += plan.sequences.len() as u64;
        for (sequence, number) in plan.sequences.iter().zip(base + 1..) {
            for page in written_pages(plan, sequence) {
                if self.writer[page] > base {
                    return Err(RunnerError::Malformed("two sequences write to one page"));
                }
                self.writer[page] = number;
            }
        }
        for (sequence, number) in plan.sequences.iter().zip(base + 1..) {
            for page in &plan.pages[sequence.pages.clone()] {
                let writer = self.writer[page.0 as usize];
                if writer > base && writer != number {
                    return Err(RunnerError::Malformed(
                        "a sequence reads a page being written",
                    ));
                }
            }
        }
        Ok(())
    }
}

fn check_rows(plan: &StepPlan, info: &RunnerInfo) -> Result<(), RunnerError> {
    let rows = plan.tokens.len();
    if rows > info.max_rows {
        return Err(RunnerError::TooManyRows {
            rows,
            limit: info.max_rows,
        });
    }
    if plan.positions.len() != rows || plan.wants_logits.len() != rows {
        return Err(RunnerError::Malformed("rows differ in number"));
    }
    if plan
        .sequences
        .iter()
        .map(|s| s.rows as usize)
        .sum::<usize>()
        != rows
    {
        return Err(RunnerError::Malformed("the sequences' rows do not add up"));
    }
    for &token in &plan.tokens {
        if token.index() >= info.vocab_size {
            return Err(RunnerError::UnknownToken {
                token,
                vocab_size: info.vocab_size,
            });
        }
    }
    for &position in &plan.positions {
        if position as usize >= info.max_positions {
            return Err(RunnerError::TooLong {
                position,
                limit: info.max_positions,
            });
        }
    }
    Ok(())
}

fn check_sequence(
    plan: &StepPlan,
    sequence: &SequenceRows,
    info: &RunnerInfo,
) -> Result<(), RunnerError> {
    let end = (sequence.first_slot + sequence.rows) as usize;
    if sequence.rows == 0 {
        return Err(RunnerError::Malformed("a sequence without rows"));
    }
    let Some(pages) = plan.pages.get(sequence.pages.clone()) else {
        return Err(RunnerError::Malformed("a page table out of range"));
    };
    if pages.len() * PAGE_TOKENS < end {
        return Err(RunnerError::Malformed("a page table too short"));
    }
    if pages.iter().any(|page| page.0 as usize >= info.pages) {
        return Err(RunnerError::Malformed("a page outside the pool"));
    }
    if let Tail::Tree { trunk_len, masks } = &sequence.tail {
        if plan
            .ancestors
            .get(masks.clone())
            .is_none_or(|m| m.len() != sequence.rows as usize)
        {
            return Err(RunnerError::Malformed("a tree needs one mask per row"));
        }
        if *trunk_len > sequence.first_slot || end - *trunk_len as usize > 64 {
            return Err(RunnerError::Malformed("a tail must hold 1 to 64 slots"));
        }
        let first = sequence.first_slot - trunk_len;
        let ahead = |(i, mask): (u32, &u64)| mask.checked_shr(first + i + 1).unwrap_or(0) != 0;
        if (0..).zip(&plan.ancestors[masks.clone()]).any(ahead) {
            return Err(RunnerError::Malformed("a row sees a later one"));
        }
    }
    Ok(())
}

fn written_pages<'a>(plan: &'a StepPlan, seq: &SequenceRows) -> impl Iterator<Item = usize> + 'a {
    let first = seq.first_slot as usize / PAGE_TOKENS;
    let last = (seq.first_slot + seq.rows - 1) as usize / PAGE_TOKENS;
    plan.pages[seq.pages.clone()][first..=last]
        .iter()
        .map(|page| page.0 as usize)
}
