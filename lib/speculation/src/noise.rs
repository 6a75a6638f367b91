//! Counter-based noise: a pure function of (seed, domain, position, token).
//!
//! Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) is keyed
//! by the request's seed; its counter is `[token / 4, position, domain, round]` and the token's word is
//! `token % 4` of the block. `position` is the index of the token in the whole sequence, so prefix
//! reuse, migration and retries keep it. A word `w` stands for `u = (w + 1/2) / 2^32`, which lies in
//! (0, 1), and for the Gumbel(0, 1) variate `G = -ln(-ln u)` in `f64`. Whoever knows the seed can
//! compute the noise; the logarithms are `libm`'s, so it has the same bits on every host.

use crate::{Seed, TokenId};

const MULTIPLIER: [u32; 2] = [0xd251_1f53, 0xcd9e_8d57];
const WEYL: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];
const ROUNDS: usize = 10;

/// No noise exceeds this: `-ln(-ln u)` for the largest `u`, rounded up.
pub const GUMBEL_MAX: f64 = 22.874;

/// Separates streams of the same seed, so that no two uses share a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Domain {
    /// Gumbel noise by (position, token), shared by target and draft (coupled verification).
    Coupled,
    /// Coins of rejection verification by (round, position, draw), private to the target.
    Verify,
    /// What a draft draws its proposals with in rejection mode, by (start of their window, place in
    /// it).
    Propose,
}

impl Domain {
    fn word(self) -> u32 {
        match self {
            Self::Coupled => 0,
            Self::Verify => 1,
            Self::Propose => 2,
        }
    }
}

/// The noise of one position of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noise {
    key: [u32; 2],
    domain: Domain,
    position: u32,
    round: u32,
}

impl Noise {
    /// Noise for the token at index `position` of the sequence, whatever round it is decided in.
    pub fn new(seed: Seed, domain: Domain, position: u32) -> Self {
        Self::of_round(seed, domain, position, 0)
    }

    /// Noise of one round only.
    pub fn of_round(seed: Seed, domain: Domain, position: u32, round: u32) -> Self {
        Self {
            key: [seed.0 as u32, (seed.0 >> 32) as u32],
            domain,
            position,
            round,
        }
    }

    /// The 32 random bits that belong to `token`.
    pub fn word(&self, token: TokenId) -> u32 {
        let counter = [token.0 / 4, self.position, self.domain.word(), self.round];
        philox(counter, self.key)[(token.0 % 4) as usize]
    }

    /// Gumbel(0, 1) noise of `token`.
    pub fn gumbel(&self, token: TokenId) -> f64 {
        gumbel(self.word(token))
    }

    /// The `draw`-th uniform number in (0, 1), of 52 random bits.
    pub fn uniform(&self, draw: u32) -> f64 {
        let block = philox(
            [draw, self.position, self.domain.word(), self.round],
            self.key,
        );
        let bits = (u64::from(block[0]) << 32 | u64::from(block[1])) >> 12;
        (bits as f64 + 0.5) * (1.0 / (1_u64 << 52) as f64)
    }

    /// Words of `4 * LANES` tokens from `first_block * 4` on: entry `[j][lane]` belongs to token
    /// `4 * (first_block + lane) + j`.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "it has to be compiled for the caller's instructions"
    )]
    pub(crate) fn words<const LANES: usize>(&self, first_block: u32) -> [[u32; LANES]; 4] {
        let mut counter = [
            [0; LANES],
            [self.position; LANES],
            [self.domain.word(); LANES],
            [self.round; LANES],
        ];
        for (lane, word) in counter[0].iter_mut().enumerate() {
            *word = first_block.wrapping_add(lane as u32);
        }
        philox_lanes(counter, self.key)
    }
}

/// `-ln(-ln u)` for `u = (word + 1/2) / 2^32`; increasing in `word`.
pub fn gumbel(word: u32) -> f64 {
    let u = (f64::from(word) + 0.5) * (1.0 / 4_294_967_296.0);
    -libm::log(-libm::log(u))
}

