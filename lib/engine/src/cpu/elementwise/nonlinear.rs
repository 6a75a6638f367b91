//! Nonlinearities of feed-forward layers.

#![expect(
    unsafe_code,
    reason = "vector kernels that stay within the checked slices"
)]

use super::super::Cpu;
use super::super::simd::{Kernel, LANES, Simd, dispatch};
use super::{load, store};

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

impl Cpu {
    /// `out = activation(gate) * up` where each row of `gate_up` holds `n` gates, then `n` ups.
    ///
    /// # Panics
    /// If `gate_up` is not twice `out`, or `out` not whole rows of `n`.
    pub fn gated(&self, activation: Activation, gate_up: &[f32], n: usize, out: &mut [f32]) {
        assert!(n > 0 && out.len().is_multiple_of(n), "gated rows");
        assert_eq!(gate_up.len(), 2 * out.len(), "gates and ups");
        for (row, out) in gate_up.chunks_exact(2 * n).zip(out.chunks_exact_mut(n)) {
            let (gate, up) = (row.as_ptr(), Some(row[n..].as_ptr()));
            dispatch(
                self.isa,
                Apply {
                    activation,
                    x: gate,
                    times: up,
                    to: out.as_mut_ptr(),
                    n,
                },
            );
        }
    }

    /// Applies the nonlinearity in place.
    pub fn activate(&self, activation: Activation, x: &mut [f32]) {
        // One pointer for both: a later borrow of `x` would end what an earlier one may read.
        let (to, n) = (x.as_mut_ptr(), x.len());
        dispatch(
            self.isa,
            Apply {
                activation,
                x: to,
                times: None,
                to,
                n,
            },
        );
    }
}

/// `to = activation(x) * times`; all have `n` values, and `x` may be `to`.
struct Apply {
    activation: Activation,
    x: *const f32,
    times: Option<*const f32>,
    to: *mut f32,
    n: usize,
}

impl Kernel for Apply {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller's contract; one loop per nonlinearity.
        unsafe {
            match self.activation {
                Activation::Silu => self.each::<S>(|x| silu::<S>(x)),
                Activation::Relu => self.each::<S>(|x| S::max(S::splat(0.0), x)),
                Activation::Gelu => self.each::<S>(|x| gelu::<S>(x)),
                Activation::GeluTanh => self.each::<S>(|x| gelu_tanh::<S>(x)),
            }
        }
    }
}

impl Apply {
    #[inline(always)]
    unsafe fn each<S: Simd>(self, f: impl Fn(S::F) -> S::F) {
        for at in (0..self.n).step_by(LANES) {
            let lanes = LANES.min(self.n - at);
            // SAFETY: all have `n` values. `x` is read before `to` is written.
            unsafe {
                let mut y = f(load::<S>(self.x.add(at), lanes));
                if let Some(times) = self.times {
                    y = S::mul(y, load::<S>(times.add(at), lanes));
                }
                store::<S>(self.to.add(at), lanes, y);
            }
        }
    }
}

#[inline(always)]
unsafe fn silu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: runs with the path's features.
    unsafe {
        let e = S::exp(S::sub(S::splat(0.0), x));
        S::div(x, S::add(S::splat(1.0), e))
    }
}

#[inline(always)]
unsafe fn gelu_tanh<S: Simd>(x: S::F) -> S::F {
    // SAFETY: runs with the path's features.
    unsafe {
        // x/2 (1 + tanh y) = x / (1 + e^-2y), y = sqrt(2/pi) (x + 0.044715 x^3).
        let cubic = S::fma(S::mul(x, x), S::splat(0.044_715), S::splat(1.0));
        let e = S::exp(S::mul(S::mul(x, cubic), S::splat(-1.595_769)));
        S::div(x, S::add(S::splat(1.0), e))
    }
}

#[inline(always)]
unsafe fn gelu<S: Simd>(x: S::F) -> S::F {
    // SAFETY: runs with the path's features.
    unsafe {
        // erf by Abramowitz and Stegun 7.1.26, absolute error below 1.5e-7.
        let z = S::mul(x, S::splat(std::f32::consts::FRAC_1_SQRT_2));
        let size = S::max(z, S::sub(S::splat(0.0), z));
        let t = S::div(
            S::splat(1.0),
            S::fma(size, S::splat(0.327_591_1), S::splat(1.0)),
        );
        let mut p = S::splat(1.061_405_4);
        for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
            p = S::fma(p, t, S::splat(c));
        }
        let square = S::mul(size, S::sub(S::splat(0.0), size));
        // 1 - |erf z|, which is also how far the unit is from its asymptote.
        let rest = S::mul(S::mul(p, t), S::exp(square));
        let half = S::mul(
            S::mul(S::splat(0.5), size),
            S::splat(std::f32::consts::SQRT_2),
        );
        // x >= 0: x - |x|/2 rest; x < 0: -|x|/2 rest.
        S::sub(S::max(S::splat(0.0), x), S::mul(half, rest))
    }
}
