//! `SplitMix64` (Steele, Lea, Flood 2014): well mixed bits where noise of a request is not meant.

/// What its state grows by.
const INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;

/// One step of the generator at state `x`, as a hash of `x`: a bijection of the 64 bits.
pub fn mix(x: u64) -> u64 {
    finalise(x.wrapping_add(INCREMENT))
}

/// The generator's finaliser: a bijection of the 64 bits that mixes all of them.
pub fn finalise(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The state after `state`; [`mix`] of a state is the number drawn from it.
pub fn next(state: u64) -> u64 {
    state.wrapping_add(INCREMENT)
}

/// A hash as a number in [0, 1).
pub fn unit(hash: u64) -> f64 {
    (hash >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_numbers() {
        // Of the reference implementation, seed 1234567.
        let published = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        let mut state = 1_234_567;
        for number in published {
            assert_eq!(mix(state), number);
            state = next(state);
        }
    }

    #[test]
    fn hashes_become_numbers_below_one() {
        assert!(unit(0) == 0.0 && unit(u64::MAX) < 1.0);
        assert!((unit(1 << 63) - 0.5).abs() < 1e-15);
    }
}
