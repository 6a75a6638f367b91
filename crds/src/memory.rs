//! Amounts of memory, as Kubernetes writes them.

use std::{fmt, str::FromStr};

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::bounds::MEMORY;

/// An amount of memory such as `512Mi` or `4Gi`: whole and never none, with one of the units that
/// [`MemoryUnit`] has. It stays as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Memory {
    amount: u32,
    unit: MemoryUnit,
}

/// What amounts of memory are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryUnit {
    /// 2^20 bytes.
    Mi,
    /// 2^30 bytes.
    Gi,
    /// 2^40 bytes.
    Ti,
}

/// A text that is no [`Memory`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an amount of memory such as 512Mi or 4Gi")]
pub struct NotMemory {
    text: String,
}

impl MemoryUnit {
    const ALL: [Self; 3] = [Self::Mi, Self::Gi, Self::Ti];

    fn name(self) -> &'static str {
        match self {
            Self::Mi => "Mi",
            Self::Gi => "Gi",
            Self::Ti => "Ti",
        }
    }

    fn mebibytes(self) -> u64 {
        match self {
            Self::Mi => 1,
            Self::Gi => 1 << 10,
            Self::Ti => 1 << 20,
        }
    }
}

impl Memory {
    /// It in units of 2^20 bytes.
    pub fn mebibytes(self) -> u64 {
        u64::from(self.amount) * self.unit.mebibytes()
    }
}

impl FromStr for Memory {
    type Err = NotMemory;

    fn from_str(text: &str) -> Result<Self, NotMemory> {
        let read = |unit: MemoryUnit| {
            let amount = text.strip_suffix(unit.name())?;
            let is_plain = amount.len() <= 6 && amount.bytes().all(|byte| byte.is_ascii_digit());
            let amount = amount.parse().ok()?;
            (is_plain && !text.starts_with('0')).then_some(Self { amount, unit })
        };
        let text = || text.to_owned();
        let read = MemoryUnit::ALL.into_iter().find_map(read);
        read.ok_or_else(|| NotMemory { text: text() })
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.amount, self.unit.name())
    }
}

impl TryFrom<String> for Memory {
    type Error = NotMemory;

    fn try_from(text: String) -> Result<Self, NotMemory> {
        text.parse()
    }
}

impl From<Memory> for String {
    fn from(memory: Memory) -> Self {
        memory.to_string()
    }
}

/// Schema of an amount of memory.
pub(crate) fn memory(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 8, "pattern": MEMORY})
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use super::*;

    #[test]
    fn what_is_read_is_what_the_schema_allows_and_stays_as_it_was() {
        let pattern = Regex::new(MEMORY).expect("it is one");
        let mut verdicts = [0, 0];
        for amount in [
            "", "0", "01", "1", "512", "1024", "999999", "1000000", "+1", "-1", "1.5", "1e3",
            "\u{663}",
        ] {
            for unit in ["", "Mi", "Gi", "Ti", "Ki", "M", "mi", "Mi ", " Mi", "Mi\n"] {
                let text = format!("{amount}{unit}");
                let read = text.parse::<Memory>();
                assert_eq!(read.is_ok(), pattern.is_match(&text), "{text:?}");
                verdicts[usize::from(read.is_ok())] += 1;
                if let Ok(memory) = read {
                    assert_eq!(memory.to_string(), text);
                }
            }
        }
        assert_eq!(verdicts[1], 12);
    }

    #[test]
    fn amounts_are_counted_in_mebibytes() {
        let of = |text: &str| text.parse().map(Memory::mebibytes);
        assert_eq!(of("512Mi"), Ok(512));
        assert_eq!(of("4Gi"), Ok(4096));
        assert_eq!(of("999999Ti"), Ok(999_999 << 20));
    }
}
