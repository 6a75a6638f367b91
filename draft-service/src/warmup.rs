//! Steps that nobody waits for: after them weights and buffers are in memory and the threads awake,
//! so that the first session is no slower than the next.

use std::time::{Duration, Instant};

use foretoken_engine::batch::{Engine, Feed, Reuse, StepError, Wants};
use foretoken_speculation::TokenId;

/// Rows drafted one by one, as a window is.
const DRAFTED: usize = 8;
/// No step is begun after this.
const BUDGET: Duration = Duration::from_millis(500);

/// Prefills up to `prefill_rows` tokens and drafts a window on a scratch sequence. What fails is
/// left out: the first session finds out by itself.
pub(crate) fn run(engine: &mut Engine, prefill_rows: usize) {
    let started = Instant::now();
    let info = engine.info();
    let room = info.max_positions.saturating_sub(DRAFTED);
    let tokens = prefill_rows.min(info.max_rows).min(room).max(1);
    let prompt: Vec<TokenId> = (0..tokens)
        .map(|i| TokenId((i % info.vocab_size.max(1)) as u32))
        .collect();
    let seq = engine.open(&prompt, Reuse::Off);
    let mut step = |tokens: &[TokenId]| -> Result<(), StepError> {
        let feed = Feed {
            seq,
            tokens,
            tree: None,
            logits: Wants::Last,
        };
        engine.step(&[feed]).map(drop)
    };
    let mut failed = step(&prompt).err();
    for token in prompt.iter().take(DRAFTED) {
        if failed.is_some() || started.elapsed() > BUDGET {
            break;
        }
        failed = step(&[*token]).err();
    }
    if let Some(error) = failed {
        tracing::debug!(%error, "the warm-up ended early");
    }
    if let Err(error) = engine.close(seq) {
        tracing::error!(%error, "the warm-up lost its sequence");
    }
    tracing::info!(took = ?started.elapsed(), "warm");
}
