//! YAML documents as trees that know their lines.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Spanned, UserMessageFormatter};

use crate::problem::{Lines, Problem};

/// A node and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) line: u64,
    pub(crate) value: Value,
}

/// What a node holds.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A field of a mapping.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) line: u64,
    pub(crate) node: Node,
}

/// Deepest nesting of a file. No object needs more, and each level takes stack to read.
const DEEPEST: usize = 32;

/// Parses all documents of a file; empty ones are skipped.
pub(crate) fn parse(text: &str) -> Result<Vec<Node>, Problem> {
    let options = serde_saphyr::options! {
        // As kubectl reads it: a bare `off` is no text.
        strict_booleans: false,
        budget: serde_saphyr::budget! { max_depth: DEEPEST },
    };
    serde_saphyr::from_multiple_with_options::<Spanned<Value>>(text, options)
        .map(|documents| documents.into_iter().map(Node::from).collect())
        .map_err(|error| {
            let line = error.location().map_or(0, |location| location.line());
            let said = error.without_snippet();
            let said = said.render_with_formatter(&UserMessageFormatter);
            let said = said.lines().next().unwrap_or_default();
            let (line, said) = match indented_by_tab(text, line) {
                Some(line) if said.contains(" tab") || said.starts_with("tabs") => {
                    (line, "a tab indents this line; only spaces may")
                }
                _ => (line, said),
            };
            Problem {
                line,
                field: String::new(),
                message: format!("not valid YAML: {said}"),
            }
        })
}

/// The first line from `line` on that a tab indents. The parser blames the line before if a value
/// there may go on.
fn indented_by_tab(text: &str, line: u64) -> Option<u64> {
    let lines = (1..).zip(text.lines());
    let mut lines = lines.skip_while(|(number, _)| *number < line);
    let found = lines.find(|(_, text)| {
        let indent = text.len() - text.trim_start().len();
        text[..indent].contains('\t') && indent < text.len()
    });
    found.map(|(number, _)| number)
}

impl Node {
    /// The entry called `key`, if this is a mapping that has one.
    pub(crate) fn get(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// The node at `path`, such as `spec.endpoints[0].name`.
    pub(crate) fn at(&self, path: &str) -> Option<&Self> {
        let mut node = self;
        for step in path.split(['.', '[']).filter(|step| !step.is_empty()) {
            node = match (&node.value, step.strip_suffix(']')) {
                (Value::List(items), Some(index)) => items.get(index.parse::<usize>().ok()?)?,
                _ => &node.get(step)?.node,
            };
        }
        Some(node)
    }

    /// The text that this is.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text under `key`.
    pub(crate) fn text(&self, key: &str) -> Option<&str> {
        self.get(key)?.node.as_text()
    }

    /// All texts under a key, if this is a mapping.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        let entries = match &self.value {
            Value::Map(entries) => entries.as_slice(),
            _ => &[],
        };
        entries
            .iter()
            .filter_map(|entry| Some((entry.key.as_str(), entry.node.as_text()?)))
    }

    /// The lines of all fields.
    pub(crate) fn lines(&self) -> Lines {
        let mut lines = Lines::default();
        lines.insert(String::new(), self.line);
        self.collect_lines("", &mut lines);
        lines
    }

    fn collect_lines(&self, path: &str, lines: &mut Lines) {
        match &self.value {
            Value::Map(entries) => {
                for entry in entries {
                    let field = join(path, &entry.key);
                    lines.insert(field.clone(), entry.line);
                    entry.node.collect_lines(&field, lines);
                }
            }
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    let field = format!("{path}[{index}]");
                    lines.insert(field.clone(), item.line);
                    item.collect_lines(&field, lines);
                }
            }
            Value::Null | Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::Text(_) => {
            }
        }
    }
}

/// The path of `field` under `path`.
pub(crate) fn join(path: &str, field: &str) -> String {
    if path.is_empty() {
        field.to_owned()
    } else {
        format!("{path}.{field}")
    }
}

impl fmt::Display for Value {
    /// How the value reads in a message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("nothing"),
            Self::Bool(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Float(value) => value.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(_) => f.write_str("a list"),
            Self::Map(_) => f.write_str("a mapping"),
        }
    }
}

impl From<Spanned<Value>> for Node {
    fn from(spanned: Spanned<Value>) -> Self {
        Self {
            line: spanned.referenced.line(),
            value: spanned.value,
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<Value>>()? {
            list.push(Node::from(item));
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = fields.next_key::<Spanned<String>>()? {
            let node = Node::from(fields.next_value::<Spanned<Value>>()?);
            entries.push(Entry {
                line: key.referenced.line(),
                key: key.value,
                node,
            });
        }
        Ok(Value::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_knows_its_line() {
        let documents = parse("a: 1\nb:\n  c: [x,\n   y]\n---\nd: true\n").unwrap();
        let lines = documents[0].lines();
        assert_eq!(lines.of("a"), 1);
        assert_eq!(lines.of("b"), 2);
        assert_eq!(lines.of("b.c"), 3);
        assert_eq!(lines.of("b.c[1]"), 4);
        assert_eq!(documents[1].lines().of("d"), 6);
    }

    #[test]
    fn a_field_that_is_not_there_has_the_line_of_what_is_around_it() {
        let documents = parse("\na:\n  b: 1\n").unwrap();
        let lines = documents[0].lines();
        assert_eq!(lines.of("a.missing.deeper"), 2);
        assert_eq!(lines.of("missing"), 2);
    }

    #[test]
    fn broken_yaml_names_its_line() {
        let problem = parse("a: 1\nb: [1, 2\nc: 3\n").unwrap_err();
        assert!(problem.line >= 2, "{problem}");
        let problem = parse("a: 1\na: 2\n").unwrap_err();
        assert_eq!(problem.line, 2, "{problem}");
    }

    #[test]
    fn a_tab_that_indents_is_found_where_it_is() {
        for (text, line) in [
            ("a:\n\tb: 1\n", 2),
            ("a:\n  b: x\n\n  \tc: 1\n", 4),
            ("a:\n  b: x\n\tc: 1\n", 3),
        ] {
            let problem = parse(text).unwrap_err();
            assert_eq!(problem.line, line, "{problem}");
            assert!(
                problem.message.contains("a tab indents this line"),
                "{problem}"
            );
        }
        assert!(parse("a: |\n  x\n  \ty\nb: [1,\n\t2]\n").is_ok());
    }
}
