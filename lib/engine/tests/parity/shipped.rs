//! The shipped pair: the weights that users meet first.

use std::path::{Path, PathBuf};

use foretoken_engine::isa::Isa;
use foretoken_engine::model::{CpuRunner, KvType, WeightType};

use crate::fixture;
use crate::sequence::{Sequence, argmax, assert_same_bits, causal, step};

/// "<s>Question: A farmer has 5 boxes of apples." by the pair's tokenizer.
const PROMPT: [u32; 12] = [0, 381, 28, 384, 3798, 399, 223, 23, 1255, 281, 1003, 16];

/// Folder of one of them, `target` or `draft`.
pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models")
        .join(name)
}

/// Greedy continuation of the prompt, with the logits each token was chosen from.
fn greedy(runner: &mut CpuRunner, count: usize) -> Vec<(u32, Vec<f32>)> {
    let mut sequence = Sequence::new(0, 256);
    let mut feed = PROMPT.to_vec();
    let mut chosen = Vec::new();
    for _ in 0..count {
        let row = step(runner, &mut [causal(&mut sequence, &feed)], false).remove(0);
        feed = vec![argmax(&row)];
        chosen.push((feed[0], row));
    }
    chosen
}

#[test]
fn both_models_write_the_same_text_every_time() {
    for name in ["target", "draft"] {
        let run = || {
            let folder = folder(name);
            let mut runner = fixture::load(&folder, Isa::best(), WeightType::Bf16, KvType::Bf16);
            greedy(&mut runner, 48)
        };
        let (first, second) = (run(), run());
        for (i, (a, b)) in first.iter().zip(&second).enumerate() {
            assert_same_bits(&a.1, &b.1, &format!("{name}, token {i}"));
        }
    }
}

#[test]
fn the_draft_agrees_with_the_target_as_often_as_its_training_reached() {
    let mut target = fixture::load(
        &folder("target"),
        Isa::best(),
        WeightType::Bf16,
        KvType::Bf16,
    );
    let mut draft = fixture::load(
        &folder("draft"),
        Isa::best(),
        WeightType::Bf16,
        KvType::Bf16,
    );
    let written: Vec<u32> = greedy(&mut target, 128)
        .into_iter()
        .map(|(token, _)| token)
        .collect();
    let text: Vec<u32> = PROMPT
        .iter()
        .copied()
        .chain(written.iter().copied())
        .collect();
    let mut sequence = Sequence::new(0, 256);
    let mut guesses = Vec::new();
    for chunk in text.chunks(100) {
        let rows = step(&mut draft, &mut [causal(&mut sequence, chunk)], true);
        guesses.extend(rows.iter().map(|row| argmax(row)));
    }
    let hits = written
        .iter()
        .zip(&guesses[PROMPT.len() - 1..])
        .filter(|(a, b)| a == b)
        .count();
    // 0.85 over many prompts; random weights or a wrong tensor give less than 0.05.
    assert!(hits >= 80, "{hits} of {} tokens guessed", written.len());
}

#[test]
fn reduced_arithmetic_follows_the_exact_one() {
    for name in ["target", "draft"] {
        for isa in Isa::available() {
            let folder = folder(name);
            let exact = greedy(
                &mut fixture::load(&folder, isa, WeightType::F32, KvType::F32),
                1,
            );
            for (dtype, limit) in [(WeightType::Bf16, 0.02), (WeightType::Int8, 0.05)] {
                let mut runner = fixture::load(&folder, isa, dtype, KvType::Bf16);
                let found = greedy(&mut runner, 1);
                let largest = exact[0].1.iter().fold(0f32, |m, x| m.max(x.abs()));
                let pairs = exact[0].1.iter().zip(&found[0].1);
                let error = pairs.map(|(a, b)| (a - b).abs()).fold(0f32, f32::max) / largest;
                assert!(error < limit, "{isa}, {name}, {dtype}: {error}");
            }
        }
    }
}