/// One block of Philox 4x32-10.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    philox_lanes(counter.map(|word| [word]), key).map(|[word]| word)
}

/// `LANES` blocks under one key. Lanes are independent, so that the compiler can use vectors, and
/// twice as wide as their words: the vector unit multiplies the low halves of such lanes to whole
/// ones, and nobody looks at what is left in the high halves meanwhile.
#[inline(always)]
fn philox_lanes<const LANES: usize>(
    counter: [[u32; LANES]; 4],
    mut key: [u32; 2],
) -> [[u32; LANES]; 4] {
    const LOW: u64 = 0xffff_ffff;
    let mut wide = [[0_u64; LANES]; 4];
    for (wide, counter) in wide.iter_mut().zip(&counter) {
        for (wide, counter) in wide.iter_mut().zip(counter) {
            *wide = u64::from(*counter);
        }
    }
    for _ in 0..ROUNDS {
        let mut next = [[0; LANES]; 4];
        for lane in 0..LANES {
            let a = u64::from(MULTIPLIER[0]) * (wide[0][lane] & LOW);
            let b = u64::from(MULTIPLIER[1]) * (wide[2][lane] & LOW);
            next[0][lane] = (b >> 32) ^ wide[1][lane] ^ u64::from(key[0]);
            next[1][lane] = b;
            next[2][lane] = (a >> 32) ^ wide[3][lane] ^ u64::from(key[1]);
            next[3][lane] = a;
        }
        wide = next;
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    let mut words = counter;
    for (words, wide) in words.iter_mut().zip(&wide) {
        for (word, wide) in words.iter_mut().zip(wide) {
            *word = *wide as u32;
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_gives_the_published_known_answers() {
        let cases = [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox(counter, key), expected);
        }
    }

    #[test]
    fn lanes_agree_with_single_words() {
        let noise = Noise::new(Seed(0x0123_4567_89ab_cdef), Domain::Coupled, 77);
        let words = noise.words::<16>(40);
        for lane in 0..16 {
            for (j, row) in words.iter().enumerate() {
                assert_eq!(row[lane], noise.word(TokenId((4 * (40 + lane) + j) as u32)));
            }
        }
    }

    #[test]
    fn gumbel_is_finite_increasing_and_bounded() {
        let words = [
            0,
            1,
            2,
            1000,
            1 << 20,
            1 << 31,
            u32::MAX - 2,
            u32::MAX - 1,
            u32::MAX,
        ];
        for pair in words.windows(2) {
            assert!(gumbel(pair[0]) < gumbel(pair[1]));
        }
        assert!(gumbel(0).is_finite());
        assert!(gumbel(u32::MAX) < GUMBEL_MAX && gumbel(u32::MAX) > GUMBEL_MAX - 1e-3);
    }

    #[test]
    fn gumbel_has_the_mean_and_variance_of_its_law() {
        let noise = Noise::new(Seed(5), Domain::Coupled, 9);
        let n = 200_000;
        let values = (0..n).map(|t| noise.gumbel(TokenId(t)));
        let (sum, squares) = values.fold((0.0, 0.0), |(s, q), g| (s + g, q + g * g));
        let mean = sum / f64::from(n);
        let variance = squares / f64::from(n) - mean * mean;
        assert!((mean - 0.577_215_664_9).abs() < 0.01, "mean {mean}");
        assert!(
            (variance - 1.644_934_066_8).abs() < 0.02,
            "variance {variance}"
        );
    }

    #[test]
    fn domains_and_positions_do_not_share_words() {
        let seed = Seed(1);
        let words = [
            Noise::new(seed, Domain::Coupled, 0).word(TokenId(0)),
            Noise::new(seed, Domain::Coupled, 1).word(TokenId(0)),
            Noise::new(seed, Domain::Verify, 0).word(TokenId(0)),
            Noise::new(seed, Domain::Propose, 0).word(TokenId(0)),
        ];
        for (i, a) in words.iter().enumerate() {
            assert!(words[i + 1..].iter().all(|b| a != b));
        }
    }
}
