//! A model on the CPU: weights packed once, one loop over layers for every family.
//!
//! ```text
//! folder --spec--> ModelSpec --weights--> tensors --pack--> layers --forward--> logits
//! ```
//!
//! A step allocates nothing: every buffer is made at load for `max_rows` rows.
//!
//! Not here: reading files (`spec`, `weights`), kernels (`cpu`), sequences (`batch`).

pub mod options;

use std::path::{Path, PathBuf};

pub use options::{CpuOptions, KvSize, LoadProgress, Progress, UnknownType};

pub use crate::cpu::{KvType, WeightType};
use crate::spec::SpecError;
use crate::weights::WeightsError;

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// `config.json` describes no model that can be run.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The weights are missing, damaged or do not fit `config.json`.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// An option that cannot be satisfied.
    #[error("{folder}: option `{option}` is {value}, it must be {allowed}")]
    Option {
        /// The model folder.
        folder: PathBuf,
        /// Name of the field of [`CpuOptions`].
        option: &'static str,
        /// What it holds.
        value: String,
        /// What it may hold.
        allowed: String,
    },
}

/// A model whose weights, KV pages and buffers are in this process's memory.
pub struct CpuRunner {
    info: crate::runner::RunnerInfo,
}

impl CpuRunner {
    /// Loads a Hugging Face model folder: `config.json` and `model.safetensors`, or shards with
    /// `model.safetensors.index.json`.
    ///
    /// # Errors
    /// [`LoadError`], naming the file and the field, tensor or option.
    pub fn load(folder: &Path, options: &CpuOptions) -> Result<Self, LoadError> {
        options.check(folder)?;
        let spec = crate::spec::ModelSpec::from_folder(folder)?;
        let weights = crate::weights::Weights::open(folder)?;
        let info = crate::runner::RunnerInfo {
            vocab_size: spec.vocab_size,
            max_positions: spec.max_positions,
            pages: 0,
            max_rows: options.max_rows,
            model_digest: weights.digest(b""),
            path: format!("cpu/{}", options.dtype),
        };
        Ok(Self { info })
    }

    /// Facts that do not change while it runs.
    pub fn facts(&self) -> &crate::runner::RunnerInfo {
        &self.info
    }
}
