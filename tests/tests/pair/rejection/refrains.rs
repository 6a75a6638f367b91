//! A simulated language whose texts repeat themselves, so that what followed before is worth
//! proposing.

use foretoken_engine::{
    runner::{Logits, ModelRunner, PageCopy, RunnerError, RunnerInfo, SlotMove, StepPlan},
    sim::{SimOptions, SimRunner},
};
use foretoken_speculation::TokenId;

/// After most tokens what comes next depends on that token alone; after the others on everything
/// before, as in the language it is made of. Ranks have the same probabilities after both.
pub(super) struct Refrains {
    inner: SimRunner,
    /// Logits by rank.
    logits: Vec<f32>,
}

impl Refrains {
    /// Entries of its vocabulary: few, for there to be many repetitions.
    pub(super) const VOCAB: u32 = 16;

    pub(super) fn runner(options: SimOptions) -> Box<dyn ModelRunner> {
        Box::new(Self {
            inner: SimRunner::new(SimOptions {
                vocab_size: Self::VOCAB as usize,
                ..options
            }),
            logits: Vec::new(),
        })
    }

    /// Makes a row that of a context in which `token` is last and nothing before it matters.
    fn refrain(&mut self, token: TokenId, row: &mut [f32]) {
        if self.logits.is_empty() {
            self.logits.extend_from_slice(row);
            self.logits.sort_unstable_by(|a, b| b.total_cmp(a));
        }
        for (rank, &logit) in self.logits.iter().enumerate() {
            row[(3 * token.index() + 5 * rank + 1) % row.len()] = logit;
        }
    }
}

impl ModelRunner for Refrains {
    fn info(&self) -> &RunnerInfo {
        self.inner.info()
    }

    fn forward(&mut self, plan: &StepPlan, logits: &mut Logits) -> Result<(), RunnerError> {
        self.inner.forward(plan, logits)?;
        let wanted = plan.tokens.iter().zip(&plan.wants_logits);
        let wanted = wanted.filter(|(_, wanted)| **wanted);
        let rows = logits.values.chunks_exact_mut(logits.vocab_size);
        for ((token, _), row) in wanted.zip(rows) {
            if !token.0.is_multiple_of(4) {
                self.refrain(*token, row);
            }
        }
        Ok(())
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) {
        self.inner.copy_pages(copies);
    }

    fn move_slots(&mut self, moves: &[SlotMove]) {
        self.inner.move_slots(moves);
    }
}
