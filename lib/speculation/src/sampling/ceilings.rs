//! Upper bounds of noise.
//!
//! `-ln u >= 1 - u`, so Gumbel noise `G <= -ln(1 - u)`, and the logarithm of `1 - u = (!w + 1/2) / 2^32`
//! is at least its piecewise linear interpolation between powers of two, which is the bit pattern of
//! the number as an `f32`. That bound takes a few vector instructions for the random bits of each
//! token, and the bits take many more.
//!
//! Noise belongs to a position, whatever comes before it. The branches of a draft meet the same few
//! positions again and again, and what is rejected is decided anew in the next round: so bounds are
//! kept.

use alloc::vec::Vec;

use crate::noise::Noise;

/// Tokens per step of a scan.
pub(super) const BLOCK: usize = 64;
/// Philox counters per step of the scan: each gives the words of four tokens.
const COUNTERS: usize = BLOCK / 4;
/// Most positions that are kept.
const POSITIONS: usize = 64;
/// Most values that they have together, unless one has more alone: 4 MiB.
const VALUES: usize = 1 << 20;

/// Upper bounds of the noise of one position, in blocks of a fixed number of tokens.
#[derive(Clone, Debug, Default)]
pub struct Ceiling {
    /// Whose noise it is; without any it is zero.
    noise: Option<Noise>,
    pub(super) values: Vec<f32>,
    /// When it was last used.
    used: u64,
}

impl Ceiling {
    /// Makes it that of `noise`, or of none, with so many blocks, unless it is.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "it has to be compiled for the caller's instructions"
    )]
    pub(super) fn make(&mut self, noise: Option<&Noise>, blocks: usize) {
        let len = blocks * BLOCK;
        if self.noise.as_ref() == noise && self.values.len() == len {
            return;
        }
        self.noise = noise.copied();
        self.values.resize(len, 0.0);
        let Some(noise) = noise else {
            return self.values.fill(0.0);
        };
        let values = self.values.as_chunks_mut::<BLOCK>().0;
        for (index, values) in values.iter_mut().enumerate() {
            fill(noise, index, values);
        }
    }
}

/// Fills in the `index`-th block.
#[inline(always)]
fn fill(noise: &Noise, index: usize, values: &mut [f32; BLOCK]) {
    /// `24 + 127`: the bits of an `f32`, over 2^23, are its binary logarithm plus 127, or less;
    /// 24 are the bits of a word that fit its mantissa.
    const OFFSET: f32 = 151.0 * core::f32::consts::LN_2;
    const PER_BIT: f32 = core::f32::consts::LN_2 / (1 << 23) as f32;
    let words = noise.words::<COUNTERS>((index * COUNTERS) as u32);
    for lane in 0..COUNTERS {
        for (j, row) in words.iter().enumerate() {
            let complement = (!row[lane] >> 8) as i32;
            let bits = (complement as f32).to_bits() as i32;
            values[4 * lane + j] = OFFSET - bits as f32 * PER_BIT;
        }
    }
}

/// Those of the positions that were last asked for.
#[derive(Clone, Debug, Default)]
pub(super) struct Ceilings {
    kept: Vec<Ceiling>,
    /// Uses so far.
    clock: u64,
}

impl Ceilings {
    /// That of `noise` over `tokens` tokens if it is kept, or else the one that was not used for
    /// longest, to be made anew.
    pub(super) fn of(&mut self, noise: Option<&Noise>, tokens: usize) -> &mut Ceiling {
        self.clock += 1;
        let most = (VALUES / tokens.max(1)).clamp(1, POSITIONS);
        self.kept.truncate(most);
        let mut kept = self.kept.iter();
        let place = match kept.position(|ceiling| ceiling.noise.as_ref() == noise) {
            Some(known) => known,
            None if self.kept.len() < most => {
                self.kept.push(Ceiling::default());
                self.kept.len() - 1
            }
            None => {
                let ages = self.kept.iter().enumerate();
                let oldest = ages.min_by_key(|(_, ceiling)| ceiling.used);
                oldest.map_or(0, |(place, _)| place)
            }
        };
        let ceiling = &mut self.kept[place];
        ceiling.used = self.clock;
        ceiling
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Seed,
        noise::{Domain, philox},
        sampling::{Sampler, SamplingParams, Scratch},
    };

    #[test]
    fn what_is_kept_is_never_taken_for_that_of_another_position_request_or_vocabulary() {
        let mut kept = Scratch::new();
        for round in 0..2000 {
            let word = |salt| philox([round, salt, 0, 0], [1, 1])[0] as usize;
            let len = [64, 65, 700][word(0) % 3];
            let logits: Vec<f32> = (0..len)
                .map(|i| (i * 31 % 97) as f32 / 40.0 - word(1) as f32 / 1e10)
                .collect();
            let params = SamplingParams {
                temperature: [0.7, 1.0][word(2) % 2],
                ..SamplingParams::default()
            };
            let seed = Seed(word(3) as u64 % 3);
            let mut sampler = Sampler::new(params, seed, &[], 0).expect("valid");
            (0..word(4) % 40).for_each(|_| sampler.push(crate::TokenId(0)));
            let mut fresh = Scratch::new();
            let token = sampler.choose(&logits, &mut fresh);
            assert_eq!(sampler.choose(&logits, &mut kept), token);
            assert_eq!(kept.bounds(), fresh.bounds());
        }
    }

    #[test]
    fn the_positions_that_were_last_asked_for_are_kept() {
        let mut ceilings = Ceilings::default();
        let noise = |position| Noise::new(Seed(1), Domain::Coupled, position);
        let known = |ceilings: &Ceilings, position| {
            let mut kept = ceilings.kept.iter();
            kept.any(|ceiling| ceiling.noise == Some(noise(position)))
        };
        for position in 0..POSITIONS as u32 {
            let noise = noise(position);
            ceilings.of(Some(&noise), 100).make(Some(&noise), 2);
        }
        ceilings.of(Some(&noise(0)), 100);
        for position in [100, 101] {
            let noise = noise(position);
            ceilings.of(Some(&noise), 100).make(Some(&noise), 2);
        }
        assert_eq!(
            [0, 1, 2, 3].map(|p| known(&ceilings, p)),
            [true, false, false, true]
        );
        // One large vocabulary does not take more than its share of memory.
        ceilings.of(Some(&noise(7)), VALUES / 3);
        assert_eq!(ceilings.kept.len(), 3);
    }
}
