//! `generation_config.json`: what ends an output, and how its makers sample.

use std::path::Path;

use foretoken_speculation::{TokenId, sampling::SamplingParams};
use serde_json::Value;

use crate::{
    Tokenizer,
    file::{FileError, Object},
};

/// Token ids and sampling defaults of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Tokens that end an output; several for chat models.
    pub eos: Vec<TokenId>,
    /// Sampling that the model's makers recommend.
    pub sampling: SamplingDefaults,
    /// Longest sequence by `config.json`.
    pub max_positions: Option<u32>,
    /// Entries of the vocabulary by `config.json`.
    pub vocab_size: Option<u32>,
}

/// Sampling parameters that a request gets if it names none. As in vLLM, `do_sample` is not
/// looked at: it says what the makers' own script does, not what a user of the API wants.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
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

impl SamplingDefaults {
    /// Reads the fields of `generation_config.json`, which have to be what a request may have.
    fn read(config: &Object) -> Result<Self, FileError> {
        let number = |name| config.field(name, "a number", |value| Some(value.as_f64()? as f32));
        // Some tools write -1 for all tokens.
        let top_k = config.field(
            "top_k",
            "a whole number of at least -1",
            |value| match value.as_i64()? {
                -1 => Some(0),
                k => u32::try_from(k).ok(),
            },
        )?;
        let read = Self {
            temperature: number("temperature")?,
            top_k,
            top_p: number("top_p")?,
            min_p: number("min_p")?,
            repetition_penalty: number("repetition_penalty")?,
        };
        let usual = SamplingParams::default();
        let sampling = SamplingParams {
            temperature: read.temperature.unwrap_or(usual.temperature),
            top_p: read.top_p.unwrap_or(usual.top_p),
            min_p: read.min_p.unwrap_or(usual.min_p),
            repetition_penalty: read.repetition_penalty.unwrap_or(usual.repetition_penalty),
            ..usual
        };
        sampling.validate().map_err(|source| FileError::Sampling {
            path: config.path().to_owned(),
            source,
        })?;
        Ok(read)
    }
}

/// Reads one token id, or several.
fn ids(config: &Object, name: &str) -> Result<Option<Vec<TokenId>>, FileError> {
    let id = |value: &Value| Some(TokenId(value.as_u64()?.try_into().ok()?));
    let allowed = "a token id or a list of token ids";
    let ids = config.field(name, allowed, |value| match value {
        Value::Array(many) => many.iter().map(id).collect(),
        one => Some(vec![id(one)?]),
    })?;
    Ok(ids.filter(|ids| !ids.is_empty()))
}

impl GenerationConfig {
    /// Reads `generation_config.json` of a model folder; fields it lacks come from `config.json`,
    /// where multimodal models keep them in `text_config`.
    ///
    /// # Errors
    /// If one of the files is there and not valid. Neither has to be there.
    pub fn load(folder: &Path) -> Result<Self, FileError> {
        let generation = Object::read(folder, "generation_config.json")?;
        let config = Object::read(folder, "config.json")?;
        let text = config.object("text_config", "text_config.")?;
        let first = |name| {
            let own = [&generation, &config, &text].map(|object| ids(object, name));
            let [own, whole, text] = own;
            Ok(own?.or(whole?).or(text?))
        };
        let number = |name| {
            let read = |object: &Object| {
                object.field(name, "a whole number", |value| {
                    value.as_u64()?.try_into().ok()
                })
            };
            Ok(read(&config)?.or(read(&text)?))
        };
        Ok(Self {
            eos: first("eos_token_id")?.unwrap_or_default(),
            sampling: SamplingDefaults::read(&generation)?,
            max_positions: number("max_position_embeddings")?,
            vocab_size: number("vocab_size")?,
        })
    }

    /// With the tokenizer's own end of a sequence, which ends an output too, as in vLLM: the files
    /// beside a model that was tuned for chat often name only what its base ended with.
    #[must_use]
    pub fn with_tokenizer(mut self, tokenizer: &Tokenizer) -> Self {
        let eos = tokenizer.eos();
        self.eos.extend(eos.filter(|eos| !self.eos.contains(eos)));
        self
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
        assert_eq!(config.sampling.temperature, Some(0.6));
        assert_eq!(config.sampling.top_k, Some(20));
        assert_eq!(config.max_positions, Some(64));
    }

    #[test]
    fn what_ends_a_sequence_by_the_tokenizer_ends_an_output_too() {
        let dir = folder(&[
            ("generation_config.json", r#"{"eos_token_id": [0]}"#),
            ("tokenizer_config.json", r#"{"eos_token": "<turn>"}"#),
            (
                "tokenizer.json",
                r#"{"added_tokens": [], "model": {"type": "WordLevel", "unk_token": "a",
                    "vocab": {"a": 0, "b": 1, "<turn>": 2}}}"#,
            ),
        ]);
        let tokenizer = Tokenizer::load(dir.path()).unwrap();
        let own = GenerationConfig::load(dir.path()).unwrap();
        let both = own.with_tokenizer(&tokenizer);
        assert_eq!(both.eos, [TokenId(0), TokenId(2)]);
        assert_eq!(both.clone().with_tokenizer(&tokenizer), both);
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
    fn what_is_wrong_is_named_with_its_file_and_what_is_allowed() {
        let own = "generation_config.json";
        for (name, text, expected) in [
            (own, "[]", "it is [], but has to be an object"),
            (
                own,
                r#"{"eos_token_id": "x"}"#,
                r#"eos_token_id is "x", but has to be a token id or a list of token ids"#,
            ),
            (
                own,
                r#"{"eos_token_id": [1, -1]}"#,
                "eos_token_id is [1,-1], but",
            ),
            (
                own,
                r#"{"temperature": "hot"}"#,
                r#"temperature is "hot", but has to be a number"#,
            ),
            (
                own,
                r#"{"temperature": -5}"#,
                "temperature is -5, but has to be a number of at least 0",
            ),
            (own, r#"{"top_p": 9}"#, "top_p is 9, but has to be"),
            (
                own,
                r#"{"repetition_penalty": 0}"#,
                "repetition_penalty is 0, but has to be",
            ),
            (
                own,
                r#"{"top_k": 1.5}"#,
                "top_k is 1.5, but has to be a whole number",
            ),
            (
                "config.json",
                r#"{"text_config": {"vocab_size": "many"}}"#,
                r#"text_config.vocab_size is "many", but has to be a whole number"#,
            ),
            (
                "config.json",
                r#"{"text_config": 3}"#,
                "text_config is 3, but has to be an object",
            ),
            (own, r#"{"eos_token_id": "#, "is not valid: EOF"),
        ] {
            let dir = folder(&[(name, text)]);
            let error = GenerationConfig::load(dir.path()).unwrap_err().to_string();
            let path = dir.path().join(name).display().to_string();
            assert!(error.starts_with(&path), "{error}");
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn null_is_nothing_and_all_tokens_are_none_left_out() {
        let text = r#"{"temperature": null, "eos_token_id": null, "top_k": -1, "min_p": 0.1}"#;
        let config = GenerationConfig::load(folder(&[("generation_config.json", text)]).path());
        let sampling = config.unwrap().sampling;
        assert_eq!(sampling.top_k, Some(0));
        assert_eq!((sampling.temperature, sampling.min_p), (None, Some(0.1)));
    }
}
