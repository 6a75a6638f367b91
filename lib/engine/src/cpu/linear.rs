//! Linear layers: weights packed once, read once per step for up to eight rows.
//!
//! ```text
//! WeightView(s) --pack--> panels of 16 or 32 outputs, inputs running inside
//! Activations ------------+--> Cpu::linear --panels shared among threads--> y
//! ```
//!
//! A panel's outputs are the lanes of one or two vectors, so an output is one chain of
//! multiply-adds over the inputs in order: its bits depend neither on the other rows nor on the
//! threads. A tile keeps several rows' chains in registers and so reads a weight once for all of
//! them: that is why verifying eight tokens costs little more than decoding one.
//!
//! | weights | path | arithmetic |
//! |---|---|---|
//! | f32 | all | f32 |
//! | bf16 | up to AVX512-VNNI | widened to f32, f32 activations |
//! | bf16 | AVX512-BF16, AMX | activations rounded to bf16, products summed in f32 |
//! | int8 | all | both sides in groups of 128 inputs with an f32 scale each, exact sums in i32 |

#![expect(
    unsafe_code,
    reason = "tiles write disjoint parts of one output from several threads"
)]

pub(super) mod amx;
mod dot;
mod int8;
mod pack;
mod tile;

use std::ops::Range;

use half::{bf16, f16};

use super::memory::{Buffer, Region};
use super::simd::{LANES, dispatch};
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

    /// Index of the first value that is infinite or not a number; `bytes` need no alignment.
    pub fn first_not_finite(self, bytes: &[u8]) -> Option<usize> {
        /// Of values of N bytes: whether the bits of an exponent are all set.
        fn find<const N: usize>(bytes: &[u8], exponent: impl Fn([u8; N]) -> bool) -> Option<usize> {
            let values = bytes.as_chunks::<N>().0;
            // By blocks, without a way out of their middle: vectors can do that.
            let wrong = |block: &[[u8; N]]| block.iter().fold(false, |any, v| any | exponent(*v));
            let block = values.chunks(SCANNED).position(wrong)?;
            let start = block * SCANNED;
            let within = values[start..].iter().position(|value| exponent(*value))?;
            Some(start + within)
        }
        match self {
            Self::F32 => find(bytes, |v| {
                u32::from_le_bytes(v) & 0x7f80_0000 == 0x7f80_0000
            }),
            Self::Bf16 => find(bytes, |v| u16::from_le_bytes(v) & 0x7f80 == 0x7f80),
            Self::F16 => find(bytes, |v| u16::from_le_bytes(v) & 0x7c00 == 0x7c00),
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

/// Values that are looked at together.
const SCANNED: usize = 4096;

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
        let wanted = rows
            .saturating_mul(cols)
            .saturating_mul(self.source.bytes());
        if wanted == found {
            Ok(())
        } else {
            Err(PackError::Length {
                rows,
                cols,
                wanted,
                found,
            })
        }
    }
}

/// How a packed layer is multiplied; decides its layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// f32 panels.
    F32,
    /// bf16 panels, widened.
    Wide,
    /// bf16 panels, multiplied as bf16 by the vector unit.
    Dot,
    /// bf16 panels, multiplied as bf16 by the tile unit.
    Amx,
    /// int8 panels.
    Int8,
}

impl Format {
    fn of(isa: Isa, weight_type: WeightType) -> Self {
        match (weight_type, isa) {
            (WeightType::F32, _) => Self::F32,
            (WeightType::Bf16, Isa::Amx) => Self::Amx,
            (WeightType::Bf16, Isa::Avx512Bf16) => Self::Dot,
            (WeightType::Bf16, _) => Self::Wide,
            (WeightType::Int8, _) => Self::Int8,
        }
    }
}

/// A linear layer in the layout that one instruction path streams.
#[derive(Clone, Debug)]
pub struct PackedLinear {
    isa: Isa,
    format: Format,
    outputs: usize,
    inputs: usize,
    /// Outputs of a panel.
    panel: usize,
    /// Bytes of a panel.
    panel_bytes: usize,
    data: Buffer<u8>,
    /// One value per output of all panels, or empty.
    bias: Buffer<f32>,
}

