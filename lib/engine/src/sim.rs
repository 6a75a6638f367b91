//! A model without weights: a deterministic language with a set acceptance rate and a set latency.
//!
//! The logits of a row are a function of the tokens and positions that the row can see *through
//! its KV slots*: every slot keeps a mark of the token written to it and of what that token saw,
//! and a row's context is the sum of the marks it attends to. A wrong page, a missing copy, a
//! stale slot or a wrong ancestor mask therefore changes tokens, as it would with weights.
//!
//! After every context one token has probability .70, three more .15, .07 and .03, and the rest of
//! the vocabulary shares .05. A draft gives the target's own logits in the set fraction of
//! contexts and unrelated ones elsewhere. So greedily it is accepted exactly in that fraction `a`,
//! and with coupled noise or rejection sampling at temperature 1 in about `a + (1 - a) / 20`. If
//! asked to it comes near in some of the others, as real drafts do: the target's likeliest token is
//! then its second, third or fourth. That is what guesses of verdicts live on.
//!
//! Not here: sampling; text (tokens mean nothing).

mod check;
mod language;
#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

use foretoken_speculation::TokenId;

use self::check::Checker;
use self::language::{Context, Language, Mark};
use crate::runner::{
    Logits, ModelRunner, PAGE_TOKENS, PageCopy, PageIndex, RunnerError, RunnerInfo, SequenceRows,
    SlotMove, StepPlan, Tail,
};

/// Shorter waits spin: the system's timer would stretch them.
const SPIN_BELOW: Duration = Duration::from_micros(200);

/// A simulated model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimOptions {
    /// The language: a target and a draft of equal language, vocabulary and end token agree as
    /// far as `role` says.
    pub language: u64,
    /// Entries of the vocabulary, at least 16.
    pub vocab_size: usize,
    /// How sequences end, if they do.
    pub end: Option<End>,
    /// Whether it speaks the language itself or guesses.
    pub role: Role,
    /// Of the contexts in which a draft disagrees, the fraction in which it knows the target's four
    /// likeliest tokens, 0 to 1: it only has the likeliest of them second (70 %), third or fourth
    /// (15 % each). At temperature 1 it is accepted in about half of these.
    pub near: f64,
    /// Longest sequence.
    pub max_positions: usize,
    /// Pages of the KV pool.
    pub pages: usize,
    /// Most rows of a step.
    pub max_rows: usize,
    /// What a step costs.
    pub latency: Latency,
}

impl Default for SimOptions {
    /// A target of 512 tokens that never ends and takes no time.
    fn default() -> Self {
        Self {
            language: 0,
            vocab_size: 512,
            end: None,
            role: Role::Target,
            near: 0.0,
            max_positions: 4096,
            pages: 1024,
            max_rows: 256,
            latency: Latency::default(),
        }
    }
}

/// The token that ends a text, and how often the language chooses it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct End {
    /// The token.
    pub token: TokenId,
    /// Fraction of contexts after which it is the likeliest token, 0 to 1. After other contexts it
    /// never occurs, whatever the noise.
    pub rate: f64,
}

/// What a simulated model knows of its language.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Role {
    /// Everything.
    Target,
    /// In a fraction of contexts the same logits as the target, in the others different ones, see
    /// [`SimOptions::near`].
    Draft {
        /// The fraction, 0 to 1: its acceptance rate.
        agreement: f64,
    },
}

/// Time of a step: `base + rows * per_row + context * per_context_token`, where the context is the
/// sum of the lengths of all sequences in the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Of every step.
    pub base: Duration,
    /// Of every row.
    pub per_row: Duration,
    /// Of every token that is attended to, once per sequence.
    pub per_context_token: Duration,
}

impl Latency {
    /// Time of the step that `plan` describes.
    pub fn of(&self, plan: &StepPlan) -> Duration {
        let context: u32 = plan.sequences.iter().map(|s| s.first_slot + s.rows).sum();
        let rows = u32::try_from(plan.tokens.len()).unwrap_or(u32::MAX);
        self.base + self.per_row * rows + self.per_context_token * context
    }
}

/// A simulated model, see [`SimOptions`].
#[derive(Debug)]
pub struct SimRunner {
    info: RunnerInfo,
    language: Language,
    latency: Latency,
    checker: Checker,
    /// What each slot of the pool holds, page after page.
    slots: Vec<Mark>,
}

