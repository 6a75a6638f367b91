//! Steps that nobody waits for: after them weights and buffers are in memory and the threads awake,
//! so that the first session is no slower than the next; and it is known what steps cost.

use std::time::{Duration, Instant};

use foretoken_engine::batch::{Engine, Feed, Reuse, SeqError, Wants};
use foretoken_speculation::{TokenId, control::StepCost};

/// No measurement is begun so long after the first prefill.
const BUDGET: Duration = Duration::from_millis(500);

/// Prefills up to `prefill_rows` tokens on a scratch sequence and measures the cost of steps by their
/// rows. What fails is left out: the first session finds out by itself. Nothing if nothing was measured.
pub(crate) fn measure(engine: &mut Engine, prefill_rows: usize) -> Option<StepCost> {
    let started = Instant::now();
    let measured = prefill(engine, prefill_rows).and_then(|()| engine.measure_steps(BUDGET));
    let measured = measured.unwrap_or_else(|error| {
        tracing::error!(%error, "the warm-up lost its sequence");
        Vec::new()
    });
    tracing::info!(took = ?started.elapsed(), ?measured, "warm");
    (!measured.is_empty()).then(|| StepCost::new(measured))
}

fn prefill(engine: &mut Engine, rows: usize) -> Result<(), SeqError> {
    let info = engine.info();
    let tokens = rows.min(info.max_rows).min(info.max_positions).max(1);
    let prompt: Vec<TokenId> = (0..tokens)
        .map(|i| TokenId((i % info.vocab_size.max(1)) as u32))
        .collect();
    let seq = engine.open(&prompt, Reuse::Off);
    let step = engine.step(&[Feed {
        seq,
        tokens: &prompt,
        tree: None,
        logits: Wants::Last,
    }]);
    if let Err(error) = step {
        tracing::debug!(%error, "the first prefill failed");
    }
    engine.close(seq)
}
