//! Checks of configurations.

use std::fmt;

/// A value outside its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}; it must be {allowed}")]
pub struct OutOfRange {
    field: &'static str,
    value: String,
    allowed: String,
}

impl OutOfRange {
    /// `field` is `value` and may only be `allowed`.
    pub fn new(field: &'static str, value: impl fmt::Display, allowed: impl fmt::Display) -> Self {
        Self {
            field,
            value: value.to_string(),
            allowed: allowed.to_string(),
        }
    }
}

/// Checks that none of these sizes is 0; the first that is gets named.
pub fn at_least_one(sizes: &[(&'static str, usize)]) -> Result<(), OutOfRange> {
    match sizes.iter().find(|(_, size)| *size == 0) {
        Some((field, size)) => Err(OutOfRange::new(field, size, "at least 1")),
        None => Ok(()),
    }
}

/// Durations as seconds, in files: `#[serde(with = "seconds")]`.
pub mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de};

    /// Writes a number of seconds.
    pub fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(value.as_secs_f64())
    }

    /// Reads a number of seconds; negative and endless ones are errors.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds).map_err(|_| {
            de::Error::custom(format!(
                "{seconds} is no number of seconds; it must be 0 or more"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde::de::{IntoDeserializer, value::F64Deserializer};

    use super::*;

    #[test]
    fn the_first_size_that_is_0_is_named() {
        assert_eq!(at_least_one(&[("a", 1), ("b", 2)]), Ok(()));
        let error = at_least_one(&[("a", 1), ("b", 0), ("c", 0)]).unwrap_err();
        assert_eq!(error.to_string(), "b is 0; it must be at least 1");
    }

    #[test]
    fn durations_are_seconds_and_never_negative_or_endless() {
        let read = |value: f64| {
            let from: F64Deserializer<serde::de::value::Error> = value.into_deserializer();
            seconds::deserialize(from)
        };
        assert_eq!(read(0.25), Ok(Duration::from_millis(250)));
        for wrong in [-1.0, f64::NAN, f64::INFINITY] {
            let said = read(wrong).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{wrong} is no")), "{said}");
            assert!(said.ends_with("must be 0 or more"), "{said}");
        }
    }
}