impl SimRunner {
    /// Builds the model. A vocabulary below 16 is raised to it, an end token outside the
    /// vocabulary is dropped.
    pub fn new(mut options: SimOptions) -> Self {
        options.vocab_size = options.vocab_size.max(16);
        options.end = options
            .end
            .filter(|end| end.token.index() < options.vocab_size);
        Self {
            info: RunnerInfo {
                vocab_size: options.vocab_size,
                max_positions: options.max_positions,
                pages: options.pages,
                max_rows: options.max_rows,
                model_digest: digest(&options),
                path: "sim".to_owned(),
            },
            language: Language::new(&options),
            latency: options.latency,
            checker: Checker::new(options.pages),
            slots: vec![Mark::POISON; options.pages * PAGE_TOKENS],
        }
    }

    /// Writes the marks of a sequence's rows and, of those that want it, the logits.
    fn run(&mut self, plan: &StepPlan, rows: &SequenceRows, first_row: usize, out: &mut Vec<f32>) {
        let pages = &plan.pages[rows.pages.clone()];
        let slot = |i: u32| place(pages[i as usize / PAGE_TOKENS], i % PAGE_TOKENS as u32);
        let (trunk_len, masks) = match &rows.tail {
            Tail::Causal => (rows.first_slot, None),
            Tail::Tree { trunk_len, masks } => (*trunk_len, Some(&plan.ancestors[masks.clone()])),
        };
        let mut trunk = Context::default();
        for i in 0..trunk_len {
            trunk = trunk.with(self.slots[slot(i)]);
        }
        for i in 0..rows.rows {
            let mut seen = trunk;
            if let Some(masks) = masks {
                // The row itself is no part of what its mark depends on.
                let own = 1 << (rows.first_slot + i - trunk_len);
                let mut ancestors = masks[i as usize] & !own;
                while ancestors != 0 {
                    seen = seen.with(self.slots[slot(trunk_len + ancestors.trailing_zeros())]);
                    ancestors &= ancestors - 1;
                }
            }
            let row = first_row + i as usize;
            let mark = self
                .language
                .mark(seen, plan.tokens[row], plan.positions[row]);
            self.slots[slot(rows.first_slot + i)] = mark;
            let seen = seen.with(mark);
            if masks.is_none() {
                trunk = seen;
            }
            if plan.wants_logits[row] {
                self.language.append_logits(seen, out);
            }
        }
    }
}

impl ModelRunner for SimRunner {
    fn info(&self) -> &RunnerInfo {
        &self.info
    }

    fn forward(&mut self, plan: &StepPlan, logits: &mut Logits) -> Result<(), RunnerError> {
        let due = Instant::now() + self.latency.of(plan);
        self.checker.check(plan, &self.info)?;
        logits.vocab_size = self.info.vocab_size;
        logits.stride = self.info.vocab_size;
        logits.values.clear();
        let mut first_row = 0;
        for rows in &plan.sequences {
            self.run(plan, rows, first_row, &mut logits.values);
            first_row += rows.rows as usize;
        }
        wait_until(due);
        Ok(())
    }

    fn copy_pages(&mut self, copies: &[PageCopy]) {
        for copy in copies {
            let from = place(copy.from, 0);
            self.slots
                .copy_within(from..from + copy.slots as usize, place(copy.to, 0));
        }
    }

    fn move_slots(&mut self, moves: &[SlotMove]) {
        for moved in moves {
            self.slots[place(moved.to.0, moved.to.1)] =
                self.slots[place(moved.from.0, moved.from.1)];
        }
    }
}

/// Index of a slot in the pool.
fn place(page: PageIndex, offset: u32) -> usize {
    page.0 as usize * PAGE_TOKENS + offset as usize
}

fn digest(options: &SimOptions) -> String {
    let SimOptions {
        language,
        vocab_size,
        end,
        role,
        near,
        ..
    } = options;
    let facts = format!("{language} {vocab_size} {end:?} {role:?} {near}");
    blake3::hash(facts.as_bytes()).to_hex().to_string()
}

fn wait_until(due: Instant) {
    let left = due.saturating_duration_since(Instant::now());
    if left >= SPIN_BELOW {
        std::thread::sleep(left);
    }
    while Instant::now() < due {
        std::hint::spin_loop();
    }
}
