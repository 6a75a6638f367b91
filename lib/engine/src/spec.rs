//! What a model is, as data: shapes, norms, positions and options read from `config.json`.
//!
//! ```text
//! config.json --config::Config--> fields --family--> ModelSpec --names--> tensor names
//! ```
//!
//! One loop over layers serves every family; only this data and the names differ. Both forms of
//! the file are read: transformers 4.x (`rope_theta`, `rope_scaling`) and 5.x
//! (`rope_parameters`).
//!
//! Not here: weights (`weights`) and arithmetic (`model`, `cpu`).

pub mod config;
mod family;
pub mod names;
pub mod rope;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use config::Config;
pub use names::Names;
pub use rope::{Rope, RopeScaling};

/// The model families that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `LlamaForCausalLM`.
    Llama,
    /// `MistralForCausalLM`: Llama with a sliding window.
    Mistral,
    /// `Qwen3ForCausalLM`: Llama with a norm on every query and key head.
    Qwen3,
    /// `OPTForCausalLM`: learned positions, `LayerNorm`, biases, an ungated MLP.
    Opt,
}

/// The norm in front of every block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Norm {
    /// x / rms(x) * weight.
    Rms {
        /// Added to the mean square.
        eps: f32,
    },
    /// (x - mean) / std * weight + bias.
    Layer {
        /// Added to the variance.
        eps: f32,
    },
}

/// How a token learns where it stands.
#[derive(Clone, Debug, PartialEq)]
pub enum Positions {
    /// Queries and keys are rotated by position.
    Rope(Rope),
    /// A learned row is added to the embedding; position p takes row `p + offset`.
    Learned {
        /// Rows in front of position 0.
        offset: usize,
    },
}

/// The MLP between its matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mlp {
    /// down(silu(gate(x)) * up(x)).
    GatedSilu,
    /// down(relu(up(x))).
    Relu,
}

/// Which matrices have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Biases {
    /// Query, key, value and output projections.
    pub attention: bool,
    /// The MLP's matrices.
    pub mlp: bool,
}

/// Everything the forward pass has to know about a model but its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// The family, for names and messages.
    pub family: Family,
    /// Entries of the vocabulary.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Inner width of the MLP.
    pub ffn_size: usize,
    /// Longest sequence, in tokens.
    pub max_positions: usize,
    /// The norm of every layer and of the last hidden state.
    pub norm: Norm,
    /// Whether a norm follows the last layer.
    pub final_norm: bool,
    /// How positions enter.
    pub positions: Positions,
    /// The MLP's form.
    pub mlp: Mlp,
    /// Which matrices have a bias.
    pub biases: Biases,
    /// Whether each query and key head is normed (RMS, `norm`'s eps) before rotation.
    pub qk_norm: bool,
    /// Whether the head is the embedding table.
    pub tied_head: bool,
    /// Tokens each layer's attention reaches back, the token itself included; `None` is all.
    pub windows: Vec<Option<usize>>,
}

impl ModelSpec {
    /// Reads `config.json` of a Hugging Face model folder.
    ///
    /// # Errors
    /// [`SpecError`], naming file, field, value and what is allowed.
    pub fn from_folder(folder: &Path) -> Result<Self, SpecError> {
        Self::from_config(&Config::read(&folder.join("config.json"))?)
    }

    /// Reads the text of a `config.json`; `file` names it in messages.
    ///
    /// # Errors
    /// As [`ModelSpec::from_folder`].
    pub fn from_json(file: &Path, json: &str) -> Result<Self, SpecError> {
        Self::from_config(&Config::parse(file, json)?)
    }

    /// Reads a parsed `config.json`.
    ///
    /// # Errors
    /// As [`ModelSpec::from_folder`].
    pub fn from_config(config: &Config) -> Result<Self, SpecError> {
        family::spec(config)
    }

    /// Values of all query heads of a token.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Values of all key heads of a token (and of all value heads).
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// How the family names its tensors.
    pub fn names(&self) -> Names {
        Names::of(self.family)
    }
}

/// Why a `config.json` describes no model that can be run.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The file cannot be read.
    #[error("cannot read {file}: a model folder needs a config.json that this user may read")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The file is no JSON object; the source says where.
    #[error("{file} is not a JSON object: {source}")]
    Malformed {
        /// The file.
        file: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A field that has no default is missing.
    #[error("{file}: `{field}` is missing, it must be {allowed}")]
    Missing {
        /// The file.
        file: PathBuf,
        /// The field, with dots between levels.
        field: String,
        /// What may stand there.
        allowed: String,
    },
    /// A field holds what cannot be used.
    #[error("{file}: `{field}` is {value}, it must be {allowed}")]
    Field {
        /// The file.
        file: PathBuf,
        /// The field, with dots between levels.
        field: String,
        /// What stands there, as JSON, cut if long.
        value: String,
        /// What may stand there.
        allowed: String,
    },
    /// A model of a family that is not supported.
    #[error("{file}: architecture {found} is not known; known are {known}")]
    UnknownArchitecture {
        /// The file.
        file: PathBuf,
        /// What the file says.
        found: String,
        /// Every architecture that can be run.
        known: String,
    },
}
