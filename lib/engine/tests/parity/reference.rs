//! Against the reference implementation: f32 closely, bf16 and int8 within stated tolerances.

use foretoken_engine::isa::Isa;
use foretoken_engine::model::{CpuRunner, KvType, WeightType};

use crate::fixture::{self, Expected};
use crate::sequence::{Rows, Sequence, argmax, causal, step};

/// Largest difference to the reference, as a part of the row's largest logit.
fn row_error(found: &[f32], wanted: &[f32]) -> f32 {
    assert_eq!(found.len(), wanted.len());
    let largest = wanted.iter().fold(0f32, |m, x| m.max(x.abs()));
    let error = |(a, b): (&f32, &f32)| {
        if a.is_finite() {
            (a - b).abs()
        } else {
            f32::INFINITY
        }
    };
    found.iter().zip(wanted).map(error).fold(0f32, f32::max) / largest
}

/// Asserts |a - b| <= 1e-4 max(1, |b|) for every logit.
#[track_caller]
fn assert_close(found: &[f32], wanted: &[f32], what: &str) {
    assert_eq!(found.len(), wanted.len(), "{what}: logits");
    for (i, (a, b)) in found.iter().zip(wanted).enumerate() {
        let near = (a - b).abs() <= 1e-4 * b.abs().max(1.0);
        assert!(near, "{what}: logit {i} is {a}, the reference has {b}");
    }
}

/// Logits of every token of the first `prompts` prompts, in one step.
fn prompt_logits(runner: &mut CpuRunner, expected: &Expected, prompts: usize) -> Vec<Vec<f32>> {
    let mut sequences: Vec<_> = (0..prompts)
        .map(|i| Sequence::new(4 * i as u32, 64))
        .collect();
    let mut batch: Vec<Rows<'_>> = Vec::new();
    for (sequence, prompt) in sequences.iter_mut().zip(&expected.prompts) {
        batch.push(causal(sequence, prompt));
    }
    step(runner, &mut batch, true)
}

#[test]
fn f32_logits_are_those_of_the_reference() {
    for isa in Isa::available() {
        for name in fixture::NAMES {
            let expected = Expected::read(name);
            let folder = fixture::folder(name);
            let mut runner = fixture::load(&folder, isa, WeightType::F32, KvType::F32);
            let found = prompt_logits(&mut runner, &expected, 4);
            let wanted: Vec<_> = expected.logits.iter().flatten().collect();
            assert_eq!(found.len(), wanted.len(), "{isa}, {name}: rows");
            for (i, (row, wanted)) in found.iter().zip(wanted).enumerate() {
                assert_close(row, wanted, &format!("{isa}, {name}, row {i}"));
            }
        }
    }
}

#[test]
fn greedy_tokens_are_those_of_the_reference_wherever_its_margin_is_clear() {
    for isa in Isa::available() {
        for name in fixture::NAMES {
            greedy_follows_the_reference(isa, name);
        }
    }
}

fn greedy_follows_the_reference(isa: Isa, name: &str) {
    let expected = Expected::read(name);
    let mut runner = fixture::load(&fixture::folder(name), isa, WeightType::F32, KvType::F32);
    let mut sequences: Vec<_> = (0..4).map(|i| Sequence::new(4 * i, 64)).collect();
    let mut feed: Vec<Vec<u32>> = expected.prompts.clone();
    let mut compared = 0;
    let mut parted = [false; 4];
    for at in 0..expected.greedy[0].len() {
        let mut batch: Vec<Rows<'_>> = Vec::new();
        for (sequence, tokens) in sequences.iter_mut().zip(&feed) {
            batch.push(causal(sequence, tokens));
        }
        let logits = step(&mut runner, &mut batch, false);
        for (i, row) in logits.iter().enumerate() {
            let (token, wanted) = (argmax(row), expected.greedy[i][at]);
            let clear = expected.margin[i][at] > 1e-3;
            assert!(
                parted[i] || !clear || token == wanted,
                "{isa}, {name}, {i}, token {at}"
            );
            // Past a tie that fell the other way the contexts differ.
            parted[i] |= token != wanted;
            if !parted[i] {
                compared += 1;
                let sum: f64 = row
                    .iter()
                    .map(|x| f64::from(*x - row[token as usize]).exp())
                    .sum();
                let difference = -sum.ln() - f64::from(expected.greedy_lp[i][at]);
                assert!(
                    difference.abs() < 1e-3,
                    "{isa}, {name}, {i}, log-probability {at}"
                );
            }
            feed[i] = vec![token];
        }
    }
    assert!(
        compared > 64,
        "{name}: only {compared} of 128 tokens had a clear margin"
    );
}

#[test]
fn a_ragged_batch_gives_the_references_padded_batch() {
    for isa in Isa::available() {
        for name in fixture::NAMES {
            let expected = Expected::read(name);
            let folder = fixture::folder(name);
            let mut runner = fixture::load(&folder, isa, WeightType::F32, KvType::F32);
            let mut sequences: Vec<_> = (0..4).map(|i| Sequence::new(4 * i, 64)).collect();
            let mut batch: Vec<Rows<'_>> = Vec::new();
            let prompts = expected.prompts.iter().zip(&expected.batch_lens);
            for (sequence, (prompt, len)) in sequences.iter_mut().zip(prompts) {
                batch.push(causal(sequence, &prompt[..*len]));
            }
            let found = step(&mut runner, &mut batch, false);
            assert_eq!(found.len(), expected.batch_logits.len());
            for (i, (row, wanted)) in found.iter().zip(&expected.batch_logits).enumerate() {
                // The reference's own padding costs it up to 2e-4.
                let error = row_error(row, wanted);
                assert!(error < 1e-4, "{isa}, {name}, sequence {i}: {error}");
            }
        }
    }
}

/// Limits for the worst and the mean row, as parts of the row's largest logit. The fixtures' weights
/// are f32 of wide spread over three layers, the worst case: a checkpoint in bf16 loses nothing in
/// its weights (`shipped.rs` has its closer limits).
#[test]
fn reduced_weights_stay_within_their_tolerances() {
    for (dtype, limit, mean_limit) in [
        (WeightType::Bf16, 0.08, 0.025),
        (WeightType::Int8, 0.25, 0.08),
    ] {
        for isa in Isa::available() {
            for name in fixture::NAMES {
                let expected = Expected::read(name);
                let mut runner = fixture::load(&fixture::folder(name), isa, dtype, KvType::Bf16);
                let found = prompt_logits(&mut runner, &expected, 4);
                let wanted = expected.logits.iter().flatten();
                assert_eq!(found.len(), wanted.clone().count());
                let errors: Vec<f32> = found
                    .iter()
                    .zip(wanted)
                    .map(|(a, b)| row_error(a, b))
                    .collect();
                let worst = errors.iter().copied().fold(0f32, f32::max);
                let mean = errors.iter().sum::<f32>() / errors.len() as f32;
                assert!(
                    worst < limit && mean < mean_limit,
                    "{isa}, {dtype}, {name}: worst row {worst}, mean {mean}"
                );
            }
        }
    }
}
