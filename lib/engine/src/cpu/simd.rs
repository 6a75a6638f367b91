//! Sixteen lanes of f32 on every instruction path.
//!
//! Kernels are written once over [`Simd`] and compiled per path: [`dispatch`] enters a function
//! with the path's target features switched on and everything is inlined into it.
//!
//! Invariant: an operation's result depends on its operands and the path only, so kernels that
//! keep the order of operations keep every bit.

#![expect(unsafe_code, reason = "vector instructions behind run-time detection")]

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
pub(super) mod portable;

use crate::isa::Isa;

/// Lanes of a vector on every path.
pub(super) const LANES: usize = 16;

/// Vector operations of one path.
///
/// # Safety
/// All functions must run on a machine that has the path's instructions, inside a function with
/// its target features enabled; pointers must be valid for the lanes they name.
pub(super) unsafe trait Simd: Copy {
    /// Sixteen f32.
    type F: Copy;

    /// Vectors side by side in a weight panel.
    const PANEL_VECTORS: usize;

    /// The same value in all lanes.
    unsafe fn splat(x: f32) -> Self::F;
    /// Loads 16 values.
    unsafe fn load(from: *const f32) -> Self::F;
    /// Loads `n <= 16` values, zeros after them.
    unsafe fn load_some(from: *const f32, n: usize) -> Self::F;
    /// Loads the first values of 16 pairs of bf16.
    unsafe fn load_bf16_first(from: *const u16) -> Self::F;
    /// Loads the second values of 16 pairs of bf16.
    unsafe fn load_bf16_second(from: *const u16) -> Self::F;
    /// Stores 16 values.
    unsafe fn store(to: *mut f32, x: Self::F);
    /// Stores the first `n <= 16` values.
    unsafe fn store_some(to: *mut f32, n: usize, x: Self::F);
    /// `a + b`.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once where the path can.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger one; `b` where either is NaN.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller one; `b` where either is NaN.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// Magnitude.
    unsafe fn abs(x: Self::F) -> Self::F;
    /// Nearest integer, ties to even.
    unsafe fn round(x: Self::F) -> Self::F;
    /// Stores the first `n <= 16` values, integers within an i8's range, as bytes of two's
    /// complement with the bits of `flip` turned over. NaN counts as 0.
    unsafe fn store_i8(to: *mut u8, n: usize, x: Self::F, flip: u8);
    /// `x * 2^n` for integral `n` in -126..=127.
    unsafe fn scale_by_power(x: Self::F, n: Self::F) -> Self::F;
    /// `x`, but zero in lanes where `test < limit`.
    unsafe fn zero_below(x: Self::F, test: Self::F, limit: Self::F) -> Self::F;
    /// Sum of the lanes in a fixed order.
    unsafe fn sum(x: Self::F) -> f32;
    /// Largest lane.
    unsafe fn largest(x: Self::F) -> f32;
    /// Hints that the cache line will be read soon: to the level-1 cache.
    unsafe fn prefetch(at: *const u8);
    /// Hints that the cache line will be read later: to the level-2 cache.
    unsafe fn prefetch_far(at: *const u8);

    /// `e^x`, relative error below 2e-7, 0 below -87 (Cephes' polynomial).
    #[inline(always)]
    unsafe fn exp(x: Self::F) -> Self::F {
        // SAFETY: the caller's contract is that of every function used.
        unsafe {
            let low = Self::splat(-87.0);
            let clamped = Self::min(Self::splat(88.0), Self::max(low, x));
            let n = Self::round(Self::mul(clamped, Self::splat(std::f32::consts::LOG2_E)));
            // ln 2 in two parts, so that the subtraction is exact.
            let r = Self::fma(n, Self::splat(-0.693_359_4), clamped);
            let r = Self::fma(n, Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.987_569_1e-4);
            for c in [
                1.398_2e-3,
                8.333_452e-3,
                4.166_579_6e-2,
                1.666_666_5e-1,
                0.5,
            ] {
                p = Self::fma(p, r, Self::splat(c));
            }
            let p = Self::add(Self::fma(p, Self::mul(r, r), r), Self::splat(1.0));
            Self::zero_below(Self::scale_by_power(p, n), x, low)
        }
    }
}

