//! How many tokens windows have, as files and flags say it.

use std::{fmt, str::FromStr};

use foretoken_speculation::policy::Lookahead;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};

/// How many tokens a window has. In files `{Fixed: 5}` or `{Adaptive: {max: 12}}`, or what flags take: `5`
/// or `adaptive:12`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum LookaheadConfig {
    /// Always this many.
    Fixed(u32),
    /// As many as pay, measured while serving.
    Adaptive {
        /// Upper bound.
        max: u32,
    },
}

/// What is neither a number nor `adaptive:MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be a whole number, or adaptive:MAX")]
pub struct InvalidLookahead;

impl LookaheadConfig {
    /// The most tokens a window ever has.
    pub(crate) fn most(self) -> u32 {
        Lookahead::from(self).most()
    }
}

impl From<Lookahead> for LookaheadConfig {
    fn from(lookahead: Lookahead) -> Self {
        match lookahead {
            Lookahead::Fixed(k) => Self::Fixed(k),
            Lookahead::Adaptive { max } => Self::Adaptive { max },
        }
    }
}

impl From<LookaheadConfig> for Lookahead {
    fn from(config: LookaheadConfig) -> Self {
        match config {
            LookaheadConfig::Fixed(k) => Self::Fixed(k),
            LookaheadConfig::Adaptive { max } => Self::Adaptive { max },
        }
    }
}

impl FromStr for LookaheadConfig {
    type Err = InvalidLookahead;

    fn from_str(text: &str) -> Result<Self, InvalidLookahead> {
        let number = |text: &str| text.parse().map_err(|_| InvalidLookahead);
        match text.strip_prefix("adaptive:") {
            Some(max) => number(max).map(|max| Self::Adaptive { max }),
            None => number(text).map(Self::Fixed),
        }
    }
}

impl fmt::Display for LookaheadConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(k) => write!(f, "{k}"),
            Self::Adaptive { max } => write!(f, "adaptive:{max}"),
        }
    }
}

impl<'de> Deserialize<'de> for LookaheadConfig {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyForm)
    }
}

/// The long form.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
enum Spelled {
    Fixed(u32),
    Adaptive { max: u32 },
}

/// Takes either form.
struct AnyForm;

impl<'de> Visitor<'de> for AnyForm {
    type Value = LookaheadConfig;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, adaptive:MAX, {Fixed: NUMBER} or {Adaptive: {max: NUMBER}}")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        let fixed = u32::try_from(number).map(LookaheadConfig::Fixed);
        fixed.map_err(|_| E::custom(InvalidLookahead))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        self.visit_u64(u64::try_from(number).map_err(|_| E::custom(InvalidLookahead))?)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        Ok(
            match Spelled::deserialize(MapAccessDeserializer::new(map))? {
                Spelled::Fixed(k) => LookaheadConfig::Fixed(k),
                Spelled::Adaptive { max } => LookaheadConfig::Adaptive { max },
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_is_a_number_or_adaptive_with_a_bound() {
        for (config, short) in [
            (LookaheadConfig::Fixed(5), "5"),
            (LookaheadConfig::Adaptive { max: 7 }, "adaptive:7"),
        ] {
            assert_eq!(short.parse(), Ok(config));
            assert_eq!(config.to_string(), short);
        }
        for wrong in ["many", "-1", "", "adaptive:", "adaptive:many", "4294967296"] {
            assert_eq!(wrong.parse::<LookaheadConfig>(), Err(InvalidLookahead));
        }
    }
}