impl PackedLinear {
    /// Packs `parts` one below the other (Q, K, V; gate, up; or just one) for `isa`. `bias`, if
    /// any, covers all outputs. What is packed into the same `region`, in the order of reading, lies side
    /// by side.
    ///
    /// # Errors
    /// If shapes, bytes and bias do not fit each other.
    pub fn pack(
        region: &mut Region,
        isa: Isa,
        weight_type: WeightType,
        parts: &[WeightView<'_>],
        bias: Option<&[f32]>,
    ) -> Result<Self, PackError> {
        pack::pack(region, isa, Format::of(isa, weight_type), parts, bias)
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
        self.data.len()
    }

    /// Number of panels.
    fn panels(&self) -> usize {
        self.outputs.div_ceil(self.panel)
    }

    /// Panels that a task has at least: narrow ones, and those of the tile unit, are taken in pairs.
    /// A layer of few panels is not divided evenly by more than it needs.
    fn task_panels(&self) -> usize {
        let is_for_tiles = self.isa == Isa::Amx && self.format != Format::F32;
        if self.panel == LANES || is_for_tiles {
            tile::GROUP
        } else {
            1
        }
    }
}

/// One multiplication, as the kernels see it.
#[derive(Clone, Copy)]
struct Job<'a> {
    w: &'a PackedLinear,
    x: &'a Activations,
    /// First output of the first row.
    y: *mut f32,
    /// Values from one row of outputs to the next.
    stride: usize,
}

// SAFETY: `y` is written at disjoint places, since a panel belongs to one task.
unsafe impl Sync for Job<'_> {}

impl Job<'_> {
    /// Multiplies some panels with all rows.
    ///
    /// # Safety
    /// There must be a row, `y` must be valid for all rows, nobody else may touch these panels' outputs
    /// meanwhile, the activations must be prepared for the format, and the machine must have the path.
    unsafe fn run(&self, panels: Range<usize>) {
        // SAFETY: as above.
        unsafe {
            match self.w.format {
                Format::F32 => dispatch(self.w.isa, tile::Plain { job: *self, panels }),
                Format::Wide => dispatch(self.w.isa, tile::Wide { job: *self, panels }),
                Format::Dot => dot::run(self, panels),
                Format::Amx => amx::run(self, panels),
                Format::Int8 => int8::run(self, panels),
            }
        }
    }
}

/// Below this many multiply-adds a second thread costs more than it brings.
const WORTH_SHARING: usize = 1 << 16;

impl Cpu {
    /// `y = x W^T + bias`: `y` gets `x.rows()` rows of `w.outputs()` values.
    ///
    /// `x` is mutable because its reduced form is made here, once. Without rows nothing happens.
    ///
    /// # Panics
    /// If the shapes do not fit, or `w` was packed for another path.
    pub fn linear(&self, w: &PackedLinear, x: &mut Activations, y: &mut [f32]) {
        self.linear_apart(w, x, (y, w.outputs));
    }

    /// The same with rows of outputs that lie `stride` values apart; what is between them stays.
    ///
    /// # Panics
    /// As [`Self::linear`].
    pub fn linear_apart(
        &self,
        w: &PackedLinear,
        x: &mut Activations,
        (y, stride): (&mut [f32], usize),
    ) {
        assert_eq!(
            w.isa, self.isa,
            "weights packed for another instruction path"
        );
        assert_eq!(x.cols(), w.inputs, "inputs of a linear layer");
        assert!(stride >= w.outputs, "rows of outputs overlap");
        assert_eq!(y.len(), x.rows() * stride, "outputs of a linear layer");
        if x.rows() == 0 {
            return;
        }
        match w.format {
            Format::F32 | Format::Wide => {}
            Format::Dot | Format::Amx => dispatch(self.isa, dot::Round(x)),
            Format::Int8 => dispatch(
                self.isa,
                int8::Quantise {
                    x,
                    form: int8::Form::of(self.isa),
                },
            ),
        }
        let panels = w.panels();
        let shared = x.rows() * w.inputs * w.outputs >= WORTH_SHARING;
        // Several tasks a thread, so that a thread that lost its core delays little.
        let group = w.task_panels();
        let groups = panels.div_ceil(group);
        let tasks = if shared && self.pool.threads() > 1 {
            (4 * self.pool.threads()).min(groups)
        } else {
            1
        };
        let job = Job {
            w,
            x,
            y: y.as_mut_ptr(),
            stride,
        };
        self.pool.run(tasks, &|task| {
            let edge = |task: usize| (groups * task / tasks * group).min(panels);
            let job = &job;
            // SAFETY: `y` has all rows (checked above), tasks have disjoint panels, and
            // `Cpu::new` made sure of the path.
            unsafe { job.run(edge(task)..edge(task + 1)) };
        });
    }
}

#[cfg(test)]
mod tests;
