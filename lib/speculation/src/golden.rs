//! What seeds give, pinned bit for bit. A change of anything here changes the text that users' seeds
//! give, and parts targets and drafts of different versions: it is BREAKING.

use std::vec::Vec;

use crate::{
    Seed, TokenId,
    hash::mix,
    noise::{Domain, Noise, gumbel},
    sampling::{Sampler, SamplingParams, Scratch},
};

/// Its two halves differ, and so do their bytes.
const SEED: Seed = Seed(0x0123_4567_89ab_cdef);

#[test]
fn gumbel_noise_has_these_bits() {
    let pinned: [(u32, u64); 5] = [
        (0x0000_0000, 0xc009_0a3a_a15a_0b5d),
        (0x0000_0001, 0xc008_a56c_b668_69f4),
        (0x1234_5678, 0xbfef_1b82_b00c_771d),
        (0x8000_0000, 0x3fd7_74f2_9c39_c0bd),
        (0xffff_ffff, 0x4036_dfb5_16f1_cbbf),
    ];
    for (word, bits) in pinned {
        assert_eq!(gumbel(word).to_bits(), bits, "of {word:#010x}");
    }
    // Logarithms that differ in some last bits only differ here.
    let words = (0..0x10_0000_u32)
        .step_by(16)
        .map(|word| word.wrapping_mul(0x9e37_79b9));
    let digest = words.fold(0, |digest, word| mix(digest ^ gumbel(word).to_bits()));
    assert_eq!(digest, 0x734e_4b13_d7bd_be6c);
}

#[test]
fn every_place_of_every_domain_has_this_word_and_this_uniform_number() {
    // Position, round, and token or draw.
    let places = [(0, 0, 0), (7, 0, 5), (7, 3, 5), (100_000, 0, 151_935)];
    let pinned: [(Domain, [(u32, u64); 4]); 3] = [
        (
            Domain::Coupled,
            [
                (0xb850_222e, 0x3fe7_0a04_45d8_b197),
                (0x57cb_88df, 0x3fcc_251f_43a3_768c),
                (0x379a_d64b, 0x3fda_2bad_d512_62e6),
                (0xda7c_1c03, 0x3fee_9b03_b043_5de5),
            ],
        ),
        (
            Domain::Verify,
            [
                (0xfa9d_ff5e, 0x3fef_53bf_ebcd_8211),
                (0x0da3_12fc, 0x3fec_d42f_aa2a_f31f),
                (0xc3e4_e224, 0x3fe9_30b6_6e5d_c84d),
                (0xa241_1000, 0x3fef_66ee_4e24_c69b),
            ],
        ),
        (
            Domain::Propose,
            [
                (0x98e8_077e, 0x3fe3_1d00_efc8_99f7),
                (0xded3_46e9, 0x3fca_852a_d8dd_b69c),
                (0xd845_074c, 0x3fe8_c08a_81fc_0fa3),
                (0x6476_9311, 0x3fdb_25f7_67f7_5e3e),
            ],
        ),
    ];
    for (domain, pinned) in pinned {
        for ((position, round, index), (word, uniform)) in places.into_iter().zip(pinned) {
            let noise = Noise::of_round(SEED, domain, position, round);
            let place = (domain, position, round, index);
            assert_eq!(noise.word(TokenId(index)), word, "{place:?}");
            assert_eq!(noise.uniform(index).to_bits(), uniform, "{place:?}");
        }
    }
}

#[test]
fn choices_of_one_request_have_these_seeds() {
    let pinned = [
        SEED.0,
        0x8e39_8032_3f3d_ce39,
        0xa33b_a70b_2933_3ab3,
        0x5bed_6dd3_dc00_f260,
    ];
    for (choice, seed) in (0..).zip(pinned) {
        assert_eq!(SEED.derive(choice), Seed(seed), "choice {choice}");
    }
}

#[test]
fn a_seed_gives_these_tokens() {
    let params = SamplingParams {
        temperature: 0.8,
        ..SamplingParams::default()
    };
    // Exact in binary, all different, and near enough to each other that the noise decides.
    let logits: Vec<f32> = (0..64_u16).map(|t| f32::from(t * 37 % 64) / 16.0).collect();
    let mut sampler = Sampler::new(params, Seed(42), &[TokenId(1)], 1).unwrap();
    let mut scratch = Scratch::new();
    let mut tokens = Vec::new();
    for _ in 0..8 {
        let token = sampler.choose(&logits, &mut scratch);
        sampler.push(token);
        tokens.push(token.0);
    }
    assert_eq!(tokens, [17, 43, 63, 56, 19, 19, 50, 41]);
}
