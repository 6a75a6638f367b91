//! Text to token ids and back.
//!
//! A model's `tokenizer.json` is authoritative; `tokenizer_config.json` is asked for what it lacks:
//! whether a beginning-of-sequence token stands first, and which token ends a sequence.

mod incremental;
mod pieces;

use std::{fs, path::Path, path::PathBuf};

use foretoken_speculation::TokenId;
use serde::Deserialize;
use serde_json::Value;
use tokenizers::tokenizer::Tokenizer as HfTokenizer;

pub use self::incremental::IncrementalDecoder;
use self::pieces::Pieces;
use crate::{
    file::{FileError, Object},
    generation::GenerationConfig,
};

/// Why there is no tokenizer.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The folder has none that can be read.
    #[error(
        "{} is missing; convert the model's tokenizer to tokenizer.json \
         (transformers: AutoTokenizer.from_pretrained(..).save_pretrained(..))",
        path.display()
    )]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// It is there and not valid.
    #[error("{} is not a valid tokenizer: {reason}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What the parser says.
        reason: String,
    },
    /// It is not that of the model beside it.
    #[error(
        "{} has {tokens} tokens, but `vocab_size` in the config.json beside it is {vocabulary}: they belong to \
         different models, so copy the tokenizer of this one",
        path.display()
    )]
    OfAnother {
        /// The file.
        path: PathBuf,
        /// Its tokens.
        tokens: usize,
        /// Entries of the model's vocabulary.
        vocabulary: usize,
    },
    /// A file beside it is not valid.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Why a text has no tokens.
#[derive(Debug, thiserror::Error)]
#[error("the text cannot be tokenized: {0}")]
pub struct EncodeError(String);

/// A model's tokenizer.
pub struct Tokenizer {
    inner: HfTokenizer,
    pieces: Pieces,
    /// Put first if special tokens are wanted and the post-processor does not do it.
    bos: Option<TokenId>,
    add_bos: bool,
    eos: Option<TokenId>,
    digest: String,
}

/// What matters here of `tokenizer_config.json`.
#[derive(Default)]
struct TokenizerConfig {
    add_bos: Option<bool>,
    bos: Option<SpecialToken>,
    eos: Option<SpecialToken>,
}

impl TokenizerConfig {
    fn load(folder: &Path) -> Result<Self, FileError> {
        let config = Object::read(folder, "tokenizer_config.json")?;
        Ok(Self {
            add_bos: config.field("add_bos_token", "true or false", Value::as_bool)?,
            bos: SpecialToken::read(&config, "bos_token")?,
            eos: SpecialToken::read(&config, "eos_token")?,
        })
    }
}

/// A special token: its text, or an object with its text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum SpecialToken {
    Text(String),
    Object { content: String },
}

impl SpecialToken {
    /// Reads a field of `tokenizer_config.json`.
    pub(crate) fn read(config: &Object, name: &str) -> Result<Option<Self>, FileError> {
        config.parsed(name, "a token's text, or an object with its content")
    }

    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Object { content: text } => text,
        }
    }
}

impl Tokenizer {
    /// Reads the tokenizer of a model folder.
    ///
    /// # Errors
    /// See [`TokenizerError`]; each names the file.
    pub fn load(folder: &Path) -> Result<Self, TokenizerError> {
        let path = folder.join("tokenizer.json");
        if !path.is_file() {
            return Err(TokenizerError::Missing { path });
        }
        let bytes = fs::read(&path).map_err(|source| FileError::Read {
            path: path.clone(),
            source,
        })?;
        let config = TokenizerConfig::load(folder)?;
        let tokenizer = Self::build(&bytes, &config).map_err(|reason| TokenizerError::Invalid {
            path: path.clone(),
            reason,
        })?;
        let vocabulary = GenerationConfig::load(folder)?.vocab_size;
        if let Some(vocabulary) = vocabulary {
            tokenizer.check_size(path, vocabulary as usize)?;
        }
        Ok(tokenizer)
    }

