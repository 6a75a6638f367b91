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
}

impl Model {
    pub(crate) fn load(config: &ModelConfig) -> Result<Self, ModelError> {
        let ModelConfig { name, folder } = config.clone();
        if !folder.is_dir() {
            return Err(ModelError::NoFolder { name, folder });
        }
        let tokenizer = Arc::new(Tokenizer::load(&folder)?);
        let template = ChatTemplate::load(&folder)?;
        let generation = GenerationConfig::load(&folder)?;
        if template.is_default() {
            tracing::info!(
                model = name,
                "no chat template; messages are joined by line breaks"
            );
        }
        Ok(Self {
            name,
            folder,
            tokenizer,
            template,
            generation,
        })
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
