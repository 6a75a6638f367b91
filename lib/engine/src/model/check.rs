//! Whether a step keeps to the runner's limits and does not contradict itself, so that the
//! kernels need not ask.

use crate::runner::{PAGE_TOKENS, RunnerError, RunnerInfo, SequenceRows, StepPlan, Tail};

/// Slots a speculative tail may have: bits of an ancestor word.
const TAIL_SLOTS: u64 = 64;

/// Checks everything about a step that a kernel relies on.
pub(super) fn step(plan: &StepPlan, info: &RunnerInfo) -> Result<(), RunnerError> {
    let rows = plan.tokens.len();
    if rows > info.max_rows {
        return Err(RunnerError::TooManyRows {
            rows,
            limit: info.max_rows,
        });
    }
    if plan.positions.len() != rows || plan.wants_logits.len() != rows {
        return Err(RunnerError::Malformed(
            "tokens, positions and wishes differ in number",
        ));
    }
    let vocab_size = info.vocab_size;
    if let Some(&token) = plan.tokens.iter().find(|t| t.0 as usize >= vocab_size) {
        return Err(RunnerError::UnknownToken { token, vocab_size });
    }
    let limit = info.max_positions;
    if let Some(&position) = plan.positions.iter().find(|p| **p as usize >= limit) {
        return Err(RunnerError::TooLong { position, limit });
    }
    if plan.pages.iter().any(|page| page.0 as usize >= info.pages) {
        return Err(RunnerError::Malformed("a page is outside the pool"));
    }
    let mut covered = 0;
    for sequence in &plan.sequences {
        covered += sequence.rows as usize;
        check_sequence(plan, sequence)?;
    }
    if covered == rows {
        Ok(())
    } else {
        Err(RunnerError::Malformed(
            "the sequences' rows do not add up to the step's",
        ))
    }
}

fn check_sequence(plan: &StepPlan, sequence: &SequenceRows) -> Result<(), RunnerError> {
    if sequence.rows == 0 {
        return Err(RunnerError::Malformed("a sequence without rows"));
    }
    let Some(pages) = plan.pages.get(sequence.pages.clone()) else {
        return Err(RunnerError::Malformed("a page table outside the plan"));
    };
    let end = u64::from(sequence.first_slot) + u64::from(sequence.rows);
    if end > (pages.len() * PAGE_TOKENS) as u64 {
        return Err(RunnerError::Malformed(
            "a page table that does not cover its rows",
        ));
    }
    let Tail::Tree { trunk_len, masks } = &sequence.tail else {
        return Ok(());
    };
    let Some(masks) = plan.ancestors.get(masks.clone()) else {
        return Err(RunnerError::Malformed("ancestor masks outside the plan"));
    };
    if masks.len() != sequence.rows as usize {
        return Err(RunnerError::Malformed("not one ancestor mask per row"));
    }
    let Some(earlier) = sequence.first_slot.checked_sub(*trunk_len).map(u64::from) else {
        return Err(RunnerError::Malformed(
            "a trunk that reaches past the first row",
        ));
    };
    if earlier + u64::from(sequence.rows) > TAIL_SLOTS {
        return Err(RunnerError::Malformed(
            "a speculative tail of more than 64 slots",
        ));
    }
    for (own, mask) in (earlier..).zip(masks) {
        // Two shifts, since the last row's one shift would be by 64.
        let later = u64::MAX << own << 1;
        if mask & later != 0 {
            return Err(RunnerError::Malformed(
                "an ancestor that comes after its descendant",
            ));
        }
    }
    Ok(())
}
