//! Reading the small JSON files of a model folder, with errors that name the file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;

/// Why a file of a model folder could not be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is not the JSON that it should be.
    #[error("{} is not valid: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
}

/// Reads `folder/name` as text; `None` if there is no such file.
pub(crate) fn read_text(folder: &Path, name: &str) -> Result<Option<String>, FileError> {
    let path = folder.join(name);
    match fs::read_to_string(&path) {
        Ok(text) => Ok(Some(text)),
        Err(source) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(FileError::Read { path, source }),
    }
}

/// Reads `folder/name` as JSON; `None` if there is no such file.
pub(crate) fn read_json<T: DeserializeOwned>(
    folder: &Path,
    name: &str,
) -> Result<Option<T>, FileError> {
    let Some(text) = read_text(folder, name)? else {
        return Ok(None);
    };
    serde_json::from_str(&text)
        .map(Some)
        .map_err(|source| FileError::Json {
            path: folder.join(name),
            source,
        })
}
