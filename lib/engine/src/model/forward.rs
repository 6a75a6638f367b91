//! One step of a model: the same loop over layers for every family.

use super::layers::{Layer, Layers, NormWeights};
use crate::cpu::{
    Activation, Activations, AttentionArgs, AttentionScratch, Cpu, Heads, KvRows, KvStore,
    RopeTable,
};
use crate::runner::{Logits, StepPlan};
use crate::spec::{Mlp, ModelSpec, Norm, Positions};

/// Buffers of a step, made once for the largest one.
#[derive(Debug)]
pub(super) struct StepBuffers {
    /// The residual stream, `hidden_size` a row.
    residual: Vec<f32>,
    /// What the last block adds to it, not yet added.
    delta: Vec<f32>,
    /// Queries, keys and values of a row, one after the other.
    qkv: Vec<f32>,
    /// Gates and ups of a row, or ups alone.
    up: Vec<f32>,
    /// One row of a learned position.
    position: Vec<f32>,
    normed: Activations,
    attended: Activations,
    inner: Activations,
    scratch: AttentionScratch,
}

impl StepBuffers {
    pub(super) fn new(spec: &ModelSpec, max_rows: usize) -> Self {
        let matrices = match spec.mlp {
            Mlp::GatedSilu => 2,
            Mlp::Relu => 1,
        };
        let rows = |width: usize| vec![0.0; max_rows * width];
        Self {
            residual: rows(spec.hidden_size),
            delta: rows(spec.hidden_size),
            qkv: rows(spec.query_width() + 2 * spec.kv_width()),
            up: rows(matrices * spec.ffn_size),
            position: vec![0.0; spec.hidden_size],
            normed: Activations::new(max_rows, spec.hidden_size),
            attended: Activations::new(max_rows, spec.query_width()),
            inner: Activations::new(max_rows, spec.ffn_size),
            scratch: AttentionScratch::default(),
        }
    }
}

/// What a step reads but does not change.
pub(super) struct Step<'a> {
    pub(super) cpu: &'a Cpu,
    pub(super) spec: &'a ModelSpec,
    pub(super) layers: &'a Layers,
    pub(super) rope: Option<&'a RopeTable>,
    /// Checked.
    pub(super) plan: &'a StepPlan,
}

/// Values from one row of logits to the next: an odd number of lines of 64 bytes. With a power of two, as
/// vocabularies often are, the same outputs of all rows would want the same few places of the cache
/// (with AMX a step of 24 rows with 4,096 logits then takes an eighth longer).
fn apart(vocab_size: usize) -> usize {
    const LINE: usize = 16;
    (vocab_size.div_ceil(LINE) | 1) * LINE
}

