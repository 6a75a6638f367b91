//! What is wrong with a file, and where.

use std::{collections::BTreeMap, fmt};

/// One thing wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Line of the file, from 1; 0 if it concerns no line.
    pub line: u64,
    /// Path of the field, such as `spec.target.replicas`; empty for the document as a whole.
    pub field: String,
    /// What is wrong, the offending value included, and what is allowed.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// A file that is not valid: everything that is wrong with it, by line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.list())]
pub struct Invalid {
    /// The problems, at least one.
    pub problems: Vec<Problem>,
}

impl Invalid {
    fn list(&self) -> String {
        let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        lines.join("\n")
    }
}

/// Where the fields of a document stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines(BTreeMap<String, u64>);

impl Lines {
    pub(crate) fn insert(&mut self, field: String, line: u64) {
        self.0.insert(field, line);
    }

    /// The line of `field`, or of the nearest field around it if the file does not have it.
    pub fn of(&self, field: &str) -> u64 {
        let mut path = field;
        loop {
            if let Some(line) = self.0.get(path) {
                return *line;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = &path[..end],
                None => return self.0.get("").copied().unwrap_or(0),
            }
        }
    }

    /// A problem at `field`.
    pub fn problem(&self, field: impl Into<String>, message: impl Into<String>) -> Problem {
        let field = field.into();
        Problem {
            line: self.of(&field),
            field,
            message: message.into(),
        }
    }
}
