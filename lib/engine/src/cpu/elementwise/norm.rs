//! Root-mean-square norm and layer norm.

#![expect(
    unsafe_code,
    reason = "vector kernels that stay within the checked slices"
)]

use super::super::Cpu;
use super::super::simd::{Kernel, LANES, Simd, dispatch};
use super::{Heads, load, store};

impl Cpu {
    /// `out = x / rms(x) * weight` for each row of `weight.len()` values
    /// (Zhang and Sennrich 2019).
    ///
    /// # Panics
    /// If `x` and `out` differ in length or are not whole rows.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        check(x.len(), weight.len(), out.len());
        let (x, out) = (
            x.as_ptr(),
            Rows {
                to: out.as_mut_ptr(),
                len: out.len(),
            },
        );
        dispatch(
            self.isa,
            Rms {
                x,
                add_to: None,
                weight,
                eps,
                out,
            },
        );
    }

    /// `residual += delta`, then the norm of the sum into `out`.
    ///
    /// # Panics
    /// As for [`Cpu::rms_norm`].
    pub fn add_rms_norm(
        &self,
        residual: &mut [f32],
        delta: &[f32],
        weight: &[f32],
        eps: f32,
        out: &mut [f32],
    ) {
        check(residual.len(), weight.len(), out.len());
        assert_eq!(residual.len(), delta.len(), "summands");
        let out = Rows {
            to: out.as_mut_ptr(),
            len: out.len(),
        };
        let add_to = Some(residual.as_mut_ptr());
        dispatch(
            self.isa,
            Rms {
                x: delta.as_ptr(),
                add_to,
                weight,
                eps,
                out,
            },
        );
    }

    /// `out = (x - mean) / deviation * weight + bias` for each row (Ba et al. 2016).
    ///
    /// # Panics
    /// As for [`Cpu::rms_norm`], or if `bias` has another length than `weight`.
    pub fn layer_norm(&self, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
        check(x.len(), weight.len(), out.len());
        assert_eq!(weight.len(), bias.len(), "norm bias");
        dispatch(
            self.isa,
            Layer {
                x,
                weight,
                bias,
                eps,
                out,
            },
        );
    }

    /// Root-mean-square norm of each head in place (the q/k norm of Qwen3); `weight` has one
    /// value per dimension.
    ///
    /// # Panics
    /// If a row is too short for its heads or `weight` is not one head long.
    pub fn head_norm(&self, rows: &mut [f32], heads: Heads, weight: &[f32], eps: f32) {
        assert_eq!(weight.len(), heads.dim, "head norm");
        for row in rows.chunks_mut(heads.stride) {
            let all = &mut row[heads.first..][..heads.count * heads.dim];
            let (to, len) = (all.as_mut_ptr(), all.len());
            let out = Rows { to, len };
            dispatch(
                self.isa,
                Rms {
                    x: to,
                    add_to: None,
                    weight,
                    eps,
                    out,
                },
            );
        }
    }
}

fn check(x: usize, weight: usize, out: usize) {
    assert!(
        weight > 0 && x == out && x.is_multiple_of(weight),
        "norm of {x} values"
    );
}

/// Where rows are written; may be where they are read.
struct Rows {
    to: *mut f32,
    len: usize,
}

/// Norm of rows, or of their sum with others, which is then kept.
struct Rms<'a> {
    x: *const f32,
    add_to: Option<*mut f32>,
    weight: &'a [f32],
    eps: f32,
    out: Rows,
}

impl Kernel for Rms<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let n = self.weight.len();
        let whole = n / LANES * LANES;
        // SAFETY: all rows have `n` values, and there are as many of each kind (checked above).
        unsafe {
            for first in (0..self.out.len).step_by(n) {
                let mut x = self.x.add(first);
                let mut squares = S::splat(0.0);
                if let Some(to) = self.add_to {
                    let to = to.add(first);
                    for at in (0..n).step_by(LANES) {
                        let lanes = LANES.min(n - at);
                        let a = load::<S>(to.add(at), lanes);
                        let sum = S::add(a, load::<S>(x.add(at), lanes));
                        store::<S>(to.add(at), lanes, sum);
                        squares = S::fma(sum, sum, squares);
                    }
                    x = to;
                } else {
                    for at in (0..whole).step_by(LANES) {
                        let x = S::load(x.add(at));
                        squares = S::fma(x, x, squares);
                    }
                    let rest = S::load_some(x.add(whole), n - whole);
                    squares = S::fma(rest, rest, squares);
                }
                let scale = 1.0 / (S::sum(squares) / n as f32 + self.eps).sqrt();
                let scale = S::splat(scale);
                for at in (0..n).step_by(LANES) {
                    let lanes = LANES.min(n - at);
                    let w = load::<S>(self.weight.as_ptr().add(at), lanes);
                    let scaled = S::mul(load::<S>(x.add(at), lanes), scale);
                    store::<S>(self.out.to.add(first + at), lanes, S::mul(scaled, w));
                }
            }
        }
    }
}

struct Layer<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl Kernel for Layer<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let n = self.weight.len();
        for (x, out) in self.x.chunks_exact(n).zip(self.out.chunks_exact_mut(n)) {
            // SAFETY: all slices have `n` values.
            unsafe {
                let mut sum = S::splat(0.0);
                for at in (0..n).step_by(LANES) {
                    sum = S::add(sum, load::<S>(x.as_ptr().add(at), LANES.min(n - at)));
                }
                let mean = S::splat(S::sum(sum) / n as f32);
                let mut squares = S::splat(0.0);
                for at in (0..n).step_by(LANES) {
                    let lanes = LANES.min(n - at);
                    let off = S::sub(load::<S>(x.as_ptr().add(at), lanes), mean);
                    store::<S>(out.as_mut_ptr().add(at), lanes, off);
                    // Read back, so that lanes past the end are zero.
                    let off = load::<S>(out.as_ptr().add(at), lanes);
                    squares = S::fma(off, off, squares);
                }
                let scale = S::splat(1.0 / (S::sum(squares) / n as f32 + self.eps).sqrt());
                for at in (0..n).step_by(LANES) {
                    let lanes = LANES.min(n - at);
                    let w = load::<S>(self.weight.as_ptr().add(at), lanes);
                    let b = load::<S>(self.bias.as_ptr().add(at), lanes);
                    let scaled = S::mul(load::<S>(out.as_ptr().add(at), lanes), scale);
                    store::<S>(out.as_mut_ptr().add(at), lanes, S::fma(scaled, w, b));
                }
            }
        }
    }
}
