//! Operations on rows: norms, rotary embedding, activations, sums.

use super::{Cpu, WeightView};
use crate::runner::StepPlan;

/// Nonlinearity of a feed-forward layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `max(x, 0)`.
    Relu,
    /// Gaussian error linear unit, by the error function.
    Gelu,
    /// Its approximation by tanh (`gelu_new`, `gelu_pytorch_tanh`).
    GeluTanh,
}

/// Some heads within wider rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Values from one row to the next.
    pub stride: usize,
    /// Column of the first head.
    pub first: usize,
    /// Number of heads.
    pub count: usize,
    /// Dimensions of a head.
    pub dim: usize,
}

/// Cosines and sines by position.
#[derive(Clone, Debug)]
pub struct RopeTable {
    half: usize,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// Angles `position * frequencies[i]` for positions below `positions`, computed in f32 as
    /// the reference implementation does, both functions times `scale` (yarn's attention factor,
    /// 1 elsewhere).
    pub fn new(frequencies: &[f32], positions: usize, scale: f32) -> Self {
        let angles = || {
            (0..positions).flat_map(|p| frequencies.iter().map(move |f| p as f32 * f))
        };
        Self {
            half: frequencies.len(),
            cos: angles().map(|a| a.cos() * scale).collect(),
            sin: angles().map(|a| a.sin() * scale).collect(),
        }
    }

    /// Number of positions.
    pub fn positions(&self) -> usize {
        self.cos.len().checked_div(self.half).unwrap_or(0)
    }
}

/// A table of rows looked up by token (or position), kept in its source format.
#[derive(Clone, Debug)]
pub struct Embedding {
    cols: usize,
    source: super::linear::SourceType,
    bytes: Vec<u8>,
}

impl Embedding {
    /// Copies the table.
    ///
    /// # Errors
    /// If the view's bytes do not match its shape.
    pub fn new(view: &WeightView<'_>) -> Result<Self, super::PackError> {
        view.check()?;
        Ok(Self { cols: view.cols, source: view.source, bytes: view.bytes.to_vec() })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.bytes.len().checked_div(self.cols * self.source.bytes()).unwrap_or(0)
    }

    /// Values per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Writes row `index` to `out`.
    ///
    /// # Panics
    /// If there is no such row or `out` has another length.
    pub fn row(&self, index: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "embedding width");
        let width = self.cols * self.source.bytes();
        self.source.widen(&self.bytes[index * width..][..width], out);
    }
}

impl Cpu {
    /// `out = x / rms(x) * weight` for each row of `weight.len()` values
    /// (Zhang and Sennrich 2019).
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        let n = weight.len();
        for (x, out) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
            let mean = x.iter().map(|x| x * x).sum::<f32>() / n as f32;
            let scale = 1.0 / (mean + eps).sqrt();
            for ((out, x), w) in out.iter_mut().zip(x).zip(weight) {
                *out = x * scale * w;
            }
        }
    }

    /// `residual += delta`, then the norm of the sum into `out`.
    pub fn add_rms_norm(
        &self,
        residual: &mut [f32],
        delta: &[f32],
        weight: &[f32],
        eps: f32,
        out: &mut [f32],
    ) {
        self.add(residual, delta);
        self.rms_norm(residual, weight, eps, out);
    }

    /// `out = (x - mean) / deviation * weight + bias` for each row (Ba et al. 2016).
    pub fn layer_norm(&self, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
        let n = weight.len();
        for (x, out) in x.chunks_exact(n).zip(out.chunks_exact_mut(n)) {
            let mean = x.iter().sum::<f32>() / n as f32;
            let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n as f32;
            let scale = 1.0 / (variance + eps).sqrt();
            for (((out, x), w), b) in out.iter_mut().zip(x).zip(weight).zip(bias) {
                *out = (x - mean) * scale * w + b;
            }
        }
    }

    /// Root-mean-square norm of each head in place (the q/k norm of Qwen3); `weight` has one
    /// value per dimension.
    pub fn head_norm(&self, rows: &mut [f32], heads: Heads, weight: &[f32], eps: f32) {
        for row in rows.chunks_mut(heads.stride) {
            let all = &mut row[heads.first..][..heads.count * heads.dim];
            for head in all.chunks_exact_mut(heads.dim) {
                let mean = head.iter().map(|x| x * x).sum::<f32>() / heads.dim as f32;
                let scale = 1.0 / (mean + eps).sqrt();
                for (x, w) in head.iter_mut().zip(weight) {
                    *x = *x * scale * w;
                }
            }
        }
    }

    /// Rotates each head by its row's position (Su et al. 2021), dimension i paired with
    /// i + half as Hugging Face checkpoints expect.
    ///
    /// # Panics
    /// If a position is past the table.
    pub fn rope(&self, rows: &mut [f32], heads: Heads, positions: &[u32], table: &RopeTable) {
        let half = table.half;
        for (row, position) in rows.chunks_mut(heads.stride).zip(positions) {
            let at = *position as usize * half;
            let (cos, sin) = (&table.cos[at..][..half], &table.sin[at..][..half]);
            let all = &mut row[heads.first..][..heads.count * heads.dim];
            for head in all.chunks_exact_mut(heads.dim) {
                let (low, high) = head[..2 * half].split_at_mut(half);
                for i in 0..half {
                    let (a, b) = (low[i], high[i]);
                    low[i] = a * cos[i] - b * sin[i];
                    high[i] = b * cos[i] + a * sin[i];
                }
            }
        }
    }

    /// `out = activation(gate) * up` where each row of `gate_up` holds `n` gates, then `n` ups.
    pub fn gated(&self, activation: Activation, gate_up: &[f32], n: usize, out: &mut [f32]) {
        for (row, out) in gate_up.chunks_exact(2 * n).zip(out.chunks_exact_mut(n)) {
            out.copy_from_slice(&row[..n]);
            self.activate(activation, out);
            for (out, up) in out.iter_mut().zip(&row[n..]) {
                *out *= up;
            }
        }
    }

    /// Applies the nonlinearity in place.
    pub fn activate(&self, activation: Activation, x: &mut [f32]) {
        for x in x {
            *x = match activation {
                Activation::Silu => *x / (1.0 + (-*x).exp()),
                Activation::Relu => x.max(0.0),
                Activation::Gelu | Activation::GeluTanh => {
                    0.5 * *x * (1.0 + (0.797_884_6 * (*x + 0.044_715 * *x * *x * *x)).tanh())
                }
            };
        }
    }

    /// `x += y`.
    pub fn add(&self, x: &mut [f32], y: &[f32]) {
        for (x, y) in x.iter_mut().zip(y) {
            *x += y;
        }
    }

    /// Index of the largest value, the first of equals; 0 for an empty row.
    pub fn argmax(&self, row: &[f32]) -> usize {
        let mut best = 0;
        for (i, x) in row.iter().enumerate() {
            if *x > row[best] {
                best = i;
            }
        }
        best
    }

    /// Embeds each token of the plan into `out`, row after row.
    ///
    /// # Panics
    /// If a token is outside the table: the caller has checked the plan.
    pub fn embed(&self, table: &Embedding, plan: &StepPlan, out: &mut [f32]) {
        for (token, out) in plan.tokens.iter().zip(out.chunks_exact_mut(table.cols)) {
            table.row(token.0 as usize, out);
        }
    }
}
