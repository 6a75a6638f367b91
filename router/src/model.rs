//! A model as the router sees it: its text side.

use std::{path::PathBuf, sync::Arc};

use foretoken_artifacts::{
    ChatTemplate, GenerationConfig, Tokenizer, file::FileError, template::TemplateError,
    tokenizer::TokenizerError,
};
use foretoken_speculation::TokenId;

use crate::config::ModelConfig;

/// Why a model folder cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The folder is missing.
    #[error("folder {} of model '{name}' does not exist", folder.display())]
    NoFolder {
        /// The model.
        name: String,
        /// Its folder.
        folder: PathBuf,
    },
    /// Its tokenizer cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Its chat template cannot be used.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// Another file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
}

/// Tokenizer, template and defaults of a served model.
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) folder: PathBuf,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: ChatTemplate,
    pub(crate) generation: GenerationConfig,
    /// Bytes of the longest token's text.
    longest_token: usize,
}

/// By how much a normalizer may shorten a text, generously.
const SHORTENING: usize = 4;

impl Model {
    pub(crate) fn load(config: &ModelConfig) -> Result<Self, ModelError> {
        let ModelConfig { name, folder } = config.clone();
        if !folder.is_dir() {
            return Err(ModelError::NoFolder { name, folder });
        }
        let tokenizer = Arc::new(Tokenizer::load(&folder)?);
        let template = ChatTemplate::load(&folder)?;
        let generation = GenerationConfig::load(&folder)?.with_tokenizer(&tokenizer);
        if template.is_default() {
            tracing::info!(
                model = name,
                "no chat template; messages are joined by line breaks"
            );
        }
        let all = (0..tokenizer.vocab_size() as u32).map(TokenId);
        let longest_token = all.map(|token| tokenizer.token_bytes(token).len()).max();
        Ok(Self {
            name,
            folder,
            template,
            generation,
            longest_token: longest_token.unwrap_or(1),
            tokenizer,
        })
    }

    /// Bytes of text beyond which no prompt has only `tokens` tokens, however it is tokenized.
    /// Tokenizing megabytes takes seconds; what cannot fit is not worth them.
    pub(crate) fn longest_text(&self, tokens: u32) -> usize {
        (tokens as usize).saturating_mul(self.longest_token * SHORTENING)
    }

    /// Entries of the vocabulary; ids from here on name no token.
    pub(crate) fn vocab_size(&self) -> u32 {
        let tokens = self.tokenizer.vocab_size() as u32;
        self.generation.vocab_size.unwrap_or(tokens).max(tokens)
    }

    pub(crate) fn is_eos(&self, token: TokenId) -> bool {
        self.generation.eos.contains(&token)
    }
}
