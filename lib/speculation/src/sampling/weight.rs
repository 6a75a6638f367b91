//! Exponentials for truncation and log-probabilities: quick, and the same bits on every host.

/// Weights are multiples of this, and at most 1, so that a sum of up to 2^18 of them is exact in
/// `f64` whatever the order of the additions.
const QUANTUM_BITS: i32 = 35;

/// `exp(x)` for `x <= 0`, rounded to a multiple of 2^-35; 0 for what is not a number.
#[inline]
pub(super) fn weight(x: f32) -> f64 {
    let round = (1_u64 << (52 - QUANTUM_BITS)) as f64;
    (f64::from(exp(x)) + round) - round
}

/// `exp(x)` for `x <= 0` with a relative error below 2e-7; 0 below -87 and for what is not a
/// number.
#[inline]
fn exp(x: f32) -> f32 {
    libm::expf(x)
}