/// Adds to the sums of each row the products of its value, `stride` apart from `x` on, with all vectors of `w`.
///
/// # Safety
/// As for [`Simd`]; `x` names a value of each row.
#[inline(always)]
pub(super) unsafe fn add_products<S: Simd, const R: usize, const W: usize>(
    sums: &mut [[S::F; W]; R],
    x: *const f32,
    stride: usize,
    w: [S::F; W],
) {
    for (r, sums) in sums.iter_mut().enumerate() {
        // SAFETY: the caller's contract.
        unsafe {
            let x = S::splat(*x.add(r * stride));
            for j in 0..W {
                sums[j] = S::fma(x, w[j], sums[j]);
            }
        }
    }
}

/// A computation that can be compiled for any path.
pub(super) trait Kernel {
    /// What it returns.
    type Output;

    /// Runs on path `S`. Implementations are `#[inline(always)]`.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// Runs a kernel on the vector unit of `isa`, which the machine must have.
pub(super) fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    // SAFETY: `Cpu::new` let only supported paths through; each arm enables its features.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => avx512::enter(kernel),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::enter(kernel),
            _ => kernel.run::<portable::Portable>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Exp<'a>(&'a mut [f32; 16]);

    impl Kernel for Exp<'_> {
        type Output = ();

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            // SAFETY: 16 lanes are there.
            unsafe { S::store(self.0.as_mut_ptr(), S::exp(S::load(self.0.as_ptr()))) }
        }
    }

    #[test]
    fn exp_is_accurate_and_vanishes_at_minus_infinity() {
        for isa in Isa::available() {
            for i in -860..=860 {
                let mut lanes = [i as f32 / 10.0; 16];
                lanes[3] = f32::NEG_INFINITY;
                dispatch(isa, Exp(&mut lanes));
                let exact = f64::from(i as f32 / 10.0).exp();
                let error = (f64::from(lanes[0]) - exact).abs() / exact;
                assert!(error < 3e-7, "{isa} at {i}: {error}");
                assert_eq!(lanes[3].to_bits(), 0, "{isa}");
            }
        }
    }

    struct Sums<'a>(&'a [f32], &'a mut Vec<f32>);

    impl Kernel for Sums<'_> {
        type Output = ();

        #[inline(always)]
        unsafe fn run<S: Simd>(self) {
            // SAFETY: `self.0` has 16 values.
            unsafe {
                let x = S::load_some(self.0.as_ptr(), 5);
                let mut stored = [9.0; 16];
                S::store_some(stored.as_mut_ptr(), 5, x);
                self.1
                    .extend([S::sum(x), S::largest(S::load(self.0.as_ptr()))]);
                self.1.extend(stored);
            }
        }
    }

    #[test]
    fn partial_loads_and_stores_touch_only_their_lanes() {
        let x: Vec<f32> = (1..=16).map(|x| x as f32).collect();
        for isa in Isa::available() {
            let mut got = Vec::new();
            dispatch(isa, Sums(&x, &mut got));
            assert_eq!(got[..7], [15.0, 16.0, 1.0, 2.0, 3.0, 4.0, 5.0], "{isa}");
            assert!(
                got[7..].iter().all(|x| x.to_bits() == 9.0_f32.to_bits()),
                "{isa}"
            );
        }
    }

    struct Bytes<'a>(&'a [f32], &'a mut [u8], u8);

    impl Kernel for Bytes<'_> {
        type Output = f32;

        #[inline(always)]
        unsafe fn run<S: Simd>(self) -> f32 {
            // SAFETY: `self.0` has 16 values and `self.1` room for as many.
            unsafe {
                let x = S::load(self.0.as_ptr());
                S::store_i8(self.1.as_mut_ptr(), 16, x, self.2);
                S::store_i8(self.1.as_mut_ptr().add(16), 5, x, self.2);
                S::largest(S::abs(x))
            }
        }
    }

    #[test]
    fn bytes_are_twos_complement_and_stop_at_their_number() {
        let mut x: Vec<f32> = (0..16).map(|x| (17 * x - 127) as f32).collect();
        x[3] = f32::NAN;
        let byte = |i: usize| {
            if i == 3 {
                0
            } else {
                (17 * i as i32 - 127) as u8
            }
        };
        for isa in Isa::available() {
            for flip in [0, 0x80] {
                let mut got = [77; 32];
                dispatch(isa, Bytes(&x, &mut got, flip));
                for (i, got) in got.into_iter().enumerate() {
                    let exact = if i < 21 { byte(i % 16) ^ flip } else { 77 };
                    assert_eq!(got, exact, "{isa} at {i}");
                }
            }
            x[3] = -300.0;
            let largest = dispatch(isa, Bytes(&x, &mut [0; 32], 0));
            assert_eq!(largest.to_bits(), 300.0_f32.to_bits(), "{isa}");
            x[3] = f32::NAN;
        }
    }
}
