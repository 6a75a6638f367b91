//! The reference models and their outputs (`tests/fixtures` at the top of the repository).

use std::path::{Path, PathBuf};

use foretoken_engine::isa::Isa;
use foretoken_engine::model::{CpuOptions, CpuRunner, KvSize, KvType, WeightType};
use safetensors::SafeTensors;

/// Every reference model.
pub(crate) const NAMES: [&str; 7] = [
    "llama-mha",
    "llama-gqa-tied",
    "llama3-rope",
    "qwen3",
    "mistral-swa",
    "opt",
    "llama-draft",
];

/// Folder of a reference model.
pub(crate) fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/fixtures")
        .join(name)
}

/// Loads a model with a small pool.
pub(crate) fn load(folder: &Path, isa: Isa, dtype: WeightType, kv_dtype: KvType) -> CpuRunner {
    let options = CpuOptions {
        dtype,
        kv_dtype,
        threads: Some(1),
        isa: Some(isa),
        kv: KvSize::Pages(48),
        max_rows: 128,
        ..CpuOptions::default()
    };
    CpuRunner::load(folder, &options).unwrap()
}

/// What the reference implementation computed, in f32.
pub(crate) struct Expected {
    /// Four prompts of equal length.
    pub(crate) prompts: Vec<Vec<u32>>,
    /// Logits of every token of every prompt.
    pub(crate) logits: Vec<Vec<Vec<f32>>>,
    /// Greedy continuation of each prompt.
    pub(crate) greedy: Vec<Vec<u32>>,
    /// Log-probability of each of these.
    pub(crate) greedy_lp: Vec<Vec<f32>>,
    /// How far the greedy token was ahead of the next, in logits.
    pub(crate) margin: Vec<Vec<f32>>,
    /// Lengths to cut the prompts to for the ragged batch.
    pub(crate) batch_lens: Vec<usize>,
    /// Last logits of the cut prompts.
    pub(crate) batch_logits: Vec<Vec<f32>>,
}

impl Expected {
    pub(crate) fn read(name: &str) -> Self {
        let bytes = std::fs::read(folder(name).join("expected.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let vocab = *file.tensor("logits").unwrap().shape().last().unwrap();
        let length = file.tensor("prompts").unwrap().shape()[1];
        let steps = file.tensor("greedy").unwrap().shape()[1];
        let logits = rows(&floats(&file, "logits"), vocab);
        Self {
            prompts: rows(&ids(&file, "prompts"), length),
            logits: logits.chunks(length).map(<[Vec<f32>]>::to_vec).collect(),
            greedy: rows(&ids(&file, "greedy"), steps),
            greedy_lp: rows(&floats(&file, "greedy_lp"), steps),
            margin: rows(&floats(&file, "margin"), steps),
            batch_lens: ids(&file, "batch_lens")
                .iter()
                .map(|n| *n as usize)
                .collect(),
            batch_logits: rows(&floats(&file, "batch_logits"), vocab),
        }
    }
}

fn rows<T: Clone>(values: &[T], width: usize) -> Vec<Vec<T>> {
    values.chunks(width).map(<[T]>::to_vec).collect()
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let (values, rest) = file.tensor(name).unwrap().data().as_chunks::<4>();
    assert!(rest.is_empty());
    values.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn ids(file: &SafeTensors<'_>, name: &str) -> Vec<u32> {
    let (values, _) = file.tensor(name).unwrap().data().as_chunks::<8>();
    values
        .iter()
        .map(|b| u32::try_from(i64::from_le_bytes(*b)).unwrap())
        .collect()
}
