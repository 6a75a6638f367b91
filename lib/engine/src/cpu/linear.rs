//! Linear layers: weights packed once, read once per step for up to a dozen rows.

use half::{bf16, f16};

use super::{Activations, Cpu};
use crate::isa::Isa;

/// Number format that weights are held in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// 4 bytes.
    F32,
    /// 2 bytes, lossless for bf16 checkpoints.
    Bf16,
    /// 1 byte, quantised when packed.
    Int8,
}

/// Number format of a checkpoint's tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourceType {
    /// Little-endian f32.
    F32,
    /// Little-endian bf16.
    Bf16,
    /// Little-endian IEEE half.
    F16,
}

impl SourceType {
    /// Bytes of one value.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
        }
    }

    /// Widens `out.len()` values to f32; `bytes` need no alignment.
    pub fn widen(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::F32 => {
                for (out, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *out = f32::from_le_bytes(*b);
                }
            }
            Self::Bf16 => {
                for (out, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *out = bf16::from_le_bytes(*b).to_f32();
                }
            }
            Self::F16 => {
                for (out, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *out = f16::from_le_bytes(*b).to_f32();
                }
            }
        }
    }
}

/// A matrix `[rows, cols]` of a checkpoint (out, in), borrowed as raw bytes.
#[derive(Clone, Copy, Debug)]
pub struct WeightView<'a> {
    /// Number format.
    pub source: SourceType,
    /// `rows * cols` values, row-major, any alignment.
    pub bytes: &'a [u8],
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

/// Why weights could not be packed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The bytes do not hold the shape.
    #[error("a [{rows}, {cols}] tensor needs {wanted} bytes, found {found}")]
    Length {
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
        /// Bytes of that shape.
        wanted: usize,
        /// Bytes given.
        found: usize,
    },
    /// Matrices fused into one layer have different inputs.
    #[error("fused matrices must have the same number of inputs, found {0} and {1}")]
    Inputs(usize, usize),
    /// The bias does not fit.
    #[error("a bias of {found} values does not fit {wanted} outputs")]
    Bias {
        /// Outputs.
        wanted: usize,
        /// Values given.
        found: usize,
    },
    /// No outputs or no inputs.
    #[error("a linear layer needs at least one input and one output")]
    Empty,
}

impl WeightView<'_> {
    /// Checks the bytes against the shape.
    ///
    /// # Errors
    /// If they differ.
    pub fn check(&self) -> Result<(), PackError> {
        let (rows, cols, found) = (self.rows, self.cols, self.bytes.len());
        let wanted = rows.saturating_mul(cols).saturating_mul(self.source.bytes());
        if wanted == found { Ok(()) } else { Err(PackError::Length { rows, cols, wanted, found }) }
    }
}

/// A linear layer in the layout that one instruction path streams.
#[derive(Clone, Debug)]
pub struct PackedLinear {
    outputs: usize,
    inputs: usize,
    weights: Vec<f32>,
    bias: Option<Vec<f32>>,
}

impl PackedLinear {
    /// Packs `parts` one below the other (Q, K, V; gate, up; or just one) for `isa`. `bias`, if
    /// any, covers all outputs.
    ///
    /// # Errors
    /// If shapes, bytes and bias do not fit each other.
    pub fn pack(
        isa: Isa,
        weight_type: WeightType,
        parts: &[WeightView<'_>],
        bias: Option<&[f32]>,
    ) -> Result<Self, PackError> {
        let _ = (isa, weight_type);
        let inputs = parts.first().map_or(0, |part| part.cols);
        let mut weights = Vec::new();
        for part in parts {
            part.check()?;
            if part.cols != inputs {
                return Err(PackError::Inputs(inputs, part.cols));
            }
            let at = weights.len();
            weights.resize(at + part.rows * part.cols, 0.0);
            part.source.widen(part.bytes, &mut weights[at..]);
        }
        if weights.is_empty() {
            return Err(PackError::Empty);
        }
        let outputs = weights.len() / inputs;
        if let Some(found) = bias.map(<[f32]>::len).filter(|found| *found != outputs) {
            return Err(PackError::Bias { wanted: outputs, found });
        }
        Ok(Self { outputs, inputs, weights, bias: bias.map(<[f32]>::to_vec) })
    }

    /// Values of an output row.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Values of an input row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes that one pass reads.
    pub fn bytes(&self) -> usize {
        self.weights.len() * 4
    }
}

impl Cpu {
    /// `y = x W^T + bias`: `y` gets `x.rows()` rows of `w.outputs()` values.
    ///
    /// `x` is mutable because its reduced form is made here, once.
    ///
    /// # Panics
    /// If the shapes do not fit, or `w` was packed for another path.
    pub fn linear(&self, w: &PackedLinear, x: &mut Activations, y: &mut [f32]) {
        assert_eq!(x.cols(), w.inputs, "inputs of a linear layer");
        assert_eq!(y.len(), x.rows() * w.outputs, "outputs of a linear layer");
        for (x, y) in x.values().chunks_exact(w.inputs).zip(y.chunks_exact_mut(w.outputs)) {
            for (n, y) in y.iter_mut().enumerate() {
                let row = &w.weights[n * w.inputs..][..w.inputs];
                let bias = w.bias.as_ref().map_or(0.0, |bias| bias[n]);
                *y = bias + row.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
            }
        }
    }
}
