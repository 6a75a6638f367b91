//! What steps cost, measured before anybody is served.

use std::time::{Duration, Instant};

use foretoken_engine::batch::{Engine, Feed, Reuse, StepError, Wants};
use foretoken_speculation::{TokenId, control::StepCost};

/// Rows of the steps that are measured, as far as the runner takes them.
const ROWS: [usize; 12] = [1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64];
/// Context below the measured rows.
const CONTEXT: usize = 32;
/// Steps per measurement; the fastest counts.
const REPEATS: usize = 3;
/// No measurement is begun after this: a large model knows its curve well enough by then.
const BUDGET: Duration = Duration::from_millis(1500);

/// Measures the cost of steps by their rows on a scratch sequence. What fails is left out: the
/// curve is refined while serving anyway.
pub(crate) fn measure(engine: &mut Engine) -> StepCost {
    let started = Instant::now();
    let mut measured = Vec::new();
    let (positions, max_rows) = (engine.info().max_positions, engine.info().max_rows);
    let tokens: Vec<TokenId> = (0..CONTEXT.max(ROWS[ROWS.len() - 1]))
        .map(|i| TokenId((i % engine.info().vocab_size.max(1)) as u32))
        .collect();
    let context = &tokens[..CONTEXT.min(positions / 2).min(max_rows).max(1)];
    let seq = engine.open(context, Reuse::Off);
    let mut run = |rows: &[TokenId], logits| -> Result<Duration, StepError> {
        let begun = Instant::now();
        engine.step(&[Feed {
            seq,
            tokens: rows,
            tree: None,
            logits,
        }])?;
        let took = begun.elapsed();
        engine.truncate(seq, context.len())?;
        Ok(took)
    };
    if run(context, Wants::Last).is_ok() {
        for rows in ROWS {
            if rows > max_rows || context.len() + rows > positions || started.elapsed() > BUDGET {
                break;
            }
            let took = (0..REPEATS)
                .filter_map(|_| run(&tokens[..rows], Wants::All).ok())
                .min();
            measured.extend(took.map(|took| (rows as u32, took)));
        }
    }
    if let Err(error) = engine.close(seq) {
        tracing::error!(%error, "the warm-up lost its sequence");
    }
    tracing::info!(?measured, "step costs measured");
    StepCost::new(measured)
}
