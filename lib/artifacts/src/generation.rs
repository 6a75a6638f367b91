//! `generation_config.json`: what ends an output, and how its makers sample.

use std::path::Path;

use foretoken_speculation::TokenId;
use serde::Deserialize;

use crate::file::{FileError, read_json};

/// Token ids and sampling defaults of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end an output; several for chat models.
    pub eos: Vec<TokenId>,
    /// Token that begins a sequence.
    pub bos: Option<TokenId>,
    /// Padding token.
    pub pad: Option<TokenId>,
    /// Sampling that the model's makers recommend.
    pub sampling: SamplingDefaults,
    /// Longest sequence by `config.json`.
    pub max_positions: Option<u32>,
    /// Entries of the vocabulary by `config.json`.
    pub vocab_size: Option<u32>,
}

/// Sampling parameters that a request gets if it names none. As in vLLM, `do_sample` is not
/// looked at: it says what the makers' own script does, not what a user of the API wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct SamplingDefaults {
    /// Divides the logits.
    pub temperature: Option<f32>,
    /// Keeps the k likeliest tokens.
    pub top_k: Option<u32>,
    /// Keeps the smallest set of likeliest tokens with this probability.
    pub top_p: Option<f32>,
    /// Keeps tokens at least this likely relative to the likeliest.
    pub min_p: Option<f32>,
    /// Penalty on tokens seen.
    pub repetition_penalty: Option<f32>,
}

/// One id, or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Ids {
    One(u32),
    Many(Vec<u32>),
}

impl Ids {
    fn into_tokens(self) -> Vec<TokenId> {
        match self {
            Self::One(id) => vec![TokenId(id)],
            Self::Many(ids) => ids.into_iter().map(TokenId).collect(),
        }
    }
}

/// The fields of both files that matter here. `config.json` of multimodal models keeps them in
/// `text_config`.
#[derive(Clone, Debug, Default, Deserialize)]
struct Raw {
    eos_token_id: Option<Ids>,
    bos_token_id: Option<Ids>,
    pad_token_id: Option<Ids>,
    max_position_embeddings: Option<u32>,
    vocab_size: Option<u32>,
    #[serde(flatten)]
    sampling: SamplingDefaults,
    text_config: Option<Box<Raw>>,
}

impl GenerationConfig {
    /// Reads `generation_config.json` of a model folder; fields it lacks come from `config.json`.
    ///
    /// # Errors
    /// If one of the files is there and not valid. Neither has to be there.
    pub fn load(folder: &Path) -> Result<Self, FileError> {
        let generation: Raw = read_json(folder, "generation_config.json")?.unwrap_or_default();
        let mut config: Raw = read_json(folder, "config.json")?.unwrap_or_default();
        let text = config
            .text_config
            .take()
            .map(|raw| *raw)
            .unwrap_or_default();
        let first = |ids: [Option<Ids>; 3]| {
            ids.into_iter()
                .flatten()
                .map(Ids::into_tokens)
                .find(|ids| !ids.is_empty())
        };
        let one = |ids| first(ids).and_then(|ids| ids.first().copied());
        Ok(Self {
            eos: first([
                generation.eos_token_id,
                config.eos_token_id,
                text.eos_token_id,
            ])
            .unwrap_or_default(),
            bos: one([
                generation.bos_token_id,
                config.bos_token_id,
                text.bos_token_id,
            ]),
            pad: one([
                generation.pad_token_id,
                config.pad_token_id,
                text.pad_token_id,
            ]),
            sampling: generation.sampling,
            max_positions: config
                .max_position_embeddings
                .or(text.max_position_embeddings),
            vocab_size: config.vocab_size.or(text.vocab_size),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn several_eos_ids_are_kept() {
        let dir = folder(&[
            (
                "generation_config.json",
                r#"{"eos_token_id": [5, 7], "temperature": 0.6, "top_k": 20}"#,
            ),
            (
                "config.json",
                r#"{"eos_token_id": 1, "bos_token_id": 0, "max_position_embeddings": 64}"#,
            ),
        ]);
        let config = GenerationConfig::load(dir.path()).unwrap();
        assert_eq!(config.eos, [TokenId(5), TokenId(7)]);
        assert_eq!(config.bos, Some(TokenId(0)));
        assert_eq!(config.sampling.temperature, Some(0.6));
        assert_eq!(config.sampling.top_k, Some(20));
        assert_eq!(config.max_positions, Some(64));
    }

    #[test]
    fn config_json_fills_in_what_generation_config_lacks() {
        let dir = folder(&[("config.json", r#"{"text_config": {"eos_token_id": [3]}}"#)]);
        let config = GenerationConfig::load(dir.path()).unwrap();
        assert_eq!(config.eos, [TokenId(3)]);
        assert_eq!(config.sampling, SamplingDefaults::default());
        let none = GenerationConfig::load(folder(&[]).path()).unwrap();
        assert_eq!(none, GenerationConfig::default());
    }

    #[test]
    fn a_broken_file_is_named() {
        let dir = folder(&[("generation_config.json", r#"{"eos_token_id": "x"}"#)]);
        let error = GenerationConfig::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("generation_config.json"), "{error}");
    }
}
