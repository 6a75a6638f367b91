//! The forms a checkpoint comes in: old and new configuration, one file or shards, names with and
//! without prefix, 16 bit weights; and options that no fixture has, against a naive computation.

use foretoken_engine::isa::Isa;
use foretoken_engine::model::{KvType, WeightType};
use foretoken_engine::runner::ModelRunner;
use safetensors::Dtype;
use serde_json::json;
use tempfile::TempDir;

use crate::checkpoint::{Checkpoint, Tensor};
use crate::fixture::{self, Expected};
use crate::oracle;
use crate::sequence::{Sequence, assert_same_bits, causal, step};

/// Logits of every token of a fixture's first prompt, from a folder.
fn logits(folder: &TempDir, isa: Isa) -> Vec<Vec<f32>> {
    let mut runner = fixture::load(folder.path(), isa, WeightType::F32, KvType::F32);
    step(
        &mut runner,
        &mut [causal(&mut Sequence::new(0, 64), &prompt())],
        true,
    )
}

fn prompt() -> Vec<u32> {
    Expected::read("llama-mha").prompts[0].clone()
}

#[track_caller]
fn assert_equal_models(a: &TempDir, b: &TempDir) {
    let isa = Isa::best();
    for (i, (a, b)) in logits(a, isa).iter().zip(&logits(b, isa)).enumerate() {
        assert_same_bits(a, b, &format!("token {i}"));
    }
}

#[test]
fn the_older_form_of_the_configuration_means_the_same() {
    for (name, older) in [
        (
            "llama-gqa-tied",
            json!({"rope_parameters": null, "rope_theta": 500_000.0, "rope_scaling": null,
            "dtype": null, "torch_dtype": "float32"}),
        ),
        (
            "qwen3",
            json!({"rope_parameters": null, "rope_theta": 10_000, "layer_types": null}),
        ),
        (
            "mistral-swa",
            json!({"rope_parameters": null, "rope_theta": 10_000.0}),
        ),
        (
            "llama3-rope",
            json!({"rope_parameters": null, "rope_theta": 10_000.0, "rope_scaling": {
            "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}}),
        ),
    ] {
        let newer = Checkpoint::of(name);
        let mut old = newer.clone();
        old.set(&older);
        assert_equal_models(&old.write(), &newer.write());
    }
}

#[test]
fn shards_give_the_logits_and_the_digest_of_one_file() {
    let checkpoint = Checkpoint::of("llama-mha");
    let (whole, shards) = (checkpoint.write(), checkpoint.write_shards(3));
    assert_equal_models(&whole, &shards);
    let digest = |folder: &TempDir| {
        let runner = fixture::load(folder.path(), Isa::Portable, WeightType::Bf16, KvType::Bf16);
        runner.info().model_digest.clone()
    };
    assert_eq!(digest(&whole), digest(&shards));
    let mut other = checkpoint.clone();
    let last = other
        .tensors
        .get_mut("model.layers.2.mlp.up_proj.weight")
        .unwrap();
    last.bytes[77] ^= 1;
    assert_ne!(
        digest(&whole),
        digest(&other.write()),
        "one changed bit changes the digest"
    );
}

#[test]
fn names_may_lack_the_prefix_of_the_whole_model() {
    for (name, prefix, shorter) in [
        ("qwen3", "model.", ""),
        ("opt", "model.", ""),
        ("opt", "model.decoder.", ""),
    ] {
        let checkpoint = Checkpoint::of(name);
        let mut body = checkpoint.clone();
        body.rename(|name| match name.strip_prefix(prefix) {
            Some(rest) => format!("{shorter}{rest}"),
            None => name.to_owned(),
        });
        assert_equal_models(&body.write(), &checkpoint.write());
    }
}

#[test]
fn sixteen_bit_weights_are_read_exactly() {
    for dtype in [Dtype::BF16, Dtype::F16] {
        let mut narrow = Checkpoint::of("llama-gqa-tied");
        narrow.map(|tensor| tensor.narrowed(dtype));
        let mut wide = narrow.clone();
        wide.map(Tensor::widened);
        assert_equal_models(&narrow.write(), &wide.write());
    }
}

/// A fixture with a small bias on every matrix of its layers.
fn biased(name: &str) -> Checkpoint {
    let mut checkpoint = Checkpoint::of(name);
    checkpoint.set(&json!({"attention_bias": true, "mlp_bias": true}));
    let matrices: Vec<(String, usize)> = checkpoint
        .tensors
        .iter()
        .filter(|(name, _)| name.ends_with("_proj.weight"))
        .map(|(name, tensor)| (name.replace(".weight", ".bias"), tensor.shape[0]))
        .collect();
    for (i, (name, rows)) in matrices.into_iter().enumerate() {
        let values: Vec<f32> = (0..rows)
            .map(|n| ((n * 37 + i * 11) % 29) as f32 / 60.0 - 0.2)
            .collect();
        checkpoint
            .tensors
            .insert(name, Tensor::of(&[rows], &values));
    }
    checkpoint
}

#[test]
fn options_without_a_fixture_agree_with_a_naive_computation() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0,
        "original_max_position_embeddings": 64});
    let linear = json!({"rope_type": "linear", "factor": 2.5, "rope_theta": 10_000.0});
    for (what, mut checkpoint, change) in [
        ("unchanged", Checkpoint::of("llama-gqa-tied"), json!({})),
        ("biases", biased("llama-mha"), json!({})),
        (
            "linear",
            Checkpoint::of("llama-mha"),
            json!({"rope_parameters": linear}),
        ),
        (
            "yarn",
            Checkpoint::of("llama-mha"),
            json!({"rope_parameters": yarn}),
        ),
        (
            "mixed windows",
            Checkpoint::of("qwen3"),
            json!({"use_sliding_window": true,
            "sliding_window": 7,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"]}),
        ),
        (
            "no window",
            Checkpoint::of("mistral-swa"),
            json!({"sliding_window": 1000}),
        ),
    ] {
        checkpoint.set(&change);
        let wanted = oracle::logits(&checkpoint, &prompt());
        let folder = checkpoint.write();
        for isa in Isa::available() {
            for (at, (row, wanted)) in logits(&folder, isa).iter().zip(&wanted).enumerate() {
                for (i, (a, b)) in row.iter().zip(wanted).enumerate() {
                    let near = (f64::from(*a) - b).abs() <= 1e-4 * b.abs().max(1.0);
                    assert!(near, "{what}, {isa}, token {at}, logit {i}: {a} for {b}");
                }
            }
        }
    }
}
