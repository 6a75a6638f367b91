//! What steps cost, measured before anybody is served.

use std::time::{Duration, Instant};

use foretoken_speculation::TokenId;

use super::{Engine, Feed, Reuse, SeqError, StepError, Wants};

/// Rows of the steps that are measured, as far as the runner takes them.
const ROWS: [usize; 12] = [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64];
/// Context below the measured rows.
const CONTEXT: usize = 32;
/// Steps per measurement; the fastest counts.
const REPEATS: usize = 3;

impl Engine {
    /// What steps take by their rows, on a sequence of its own. What fails is left out, and so are
    /// measurements that would begin after `budget`: the first few show a large model's curve well
    /// enough.
    ///
    /// # Errors
    ///
    /// [`SeqError`] if the sequence cannot be closed; everything else is left out.
    pub fn measure_steps(&mut self, budget: Duration) -> Result<Vec<(u32, Duration)>, SeqError> {
        let started = Instant::now();
        let info = self.info();
        let (positions, max_rows) = (info.max_positions, info.max_rows);
        let vocab_size = info.vocab_size.max(1);
        let tokens: Vec<TokenId> = (0..CONTEXT.max(ROWS[ROWS.len() - 1]))
            .map(|i| TokenId((i % vocab_size) as u32))
            .collect();
        let context = &tokens[..CONTEXT.min(positions / 2).min(max_rows).max(1)];
        let seq = self.open(context, Reuse::Off);
        let mut run = |tokens: &[TokenId], logits| -> Result<Duration, StepError> {
            let begun = Instant::now();
            self.step(&[Feed {
                seq,
                tokens,
                tree: None,
                logits,
            }])?;
            let took = begun.elapsed();
            self.truncate(seq, context.len())?;
            Ok(took)
        };
        let mut measured = Vec::new();
        if run(context, Wants::Last).is_ok() {
            for rows in ROWS {
                let fits = rows <= max_rows && context.len() + rows <= positions;
                if !fits || started.elapsed() > budget {
                    break;
                }
                let took = (0..REPEATS)
                    .filter_map(|_| run(&tokens[..rows], Wants::All).ok())
                    .min();
                measured.extend(took.map(|took| (rows as u32, took)));
            }
        }
        self.close(seq)?;
        Ok(measured)
    }
}
