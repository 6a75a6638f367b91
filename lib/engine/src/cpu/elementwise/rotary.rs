//! Rotary position embedding (Su et al. 2021).

#![expect(
    unsafe_code,
    reason = "vector kernels that stay within the checked slices"
)]

use super::super::Cpu;
use super::super::simd::{Kernel, LANES, Simd, dispatch};
use super::{load, store};

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
        let angles = || (0..positions).flat_map(|p| frequencies.iter().map(move |f| p as f32 * f));
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

impl Cpu {
    /// Rotates each head by its row's position, dimension i paired with i + half as Hugging Face
    /// checkpoints expect.
    ///
    /// # Panics
    /// If a position is past the table or a row is too short for its heads.
    pub fn rope(&self, rows: &mut [f32], heads: Heads, positions: &[u32], table: &RopeTable) {
        assert!(
            2 * table.half <= heads.dim,
            "rotary dimensions exceed the head"
        );
        dispatch(
            self.isa,
            Rotate {
                rows,
                heads,
                positions,
                table,
            },
        );
    }
}

struct Rotate<'a> {
    rows: &'a mut [f32],
    heads: Heads,
    positions: &'a [u32],
    table: &'a RopeTable,
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Heads {
            stride,
            first,
            count,
            dim,
        } = self.heads;
        let half = self.table.half;
        for (row, position) in self.rows.chunks_mut(stride).zip(self.positions) {
            let at = *position as usize * half;
            let (cos, sin) = (&self.table.cos[at..][..half], &self.table.sin[at..][..half]);
            for head in row[first..][..count * dim].chunks_exact_mut(dim) {
                let (low, high) = head[..2 * half].split_at_mut(half);
                for at in (0..half).step_by(LANES) {
                    let lanes = LANES.min(half - at);
                    // SAFETY: all four slices have `half` values.
                    unsafe {
                        let (low, high) = (low.as_mut_ptr().add(at), high.as_mut_ptr().add(at));
                        let (a, b) = (load::<S>(low, lanes), load::<S>(high, lanes));
                        let c = load::<S>(cos.as_ptr().add(at), lanes);
                        let s = load::<S>(sin.as_ptr().add(at), lanes);
                        store::<S>(low, lanes, S::sub(S::mul(a, c), S::mul(b, s)));
                        store::<S>(high, lanes, S::add(S::mul(b, c), S::mul(a, s)));
                    }
                }
            }
        }
    }
}
