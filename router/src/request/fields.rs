//! Reading a request body's fields, with errors that name field, value and what is allowed.
//!
//! A field that is `null` counts as absent, as in `OpenAI`'s API. Fields that nobody asks for are
//! ignored.

use foretoken_speculation::TokenId;
use serde_json::{Map, Value};

use crate::error::ApiError;

/// Most characters of an unknown field's name that are told.
const LONGEST_NAME: usize = 80;

/// The fields of a JSON object.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// What stands before names in messages: `foretoken.` for fields of that object.
    prefix: &'a str,
}

/// Parses a body: a JSON object in UTF-8.
pub(crate) fn parse_body(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(ApiError::invalid("the request body must be a JSON object")),
        Err(error) => Err(ApiError::invalid(format!(
            "the request body is not valid JSON: {error}"
        ))),
    }
}

impl<'a> Fields<'a> {
    pub(crate) fn new(map: &'a Map<String, Value>) -> Self {
        Self { map, prefix: "" }
    }

    /// The field's value, unless absent or null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn wrong(&self, name: &str, value: &Value, allowed: &str) -> ApiError {
        ApiError::field(&format!("{}{name}", self.prefix), value, allowed)
    }

    /// Refuses every field but those that are `known`. Only objects of our own are read this
    /// strictly: a misspelt name in them can mean nothing else.
    pub(crate) fn only(&self, known: &[&str]) -> Result<(), ApiError> {
        let unknown = |name: &&String| !known.contains(&name.as_str());
        match self.map.keys().find(unknown) {
            None => Ok(()),
            Some(name) => {
                let allowed = format!("absent: the fields here are {}", known.join(", "));
                let short: String = name.chars().take(LONGEST_NAME).collect();
                Err(self.wrong(&short, &self.map[name], &allowed))
            }
        }
    }

    fn read<T>(
        &self,
        name: &str,
        allowed: &str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        convert(value)
            .map(Some)
            .ok_or_else(|| self.wrong(name, value, allowed))
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        self.read(name, "a string", Value::as_str)
    }

    /// One of a few words.
    pub(crate) fn one_of(&self, name: &str, words: &[&str]) -> Result<Option<&'a str>, ApiError> {
        self.read(name, &words.join(" or "), |value| {
            value.as_str().filter(|word| words.contains(word))
        })
    }

    /// An object, whose fields are called `name.field` in messages.
    pub(crate) fn object(&self, name: &'static str) -> Result<Option<Fields<'a>>, ApiError> {
        let prefix = match name {
            "foretoken" => "foretoken.",
            "stream_options" => "stream_options.",
            _ => "",
        };
        self.read(name, "an object", |value| {
            value.as_object().map(|map| Fields { map, prefix })
        })
    }

    /// A number within `low..=high`.
    pub(crate) fn number(&self, name: &str, low: f32, high: f32) -> Result<Option<f32>, ApiError> {
        let allowed = format!("a number from {low} to {high}");
        self.read(name, &allowed, |value| {
            let number = value.as_f64()? as f32;
            (number >= low && number <= high).then_some(number)
        })
    }

    /// A number above 0, up to `high`.
    pub(crate) fn positive(&self, name: &str, high: f32) -> Result<Option<f32>, ApiError> {
        let allowed = format!("a number above 0 and at most {high}");
        self.read(name, &allowed, |value| {
            let number = value.as_f64()? as f32;
            (number > 0.0 && number <= high).then_some(number)
        })
    }

    /// An integer within `low..=high`. `8.0` is one.
    pub(crate) fn integer(&self, name: &str, low: i64, high: i64) -> Result<Option<i64>, ApiError> {
        let allowed = format!("an integer from {low} to {high}");
        self.integer_that(name, &allowed, |number| (low..=high).contains(&number))
    }

    /// An integer that `is_allowed`, which `allowed` puts into words. `8.0` is one.
    pub(crate) fn integer_that(
        &self,
        name: &str,
        allowed: &str,
        is_allowed: impl FnOnce(i64) -> bool,
    ) -> Result<Option<i64>, ApiError> {
        self.read(name, allowed, |value| {
            let whole = |f: &f64| f.fract() == 0.0 && f.abs() < 9.0e15;
            let number = value
                .as_i64()
                .or_else(|| value.as_f64().filter(whole).map(|f| f as i64))?;
            is_allowed(number).then_some(number)
        })
    }

    /// A list of token ids below `vocab_size`.
    pub(crate) fn tokens(
        &self,
        name: &str,
        vocab_size: u32,
    ) -> Result<Option<Vec<TokenId>>, ApiError> {
        let allowed = token_list(vocab_size);
        self.read(name, &allowed, |value| {
            token_ids(value.as_array()?, vocab_size)
        })
    }
}

/// Whether a value is what clients send in the place of none: an empty list or text.
pub(super) fn is_empty(value: &Value) -> bool {
    value.as_array().is_some_and(Vec::is_empty) || value.as_str() == Some("")
}

/// How a list of token ids is described.
pub(crate) fn token_list(vocab_size: u32) -> String {
    format!(
        "a list of token ids from 0 to {}",
        vocab_size.saturating_sub(1)
    )
}

/// The values as token ids; `None` if one is none.
pub(crate) fn token_ids(values: &[Value], vocab_size: u32) -> Option<Vec<TokenId>> {
    values
        .iter()
        .map(|value| {
            let id = u32::try_from(value.as_u64()?).ok()?;
            (id < vocab_size).then_some(TokenId(id))
        })
        .collect()
}
