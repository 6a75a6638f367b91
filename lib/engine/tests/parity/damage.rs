//! Damaged, mismatched and missing files: each is refused with a message that names the file and
//! the tensor or field, and none ends in a panic.

use std::path::Path;

use foretoken_engine::isa::Isa;
use foretoken_engine::model::{CpuOptions, CpuRunner, KvSize};
use safetensors::Dtype;
use serde_json::json;
use tempfile::TempDir;

use crate::checkpoint::{Checkpoint, Tensor, shard_name};

const MODEL: &str = "llama-mha";
const QUERY: &str = "model.layers.1.self_attn.q_proj.weight";

/// The message and its causes, as a user sees them.
fn refusal(folder: &Path) -> String {
    let options = CpuOptions {
        threads: Some(1),
        isa: Some(Isa::Portable),
        kv: KvSize::Pages(4),
        max_rows: 8,
        ..CpuOptions::default()
    };
    let error = CpuRunner::load(folder, &options).expect_err("must be refused");
    let mut message = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        message.push_str(": ");
        message.push_str(&error.to_string());
        cause = error.source();
    }
    message
}

#[track_caller]
fn assert_refused(folder: &TempDir, words: &[&str]) {
    let message = refusal(folder.path());
    for word in words {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

fn rewrite(folder: &TempDir, change: impl FnOnce(Vec<u8>) -> Vec<u8>) {
    let file = folder.path().join("model.safetensors");
    std::fs::write(&file, change(std::fs::read(&file).unwrap())).unwrap();
}

/// A file with the given header and `data` zero bytes behind it.
fn with_header(header: &str, data: usize) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + data, 0);
    file
}

#[test]
fn a_missing_tensor_is_named_with_the_shape_it_should_have() {
    let mut checkpoint = Checkpoint::of(MODEL);
    checkpoint.tensors.remove(QUERY);
    assert_refused(
        &checkpoint.write(),
        &["model.safetensors", QUERY, "[64, 64]", "missing"],
    );
    let mut checkpoint = Checkpoint::of(MODEL);
    checkpoint.tensors.remove("lm_head.weight");
    assert_refused(&checkpoint.write(), &["lm_head.weight", "missing"]);
    checkpoint.tensors.clear();
    assert_refused(
        &checkpoint.write(),
        &["model.embed_tokens.weight", "missing"],
    );
}

#[test]
fn what_is_no_finite_number_is_named_with_its_place() {
    for (wrong, place) in [(f32::NAN, 0), (f32::INFINITY, 4095), (-f32::INFINITY, 63)] {
        let mut values = vec![0.5; 64 * 64];
        values[place] = wrong;
        let mut checkpoint = Checkpoint::of(MODEL);
        checkpoint
            .tensors
            .insert(QUERY.to_owned(), Tensor::of(&[64, 64], &values));
        let words = [
            "model.safetensors",
            QUERY,
            &format!("value {place} "),
            "finite",
        ];
        assert_refused(&checkpoint.write(), &words);
        let norm = "model.layers.0.input_layernorm.weight";
        let mut checkpoint = Checkpoint::of(MODEL);
        checkpoint
            .tensors
            .insert(norm.to_owned(), Tensor::of(&[64], &[wrong; 64]));
        assert_refused(&checkpoint.write(), &[norm, "value 0 "]);
    }
}

#[test]
fn a_wrong_shape_is_named_with_both_shapes() {
    let mut checkpoint = Checkpoint::of(MODEL);
    checkpoint
        .tensors
        .insert(QUERY.to_owned(), Tensor::of(&[64, 32], &[0.0; 64 * 32]));
    let words = ["model.safetensors", QUERY, "[64, 32]", "[64, 64]"];
    assert_refused(&checkpoint.write(), &words);
    let mut checkpoint = Checkpoint::of(MODEL);
    checkpoint.set(&json!({"vocab_size": 385}));
    assert_refused(
        &checkpoint.write(),
        &["model.embed_tokens.weight", "[384, 64]", "[385, 64]"],
    );
}

#[test]
fn a_wrong_dtype_is_named() {
    let mut checkpoint = Checkpoint::of(MODEL);
    let tensor = Tensor {
        dtype: Dtype::I8,
        shape: vec![64, 64],
        bytes: vec![0; 4096],
    };
    checkpoint.tensors.insert(QUERY.to_owned(), tensor);
    assert_refused(
        &checkpoint.write(),
        &["model.safetensors", QUERY, "I8", "BF16"],
    );
}

#[test]
fn a_truncated_file_names_the_tensor_that_is_cut() {
    let folder = Checkpoint::of(MODEL).write();
    rewrite(&folder, |mut bytes| {
        bytes.truncate(bytes.len() - 10);
        bytes
    });
    assert_refused(
        &folder,
        &["model.safetensors", "truncated", "tensor model."],
    );
    rewrite(&folder, |mut bytes| {
        bytes.truncate(100);
        bytes
    });
    assert_refused(&folder, &["model.safetensors", "header"]);
    rewrite(&folder, |_| Vec::new());
    assert_refused(&folder, &["model.safetensors", "0 bytes"]);
}