impl Step<'_> {
    /// Runs the step: writes the KV of its rows and the logits that are wanted.
    pub(super) fn run(&self, kv: &mut KvStore, buffers: &mut StepBuffers, logits: &mut Logits) {
        logits.vocab_size = self.spec.vocab_size;
        logits.stride = apart(logits.vocab_size);
        if self.rows() == 0 {
            logits.values.clear();
            return;
        }
        self.embed(buffers);
        for (i, layer) in self.layers.stack.iter().enumerate() {
            self.attention(i, layer, kv, buffers);
            self.mlp(layer, buffers);
        }
        self.head(buffers, logits);
    }

    fn rows(&self) -> usize {
        self.plan.tokens.len()
    }

    fn embed(&self, buffers: &mut StepBuffers) {
        let hidden = self.spec.hidden_size;
        let residual = &mut buffers.residual[..self.rows() * hidden];
        self.cpu.embed(&self.layers.embedding, self.plan, residual);
        if let (Some(table), Positions::Learned { offset }) =
            (&self.layers.positions, &self.spec.positions)
        {
            let rows = residual.chunks_exact_mut(hidden);
            for (row, position) in rows.zip(&self.plan.positions) {
                table.row(*position as usize + offset, &mut buffers.position);
                self.cpu.add(row, &buffers.position);
            }
        }
    }

    /// Attention of one layer: from the norm in front to what it adds to the residual stream.
    fn attention(&self, i: usize, layer: &Layer, kv: &mut KvStore, buffers: &mut StepBuffers) {
        let (cpu, spec, rows) = (self.cpu, self.spec, self.rows());
        // The first layer reads the embedding as it is; later ones first add the MLP's output.
        self.norm(&layer.attention_norm, rows, i > 0, buffers);
        let (query, key) = (spec.query_width(), spec.kv_width());
        let stride = query + 2 * key;
        let qkv = &mut buffers.qkv[..rows * stride];
        cpu.linear(&layer.qkv, &mut buffers.normed, qkv);
        let heads = |first, count| Heads {
            stride,
            first,
            count,
            dim: spec.head_dim,
        };
        if let (Some(norms), Norm::Rms { eps }) = (&layer.head_norms, spec.norm) {
            cpu.head_norm(qkv, heads(0, spec.heads), &norms.query, eps);
            cpu.head_norm(qkv, heads(query, spec.kv_heads), &norms.key, eps);
        }
        if let Some(table) = self.rope {
            // Queries and keys lie side by side, so one pass rotates both.
            let both = heads(0, spec.heads + spec.kv_heads);
            cpu.rope(qkv, both, &self.plan.positions, table);
        }
        kv.write_step(
            i,
            self.plan,
            &KvRows {
                rows: qkv,
                stride,
                key: query,
                value: query + key,
            },
        );
        let args = AttentionArgs {
            plan: self.plan,
            kv,
            layer: i,
            rows: qkv,
            stride,
            query: 0,
            heads: spec.heads,
            scale: (spec.head_dim as f32).sqrt().recip(),
            window: spec.windows[i],
        };
        cpu.attention(
            &args,
            &mut buffers.scratch,
            buffers.attended.begin(rows, query),
        );
        let delta = &mut buffers.delta[..rows * spec.hidden_size];
        cpu.linear(&layer.output, &mut buffers.attended, delta);
    }

    /// The MLP of one layer: adds attention's output, norms, and leaves what to add next.
    fn mlp(&self, layer: &Layer, buffers: &mut StepBuffers) {
        let (cpu, spec, rows) = (self.cpu, self.spec, self.rows());
        self.norm(&layer.mlp_norm, rows, true, buffers);
        let inner = buffers.inner.begin(rows, spec.ffn_size);
        match spec.mlp {
            Mlp::GatedSilu => {
                let up = &mut buffers.up[..rows * 2 * spec.ffn_size];
                cpu.linear(&layer.up, &mut buffers.normed, up);
                cpu.gated(Activation::Silu, up, spec.ffn_size, inner);
            }
            Mlp::Relu => {
                cpu.linear(&layer.up, &mut buffers.normed, inner);
                cpu.activate(Activation::Relu, inner);
            }
        }
        let delta = &mut buffers.delta[..rows * spec.hidden_size];
        cpu.linear(&layer.down, &mut buffers.inner, delta);
    }

    /// Final norm and head of the rows whose logits are wanted.
    fn head(&self, buffers: &mut StepBuffers, logits: &mut Logits) {
        let hidden = self.spec.hidden_size;
        let mut wanted = 0;
        for (row, _) in self
            .plan
            .wants_logits
            .iter()
            .enumerate()
            .filter(|(_, wants)| **wants)
        {
            // Wanted rows move up in order, so none is overwritten before it is read.
            if row != wanted {
                let source = row * hidden..(row + 1) * hidden;
                buffers
                    .residual
                    .copy_within(source.clone(), wanted * hidden);
                buffers.delta.copy_within(source, wanted * hidden);
            }
            wanted += 1;
        }
        logits.values.resize(wanted * logits.stride, 0.0);
        if wanted == 0 {
            return;
        }
        if let Some(norm) = &self.layers.final_norm {
            self.norm(norm, wanted, true, buffers);
        } else {
            let residual = &mut buffers.residual[..wanted * hidden];
            self.cpu.add(residual, &buffers.delta[..wanted * hidden]);
            buffers
                .normed
                .begin(wanted, hidden)
                .copy_from_slice(residual);
        }
        let to = (&mut logits.values[..], logits.stride);
        self.cpu
            .linear_apart(&self.layers.head, &mut buffers.normed, to);
    }

    /// Adds what the last block left, if asked, and norms `rows` rows into `buffers.normed`.
    fn norm(&self, norm: &NormWeights, rows: usize, add: bool, buffers: &mut StepBuffers) {
        let (cpu, hidden) = (self.cpu, self.spec.hidden_size);
        let residual = &mut buffers.residual[..rows * hidden];
        let delta = &buffers.delta[..rows * hidden];
        let out = buffers.normed.begin(rows, hidden);
        match self.spec.norm {
            Norm::Rms { eps } if add => {
                cpu.add_rms_norm(residual, delta, &norm.weight, eps, out);
            }
            Norm::Rms { eps } => cpu.rms_norm(residual, &norm.weight, eps, out),
            Norm::Layer { eps } => {
                if add {
                    cpu.add(residual, delta);
                }
                cpu.layer_norm(residual, &norm.weight, &norm.bias, eps, out);
            }
        }
    }
}
