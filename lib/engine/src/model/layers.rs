//! A model's weights in the layout the kernels stream.

use crate::cpu::{Embedding, PackedLinear};

/// All weights of a model.
#[derive(Debug)]
pub(super) struct Layers {
    pub(super) embedding: Embedding,
    /// Learned positions, if the model has them.
    pub(super) positions: Option<Embedding>,
    /// The layers, first to last.
    pub(super) stack: Vec<Layer>,
    /// Norm after the last layer, if the model has one.
    pub(super) final_norm: Option<NormWeights>,
    pub(super) head: PackedLinear,
}

impl Layers {
    /// Bytes of matrices that a step reads at least, however many rows it has.
    pub(super) fn step_bytes(&self) -> usize {
        let layer = |l: &Layer| {
            [&l.qkv, &l.output, &l.up, &l.down]
                .into_iter()
                .map(PackedLinear::bytes)
                .sum::<usize>()
        };
        self.stack.iter().map(layer).sum::<usize>() + self.head.bytes()
    }
}

/// The weights of one layer.
#[derive(Debug)]
pub(super) struct Layer {
    pub(super) attention_norm: NormWeights,
    /// Query, key and value projections, one below the other.
    pub(super) qkv: PackedLinear,
    /// Norms of query and key heads, one value per dimension, if the model has them.
    pub(super) head_norms: Option<HeadNorms>,
    pub(super) output: PackedLinear,
    pub(super) mlp_norm: NormWeights,
    /// Gate and up projections one below the other, or the up projection alone.
    pub(super) up: PackedLinear,
    pub(super) down: PackedLinear,
}

/// Weights of a norm; which one is in the spec.
#[derive(Debug)]
pub(super) struct NormWeights {
    pub(super) weight: Vec<f32>,
    /// Empty for RMS norms.
    pub(super) bias: Vec<f32>,
}

/// Weights of the norms of query and key heads.
#[derive(Debug)]
pub(super) struct HeadNorms {
    pub(super) query: Vec<f32>,
    pub(super) key: Vec<f32>,
}
