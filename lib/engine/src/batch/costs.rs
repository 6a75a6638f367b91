//! What steps cost, measured before anybody is served.

use std::time::{Duration, Instant};

use foretoken_speculation::TokenId;

use super::{Engine, Feed, Reuse, SeqError, StepError, Wants};

/// Rows of the steps that are measured, as far as the runner takes them. Those far apart come first:
/// they tell what a row costs, however few there is time for.
const ROWS: [usize; 12] = [1, 32, 8, 64, 4, 16, 2, 24, 12, 6, 3, 5];
/// Most of them.
const MOST: usize = 64;
/// Measurements that are made however long they take: fewer would say that rows are free.
const FEWEST: usize = 2;
/// Context below the measured rows.
const CONTEXT: usize = 32;
/// Steps per measurement; the fastest counts.
const REPEATS: usize = 3;

impl Engine {
    /// What steps take by their rows, fewest first, on a sequence of its own. What fails is left out, and so are
    /// all but the first two measurements that would begin after `budget`.
    ///
    /// # Errors
    ///
    /// [`SeqError`] if the sequence cannot be closed; everything else is left out.
    pub fn measure_steps(&mut self, budget: Duration) -> Result<Vec<(u32, Duration)>, SeqError> {
        let started = Instant::now();
        let info = self.info();
        let (positions, max_rows) = (info.max_positions, info.max_rows);
        let vocab_size = info.vocab_size.max(1);
        let tokens: Vec<TokenId> = (0..CONTEXT.max(MOST))
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
                if rows > max_rows || context.len() + rows > positions {
                    continue;
                }
                let in_time = || started.elapsed() <= budget;
                if measured.len() >= FEWEST && !in_time() {
                    break;
                }
                let took = (0..REPEATS)
                    .take_while(|&repeat| repeat == 0 || in_time())
                    .filter_map(|_| run(&tokens[..rows], Wants::All).ok())
                    .min();
                measured.extend(took.map(|took| (rows as u32, took)));
            }
        }
        self.close(seq)?;
        measured.sort_unstable();
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::{SimOptions, SimRunner};

    /// Rows that are measured, on a runner that is like this.
    fn measured(options: SimOptions, budget: Duration) -> Vec<u32> {
        let mut engine = Engine::new(Box::new(SimRunner::new(options)));
        let measured = engine.measure_steps(budget).expect("it is closed");
        assert_eq!(engine.usage().referenced, 0, "nothing is left of it");
        measured.into_iter().map(|(rows, _)| rows).collect()
    }

    #[test]
    fn what_fits_is_measured_and_two_sizes_whatever_they_take() {
        let all = [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64];
        let long = Duration::from_secs(60);
        let options = SimOptions::default;
        assert_eq!(measured(options(), long), all);
        assert_eq!(measured(options(), Duration::ZERO), [1, 32]);
        let (max_rows, max_positions, pages) = (8, 40, 3);
        let few_rows = SimOptions {
            max_rows,
            ..options()
        };
        assert_eq!(measured(few_rows, long), all[..7]);
        let short = SimOptions {
            max_positions,
            ..options()
        };
        // Half of the positions are context.
        assert_eq!(measured(short, long), all[..9]);
        let few_pages = SimOptions { pages, ..options() };
        // Of 48 tokens 32 are context.
        assert_eq!(measured(few_pages, long), all[..9]);
    }
}
