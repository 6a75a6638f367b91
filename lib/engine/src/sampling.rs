//! Sampling's noise with the vector instructions of the processor.
//!
//! `foretoken-speculation` chooses tokens but cannot ask what the processor has. The bounds on noisy
//! scores are the part that counts: 8.5 us a row of 4,096 tokens with the instructions that every
//! x86-64 has. They have the same bits on every path.

#![cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "vector instructions behind run-time detection")
)]

use foretoken_speculation::sampling::Scratch;
#[cfg(target_arch = "x86_64")]
use foretoken_speculation::sampling::{Bounds, Ceiling, LawRow, NoisyRow};

use crate::isa::Isa;

/// Buffers for samplers that use the path of `FORETOKEN_ISA`, or else the best of this machine.
pub fn scratch() -> Scratch {
    Isa::from_environment().map_or_else(|_| Scratch::new(), scratch_for)
}

/// Buffers for samplers that use the instructions of `isa`, if the machine has them.
fn scratch_for(isa: Isa) -> Scratch {
    match isa {
        _ if !isa.is_supported() => Scratch::new(),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => {
            Scratch::with_vectors(
                // SAFETY: the machine has the instructions, as checked above.
                |row, ceiling, bounds| unsafe { avx512(row, ceiling, bounds) },
                // SAFETY: as above.
                |row, weights| unsafe { weigh_avx512(row, weights) },
            )
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => Scratch::with_vectors(
            // SAFETY: as above.
            |row, ceiling, bounds| unsafe { avx2(row, ceiling, bounds) },
            // SAFETY: as above.
            |row, weights| unsafe { weigh_avx2(row, weights) },
        ),
        _ => Scratch::new(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
fn avx512(row: &NoisyRow<'_>, ceiling: &mut Ceiling, bounds: &mut Bounds) {
    row.bound(ceiling, bounds);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(row: &NoisyRow<'_>, ceiling: &mut Ceiling, bounds: &mut Bounds) {
    row.bound(ceiling, bounds);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2")]
fn weigh_avx512(row: &LawRow<'_>, weights: &mut [f64]) -> f64 {
    row.weigh(weights)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn weigh_avx2(row: &LawRow<'_>, weights: &mut [f64]) -> f64 {
    row.weigh(weights)
}

#[cfg(test)]
mod tests {
    use foretoken_speculation::{
        Seed, TokenId,
        noise::Domain,
        sampling::{RankBy, Ranking, Sampler, SamplingParams},
    };

    use super::*;

    /// Logits between -8 and 8, but for one that never wins.
    fn row(len: usize, seed: usize) -> Vec<f32> {
        let mut row: Vec<f32> = (0..len)
            .map(|i| ((i * 7919 + seed * 104_729) % 16_001) as f32 / 1000.0 - 8.0)
            .collect();
        row[len / 2] = f32::NEG_INFINITY;
        row
    }

    #[test]
    fn every_path_bounds_noise_with_the_same_bits() {
        for isa in Isa::available() {
            let (mut plain, mut fast) = (Scratch::new(), scratch_for(isa));
            for (seed, len) in [64, 65, 1000, 4096, 4099].into_iter().enumerate() {
                let row = row(len, seed);
                let params = SamplingParams {
                    temperature: 0.8,
                    ..SamplingParams::default()
                };
                let mut sampler = Sampler::new(params, Seed(seed as u64), &[], 0).unwrap();
                for _ in 0..20 {
                    let token = sampler.choose(&row, &mut plain);
                    assert_eq!(token, sampler.choose(&row, &mut fast), "{isa}");
                    assert_eq!(plain.bounds(), fast.bounds(), "{isa}, {len} tokens");
                    sampler.push(token);
                }
            }
        }
    }

    #[test]
    fn every_path_gives_probabilities_of_the_same_bits() {
        for isa in Isa::available() {
            let (mut plain, mut fast) = (Scratch::new(), scratch_for(isa));
            let (mut p, mut same) = (Vec::new(), Vec::new());
            for (seed, len) in [1, 15, 16, 65, 4096, 4099].into_iter().enumerate() {
                let mut row = row(len, seed);
                row[0] = 3.0;
                let params = SamplingParams {
                    temperature: 0.7,
                    ..SamplingParams::default()
                };
                let sampler = Sampler::new(params, Seed(1), &[], 0).unwrap();
                sampler.distribution(&row, &mut plain, &mut p);
                sampler.distribution(&row, &mut fast, &mut same);
                let bits = |p: &[f64]| p.iter().map(|p| p.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&p), bits(&same), "{isa}, {len} tokens");
            }
        }
    }

    #[test]
    fn every_path_ranks_alike() {
        for isa in Isa::available() {
            let (mut plain, mut fast) = (Scratch::new(), scratch_for(isa));
            let sampler = Sampler::new(SamplingParams::default(), Seed(3), &[], 0).unwrap();
            let ranking = Ranking {
                by: RankBy::Noise(Domain::Coupled),
                n: 9,
                without: Some(TokenId(4)),
            };
            let (mut best, mut same) = (Vec::new(), Vec::new());
            let row = row(3000, 1);
            sampler.rank(ranking, &row, &mut plain, &mut best);
            sampler.rank(ranking, &row, &mut fast, &mut same);
            assert_eq!(best, same, "{isa}");
        }
    }
}
