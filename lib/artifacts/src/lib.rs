//! Model folders: where they come from, and what stands beside the weights.
//!
//! ```text
//! "hf://owner/name" --ModelUri--> Hub::fetch --> folder --> Tokenizer, ChatTemplate, GenerationConfig
//! token ids --IncrementalDecoder--> text --StopMatcher--> text that may be shown
//! ```
//!
//! Weights themselves are the engine's business; nothing here reads them.

pub mod file;
pub mod generation;
pub mod hub;
pub mod progress;
pub mod stop;
pub mod template;
pub mod tokenizer;
pub mod uri;

pub use generation::GenerationConfig;
pub use hub::Hub;
pub use stop::{StopMatcher, StopStrings};
pub use template::ChatTemplate;
pub use tokenizer::{IncrementalDecoder, Tokenizer};
pub use uri::ModelUri;
