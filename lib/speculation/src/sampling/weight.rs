//! Exponentials for truncation and log-probabilities: quick, and the same bits on every host.

/// Weights are multiples of 2^-35, and at most 1, so that a sum of up to 2^18 of them is exact in
/// `f64` whatever the order of the additions.
const QUANTUM_BITS: i32 = 35;
/// Adding and subtracting this rounds an `f64` from 0 to 1 to a multiple of the quantum.
const ROUNDING: f64 = (1_u64 << (52 - QUANTUM_BITS)) as f64;
/// Sums kept side by side, so that the compiler can use vectors.
const LANES: usize = 16;

/// `exp(x)` for `x <= 0`, rounded to a multiple of 2^-35; 0 for what is not a number.
#[inline]
pub(super) fn weight(x: f32) -> f64 {
    quantised(exp(x))
}

#[inline]
fn quantised(exponential: f32) -> f64 {
    (f64::from(exponential) + ROUNDING) - ROUNDING
}

/// Fills the first of `weights` with the weights of `scaled(value)` of each value.
#[inline]
pub(super) fn weights<const N: usize>(
    values: &[f32],
    scaled: impl Fn(f32) -> f32,
    weights: &mut [f64; N],
) {
    // In steps, so that each becomes a loop over vectors of its own width.
    let mut exponentials = [0.0; N];
    for (exponential, &value) in exponentials.iter_mut().zip(values) {
        *exponential = exp(scaled(value));
    }
    for (weight, exponential) in weights.iter_mut().zip(exponentials) {
        *weight = quantised(exponential);
    }
}

/// A sum of weights.
#[derive(Clone, Copy, Default)]
pub(super) struct Sum {
    lanes: [f64; LANES],
}

impl Sum {
    /// Adds the weights of `scaled(value)` over all values.
    #[inline]
    pub(super) fn add(&mut self, values: &[f32], scaled: impl Fn(f32) -> f32) {
        let (chunks, rest) = values.as_chunks::<LANES>();
        for chunk in chunks {
            let mut added = [0.0; LANES];
            weights(chunk, &scaled, &mut added);
            for (lane, weight) in self.lanes.iter_mut().zip(added) {
                *lane += weight;
            }
        }
        for &value in rest {
            self.lanes[0] += weight(scaled(value));
        }
    }

    /// The sum.
    pub(super) fn value(&self) -> f64 {
        self.lanes.iter().sum()
    }
}

/// `exp(x)` for `x <= 0` with a relative error below 3e-7; 0 below -87 and for what is not a
/// number. Argument reduction by multiples of ln 2 in two parts (Cody and Waite), then the Taylor
/// polynomial of degree 6, whose remainder on |r| <= ln(2) / 2 is below 1.2e-7.
#[inline]
fn exp(x: f32) -> f32 {
    /// Adding this leaves the rounded integer in the low bits of the mantissa.
    const TO_INTEGER: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const LOWEST: f32 = -87.0;
    let clamped = if x > LOWEST { x } else { LOWEST };
    let shifted = clamped * core::f32::consts::LOG2_E + TO_INTEGER;
    let n = shifted - TO_INTEGER;
    let r = (clamped - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut sum = 1.0 / 720.0;
    for coefficient in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = sum * r + coefficient;
    }
    let exponent = shifted.to_bits().wrapping_sub(TO_INTEGER.to_bits());
    let power = f32::from_bits(exponent.wrapping_add(127) << 23);
    if x >= LOWEST { sum * power } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_accurate_and_never_exceed_one() {
        for i in 0..200_000 {
            let x = -(i as f32) * 4.3e-4;
            let exact = libm::exp(f64::from(x));
            let error = (f64::from(exp(x)) - exact).abs();
            assert!(error <= 3e-7 * exact, "{x}: {error}");
            assert!(exp(x) <= 1.0);
        }
        assert!(exp(0.0) >= 1.0);
    }

    #[test]
    fn far_and_undefined_arguments_weigh_nothing() {
        for x in [-87.1, -1e30, f32::NEG_INFINITY, f32::NAN] {
            assert!(weight(x) == 0.0);
        }
    }

    #[test]
    fn sums_of_weights_do_not_depend_on_their_order() {
        let values: std::vec::Vec<f32> = (0..10_007).map(|i| -0.003 * i as f32).collect();
        let forward: f64 = values.iter().map(|&x| weight(x)).sum();
        let backward: f64 = values.iter().rev().map(|&x| weight(x)).sum();
        let mut sum = Sum::default();
        sum.add(&values[..1003], |x| x);
        sum.add(&values[1003..], |x| x);
        let lanes = sum.value();
        assert!(forward.to_bits() == backward.to_bits() && forward.to_bits() == lanes.to_bits());
    }
}
