//! Reading the small JSON files of a model folder, with errors that name the file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use foretoken_speculation::sampling::InvalidSampling;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

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
    /// It is no JSON.
    #[error("{} is not valid: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// One of its fields is not what it should be.
    #[error("{}: {field} is {found}, but has to be {allowed}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// Name of the field.
        field: String,
        /// Its value, as JSON.
        found: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// How it says to sample cannot be done.
    #[error("{}: {source}", path.display())]
    Sampling {
        /// The file.
        path: PathBuf,
        /// Which of its fields, and why.
        source: InvalidSampling,
    },
}

/// A JSON object of a model folder, read field by field; each error names file, field and value.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    path: PathBuf,
    /// Before the names of its fields, where it lies in another object.
    within: &'static str,
    fields: Map<String, Value>,
}

impl Object {
    /// Reads `folder/name`; empty if there is no such file.
    pub(crate) fn read(folder: &Path, name: &str) -> Result<Self, FileError> {
        let path = folder.join(name);
        let value = read_json(folder, name)?;
        Self::of(path, "", "it", value.unwrap_or(Value::Object(Map::new())))
    }

    fn of(
        path: PathBuf,
        within: &'static str,
        field: &str,
        value: Value,
    ) -> Result<Self, FileError> {
        match value {
            Value::Object(fields) => Ok(Self {
                path,
                within,
                fields,
            }),
            other => Err(FileError::Field {
                path,
                field: field.to_owned(),
                found: shown(&other),
                allowed: "an object",
            }),
        }
    }

    /// The file it was read from.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The object in this field; an empty one if it is not there. `within` is the name followed by a
    /// point.
    pub(crate) fn object(&self, name: &str, within: &'static str) -> Result<Self, FileError> {
        let value = self.value(name).cloned();
        let value = value.unwrap_or(Value::Object(Map::new()));
        Self::of(self.path.clone(), within, name, value)
    }

    /// A field as `read` takes it, which is none for what is not `allowed`. A field that is null is
    /// not there.
    pub(crate) fn field<T>(
        &self,
        name: &str,
        allowed: &'static str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, FileError> {
        let Some(value) = self.value(name) else {
            return Ok(None);
        };
        read(value).map(Some).ok_or_else(|| FileError::Field {
            path: self.path.clone(),
            field: format!("{}{name}", self.within),
            found: shown(value),
            allowed,
        })
    }

    /// The same, as its type reads it.
    pub(crate) fn parsed<T: DeserializeOwned>(
        &self,
        name: &str,
        allowed: &'static str,
    ) -> Result<Option<T>, FileError> {
        self.field(name, allowed, |value| T::deserialize(value).ok())
    }

    fn value(&self, name: &str) -> Option<&Value> {
        self.fields.get(name).filter(|value| !value.is_null())
    }
}

/// A value in an error, not too much of it.
fn shown(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text,
    }
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