    /// Whether it may be that of a model with such a vocabulary. Those are often padded. Tokens that
    /// were added to a tokenizer and never to its model are of no use and do no harm.
    fn check_size(&self, path: PathBuf, vocabulary: usize) -> Result<(), TokenizerError> {
        let (tokens, own) = (self.vocab_size(), self.pieces.own());
        if own > vocabulary || tokens < vocabulary / 2 {
            let tokens = if own > vocabulary { own } else { tokens };
            return Err(TokenizerError::OfAnother {
                path,
                tokens,
                vocabulary,
            });
        }
        if tokens > vocabulary {
            tracing::warn!(
                tokenizer = %path.display(),
                "{tokens} tokens with those that were added to it, {vocabulary} in the model: prompts with \
                 the last ones are refused"
            );
        }
        Ok(())
    }

    fn build(bytes: &[u8], config: &TokenizerConfig) -> Result<Self, String> {
        // First: of broken JSON the other parser says line 1, column 0, or panics.
        let raw: Value = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
        let mut inner = HfTokenizer::from_bytes(bytes).map_err(|e| e.to_string())?;
        // Both are for training; a prompt must arrive whole.
        inner.with_truncation(None).map_err(|e| e.to_string())?;
        inner.with_padding(None);
        let pieces = Pieces::new(&inner)?;
        let digest = pieces::digest(&inner, &raw);
        let id = |token: &Option<SpecialToken>| {
            let id = inner.token_to_id(token.as_ref()?.text())?;
            Some(TokenId(id))
        };
        Ok(Self {
            bos: id(&config.bos),
            add_bos: config.add_bos.unwrap_or(false),
            eos: id(&config.eos),
            inner,
            pieces,
            digest,
        })
    }

    /// Token ids of a text. Special tokens that stand in the text count as themselves. With
    /// `add_special`, what the model expects around a text is added: a beginning-of-sequence
    /// token once, even if the text starts with it already.
    ///
    /// # Errors
    /// If the tokenizer has no token for a part of the text and no unknown token.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<TokenId>, EncodeError> {
        let encoding = self
            .inner
            .encode_fast(text, add_special)
            .map_err(|e| EncodeError(e.to_string()))?;
        let mut ids: Vec<TokenId> = encoding.get_ids().iter().copied().map(TokenId).collect();
        if let Some(bos) = self.bos.filter(|_| add_special) {
            if self.add_bos && ids.first() != Some(&bos) {
                ids.insert(0, bos);
            } else if ids.starts_with(&[bos, bos]) {
                ids.remove(0);
            }
        }
        Ok(ids)
    }

    /// Text of token ids. Ids outside the vocabulary have no text. Of tokens that stand for bytes,
    /// byte-level or as `SentencePiece`'s fallback, the bytes of all are joined, and whatever is no
    /// UTF-8 becomes U+FFFD, each longest beginning of a character one (as
    /// [`String::from_utf8_lossy`] has it), so that no byte has a say in those before it. The text
    /// of other tokenizers is what their decoder makes of it.
    pub fn decode(&self, ids: &[TokenId], skip_special: bool) -> String {
        self.pieces
            .join(ids, skip_special)
            .unwrap_or_else(|| self.decode_whole(ids, skip_special))
    }

    /// Decoding by the tokenizer's own decoder.
    fn decode_whole(&self, ids: &[TokenId], skip_special: bool) -> String {
        let ids: Vec<u32> = ids.iter().map(|id| id.0).collect();
        // The decoders shipped with the crate fail on no input.
        self.inner.decode(&ids, skip_special).unwrap_or_default()
    }

    /// Bytes that a token stands for on its own: part of a character for some.
    pub fn token_bytes(&self, id: TokenId) -> &[u8] {
        self.pieces.bytes(id)
    }

    /// Whether a token is special: not shown as text.
    pub fn is_special(&self, id: TokenId) -> bool {
        self.pieces.is_special(id)
    }

    /// The id of a token by its text in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<TokenId> {
        self.inner.token_to_id(token).map(TokenId)
    }

    /// The token that ends a sequence, by `tokenizer_config.json`.
    pub fn eos(&self) -> Option<TokenId> {
        self.eos
    }

    /// One more than the highest id. A model's vocabulary may be larger (padding), never smaller.
    pub fn vocab_size(&self) -> usize {
        self.pieces.len()
    }

    /// BLAKE3, hex, over vocabulary, added tokens and merges in a canonical form: equal for
    /// tokenizers that give every id the same meaning, however their files are written.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

#[cfg(test)]
mod tests;
