//! Typed access to the fields of a `config.json`, with errors that say what to change.
//!
//! A field that is `null` counts as absent, as in transformers.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::SpecError;

/// Longest value repeated in a message, in characters.
const VALUE_SHOWN: usize = 80;

/// Largest `config.json` that is read; real ones have a few kilobytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// A JSON object with the name of the file it came from.
#[derive(Clone, Debug)]
pub struct Config {
    file: PathBuf,
    /// Path of this object within the file, with a trailing dot, or empty.
    prefix: String,
    fields: Map<String, Value>,
}

impl Config {
    /// Reads and parses a file.
    ///
    /// # Errors
    /// [`SpecError::Unreadable`] or [`SpecError::Malformed`].
    pub fn read(file: &Path) -> Result<Self, SpecError> {
        let unreadable = |source| SpecError::Unreadable {
            file: file.to_owned(),
            source,
        };
        let bytes = std::fs::metadata(file).map_err(unreadable)?.len();
        if bytes > MAX_FILE_BYTES {
            let message = format!("{bytes} bytes, more than {MAX_FILE_BYTES}");
            return Err(unreadable(std::io::Error::new(
                std::io::ErrorKind::FileTooLarge,
                message,
            )));
        }
        Self::parse(file, &std::fs::read_to_string(file).map_err(unreadable)?)
    }

    /// Parses a text; `file` names it in messages.
    ///
    /// # Errors
    /// [`SpecError::Malformed`].
    pub fn parse(file: &Path, json: &str) -> Result<Self, SpecError> {
        let fields = serde_json::from_str(json).map_err(|source| SpecError::Malformed {
            file: file.to_owned(),
            source,
        })?;
        Ok(Self {
            file: file.to_owned(),
            prefix: String::new(),
            fields,
        })
    }

    /// The file, for messages.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// A field's value, unless it is absent or null.
    pub fn value(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|v| !v.is_null())
    }

    /// Whether the field stands there, be it null.
    pub fn mentions(&self, field: &str) -> bool {
        self.fields.contains_key(field)
    }

    /// The object in a field, if there is one.
    ///
    /// # Errors
    /// If the field holds something else.
    pub fn object(&self, field: &str) -> Result<Option<Self>, SpecError> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(Self {
                file: self.file.clone(),
                prefix: format!("{}{field}.", self.prefix),
                fields: fields.clone(),
            })),
            Some(_) => Err(self.wrong(field, "an object or null")),
        }
    }

    /// Whether it has no field.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// A whole number in a range, if there is one.
    ///
    /// # Errors
    /// If the field holds something else.
    pub fn whole(
        &self,
        field: &str,
        allowed: RangeInclusive<usize>,
    ) -> Result<Option<usize>, SpecError> {
        let Some(value) = self.value(field) else {
            return Ok(None);
        };
        let whole = value.as_u64().and_then(|n| usize::try_from(n).ok());
        match whole.filter(|n| allowed.contains(n)) {
            Some(n) => Ok(Some(n)),
            None => Err(self.wrong(field, &whole_text(&allowed))),
        }
    }

    /// A whole number in a range that must stand there.
    ///
    /// # Errors
    /// If it does not, or the field holds something else.
    pub fn required_whole(
        &self,
        field: &str,
        allowed: RangeInclusive<usize>,
    ) -> Result<usize, SpecError> {
        self.whole(field, allowed.clone())?
            .ok_or_else(|| self.missing(field, &whole_text(&allowed)))
    }

    /// A finite number above zero, if there is one.
    ///
    /// # Errors
    /// If the field holds something else.
    pub fn positive(&self, field: &str) -> Result<Option<f64>, SpecError> {
        let Some(value) = self.value(field) else {
            return Ok(None);
        };
        match value.as_f64().filter(|x| x.is_finite() && *x > 0.0) {
            Some(x) => Ok(Some(x)),
            None => Err(self.wrong(field, "a number above 0")),
        }
    }

    /// A finite number above zero that must stand there.
    ///
    /// # Errors
    /// If it does not, or the field holds something else.
    pub fn required_positive(&self, field: &str) -> Result<f64, SpecError> {
        self.positive(field)?
            .ok_or_else(|| self.missing(field, "a number above 0"))
    }

    /// A truth value or its default.
    ///
    /// # Errors
    /// If the field holds something else.
    pub fn flag(&self, field: &str, default: bool) -> Result<bool, SpecError> {
        match self.value(field) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(_) => Err(self.wrong(field, "true or false")),
        }
    }

    /// A text, if there is one.
    ///
    /// # Errors
    /// If the field holds something else.
    pub fn text(&self, field: &str) -> Result<Option<&str>, SpecError> {
        match self.value(field) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(_) => Err(self.wrong(field, "a string")),
        }
    }

    /// Refuses a field's value.
    pub fn wrong(&self, field: &str, allowed: &str) -> SpecError {
        let value = self.fields.get(field).unwrap_or(&Value::Null).to_string();
        let shown = if value.chars().count() > VALUE_SHOWN {
            value
                .chars()
                .take(VALUE_SHOWN)
                .chain("...".chars())
                .collect()
        } else {
            value
        };
        SpecError::Field {
            file: self.file.clone(),
            field: format!("{}{field}", self.prefix),
            value: shown,
            allowed: allowed.to_owned(),
        }
    }

    /// Complains about a field that is not there.
    pub fn missing(&self, field: &str, allowed: &str) -> SpecError {
        SpecError::Missing {
            file: self.file.clone(),
            field: format!("{}{field}", self.prefix),
            allowed: allowed.to_owned(),
        }
    }
}

fn whole_text(allowed: &RangeInclusive<usize>) -> String {
    format!(
        "a whole number from {} to {}",
        allowed.start(),
        allowed.end()
    )
}