#[test]
fn a_damaged_header_is_refused_whatever_it_claims() {
    let folder = Checkpoint::of(MODEL).write();
    for (file, word) in [
        (b"\xff\xff\xff\xff\xff\xff\xff\xff{}".to_vec(), "claims"),
        (b"\xff\xff\xff\x00\x00\x00\x00\x00{}".to_vec(), "claims"),
        (with_header("not json", 4), "header"),
        (with_header("[1, 2]", 4), "header"),
        (with_header("\u{0}\u{1}", 4), "header"),
        (with_header(&"[".repeat(100_000), 4), "header"),
        (with_header(r#"{"a": 3}"#, 4), "tensor a"),
        (
            with_header(r#"{"a": {"dtype": "F32", "shape": [1]}}"#, 4),
            "tensor a",
        ),
        (entry("F32", "[1]", "4, 0"), "data_offsets"),
        (entry("F32", "[2]", "0, 4"), "data_offsets"),
        (entry("F32", "[-1]", "0, 4"), "tensor a"),
        (
            entry("F32", "[4294967296, 4294967296]", "0, 4"),
            "data_offsets",
        ),
        (
            entry("F32", "[18446744073709551615, 4]", "0, 4"),
            "data_offsets",
        ),
        (
            entry("F32", "[1]", "18446744073709551612, 18446744073709551615"),
            "data_offsets",
        ),
        (entry("F32", "[1]", "4000, 4004"), "truncated"),
        (entry("F64", "[1]", "0, 8"), "truncated"),
    ] {
        rewrite(&folder, |_| file.clone());
        assert_refused(&folder, &["model.safetensors", word]);
    }
}

fn entry(dtype: &str, shape: &str, offsets: &str) -> Vec<u8> {
    let header = format!(
        r#"{{"a": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": [{offsets}]}}}}"#
    );
    with_header(&header, 4)
}

#[test]
fn no_flipped_byte_of_a_header_panics() {
    let folder = Checkpoint::of("llama-draft").write();
    let file = folder.path().join("model.safetensors");
    let whole = std::fs::read(&file).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    for at in 0..header.min(600) {
        for change in [0x01, 0x10, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            std::fs::write(&file, &bytes).unwrap();
            // Flips within a name's own spelling or the metadata may go unnoticed here.
            if let Ok(weights) = foretoken_engine::weights::Weights::open(folder.path()) {
                weights.digest(b"");
            }
        }
    }
}

#[test]
fn an_index_must_point_to_shards_that_are_there_and_hold_what_it_says() {
    let checkpoint = Checkpoint::of(MODEL);
    let index = "model.safetensors.index.json";

    let folder = checkpoint.write_shards(2);
    std::fs::remove_file(folder.path().join(shard_name(1, 2))).unwrap();
    assert_refused(
        &folder,
        &[index, &shard_name(1, 2), "tensor", "does not exist"],
    );

    let folder = checkpoint.write_shards(2);
    let file = folder.path().join(index);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replace(QUERY, "model.layers.1.self_attn.typo")).unwrap();
    assert_refused(
        &folder,
        &[index, "model.layers.1.self_attn.typo", "does not have it"],
    );

    std::fs::write(&file, text.replace("model-0", "../model-0")).unwrap();
    assert_refused(&folder, &[index, "plain file name"]);

    for (text, word) in [
        ("{", index),
        ("{}", "weight_map"),
        (r#"{"weight_map": 1}"#, index),
    ] {
        std::fs::write(&file, text).unwrap();
        assert_refused(&folder, &["damaged", word]);
    }

    let folder = checkpoint.write_shards(2);
    std::fs::copy(
        folder.path().join(shard_name(0, 2)),
        folder.path().join(shard_name(1, 2)),
    )
    .unwrap();
    assert_refused(&folder, &["tensor model."]);
}

#[test]
fn a_folder_without_a_model_says_what_is_missing() {
    let folder = TempDir::new().unwrap();
    assert_refused(&folder, &["config.json"]);
    let checkpoint = Checkpoint::of(MODEL);
    std::fs::write(
        folder.path().join("config.json"),
        checkpoint.config.to_string(),
    )
    .unwrap();
    assert_refused(
        &folder,
        &["model.safetensors", "model.safetensors.index.json"],
    );
    std::fs::write(
        folder.path().join("config.json"),
        "{\n \"vocab_size\": ,\n}",
    )
    .unwrap();
    assert_refused(&folder, &["config.json", "line 2"]);
}

#[test]
fn options_that_cannot_be_met_are_named() {
    let folder = Checkpoint::of(MODEL).write();
    let good = CpuOptions {
        isa: Some(Isa::Portable),
        ..CpuOptions::default()
    };
    for (options, word) in [
        (
            CpuOptions {
                max_rows: 0,
                ..good.clone()
            },
            "max_rows",
        ),
        (
            CpuOptions {
                threads: Some(0),
                ..good.clone()
            },
            "threads",
        ),
        (
            CpuOptions {
                kv: KvSize::Pages(0),
                ..good.clone()
            },
            "kv",
        ),
        (
            CpuOptions {
                kv: KvSize::Pages(usize::MAX),
                ..good.clone()
            },
            "kv",
        ),
        (
            CpuOptions {
                kv: KvSize::Pages(u32::MAX as usize),
                ..good.clone()
            },
            "kv",
        ),
    ] {
        let message = CpuRunner::load(folder.path(), &options)
            .unwrap_err()
            .to_string();
        assert!(message.contains(&format!("`{word}`")), "{message}");
    }
}
