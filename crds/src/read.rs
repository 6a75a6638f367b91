//! From a tree to a typed object, reporting every mistake instead of the first.
//!
//! The types are plain serde types. A value of the wrong kind is noted and replaced by a
//! placeholder so that reading goes on; a field that is missing is noted and reading starts over
//! with a placeholder in its place, which ends because every pass adds a placeholder. The result
//! is a value to run further checks on, and the notes; with notes, the value is never used for
//! anything else.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    fmt::{self, Display},
};

use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IntoDeserializer, MapAccess,
    SeqAccess, Visitor,
    value::{StrDeserializer, StringDeserializer},
};

use crate::{
    problem::{Lines, Problem},
    suggest::nearest,
    tree::{Entry, Node, Value, join},
};

/// More missing fields than any of our types has.
const MAX_PASSES: usize = 64;

/// Reads `node` as a `T`. The value is there unless its own parser refused a field.
pub(crate) fn read<T: DeserializeOwned>(node: &Node, lines: &Lines) -> (Option<T>, Vec<Problem>) {
    let mut missing = Vec::new();
    let mut holes = BTreeSet::new();
    for _ in 0..MAX_PASSES {
        let notes = RefCell::new(Vec::new());
        let cursor = Cursor {
            node: Some(node),
            path: String::new(),
            lines,
            notes: &notes,
            holes: &holes,
        };
        let result = T::deserialize(cursor);
        let mut problems = missing.clone();
        problems.append(&mut notes.into_inner());
        match result {
            Ok(value) => return (Some(value), problems),
            Err(Stop::Missing { path, field }) => {
                let field = join(&path, field);
                if !holes.iter().any(|hole| covers(hole, &field)) {
                    missing.push(lines.problem(field.clone(), "is required"));
                }
                if !holes.insert(field) {
                    return (None, problems);
                }
            }
            Err(Stop::Refused { path, message }) => {
                problems.push(lines.problem(path, message));
                return (None, problems);
            }
        }
    }
    (None, missing)
}

/// Whether `field` is `path` or inside it.
pub(crate) fn covers(path: &str, field: &str) -> bool {
    field
        .strip_prefix(path)
        .is_some_and(|rest| path.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Why a pass ended early.
#[derive(Debug)]
enum Stop {
    Missing { path: String, field: &'static str },
    Refused { path: String, message: String },
}

impl Stop {
    /// Fills in the path where the stop arose; an inner cursor has done so already if not empty.
    fn within(mut self, here: &str) -> Self {
        let (Self::Missing { path, .. } | Self::Refused { path, .. }) = &mut self;
        if path.is_empty() {
            here.clone_into(path);
        }
        self
    }
}

impl Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { path, field } => write!(f, "{}: is required", join(path, field)),
            Self::Refused { path, message } => write!(f, "{path}: {message}"),
        }
    }
}

impl std::error::Error for Stop {}

impl serde::de::Error for Stop {
    fn custom<T: Display>(message: T) -> Self {
        Self::Refused {
            path: String::new(),
            message: message.to_string(),
        }
    }

    fn missing_field(field: &'static str) -> Self {
        Self::Missing {
            path: String::new(),
            field,
        }
    }
}

/// A place in the tree; `node` is none for a placeholder.
struct Cursor<'a> {
    node: Option<&'a Node>,
    path: String,
    lines: &'a Lines,
    notes: &'a RefCell<Vec<Problem>>,
    holes: &'a BTreeSet<String>,
}

impl<'a> Cursor<'a> {
    fn child(&self, node: Option<&'a Node>, path: String) -> Self {
        Self {
            node,
            path,
            lines: self.lines,
            notes: self.notes,
            holes: self.holes,
        }
    }

    fn value(&self) -> Option<&'a Value> {
        self.node.map(|node| &node.value)
    }

    fn note(&self, field: &str, message: String) {
        self.notes
            .borrow_mut()
            .push(self.lines.problem(field, message));
    }

    /// Notes a value of the wrong kind, unless this is a placeholder.
    fn wrong(&self, expected: &str) {
        if let Some(value) = self.value() {
            self.note(
                &self.path,
                format!("{value} is not allowed: must be {expected}"),
            );
        }
    }

    fn integer(&self, low: i128, high: i128) -> i128 {
        match self.value() {
            Some(Value::Integer(value)) if (low..=high).contains(value) => *value,
            _ => {
                self.wrong(&format!("a whole number from {low} to {high}"));
                low.max(0)
            }
        }
    }

    /// The entries of this mapping; those not in `known` are noted and left out.
    fn entries(&self, known: Option<&'static [&'static str]>) -> Vec<(&'a str, Option<&'a Node>)> {
        let mut entries = Vec::new();
        match self.value() {
            Some(Value::Map(fields)) => {
                for Entry { key, node, .. } in fields {
                    match known {
                        Some(known) if !known.contains(&key.as_str()) => self.unknown(key, known),
                        _ => entries.push((key.as_str(), Some(node))),
                    }
                }
            }
            _ => self.wrong("a mapping"),
        }
        for field in known.unwrap_or_default() {
            let is_hole = self.holes.contains(&join(&self.path, field));
            if is_hole && !entries.iter().any(|(key, _)| key == field) {
                entries.push((field, None));
            }
        }
        entries
    }

    fn unknown(&self, key: &str, known: &[&'static str]) {
        let message = match nearest(key, known) {
            Some(name) => format!("unknown field, did you mean {name:?}?"),
            None => format!("unknown field, known here: {}", known.join(", ")),
        };
        self.note(&join(&self.path, key), message);
    }
}

macro_rules! integers {
    ($($method:ident $visit:ident $type:ty;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
            let value = self.integer(<$type>::MIN.into(), <$type>::MAX.into());
            visitor.$visit(value as $type).map_err(|stop: Stop| stop.within(&self.path))
        }
    )*};
}

impl Cursor<'_> {
    /// Reads a mapping; with `known`, a field outside of it is a mistake.
    fn visit_fields<'de, V: Visitor<'de>>(
        self,
        known: Option<&'static [&'static str]>,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        let path = self.path.clone();
        let entries = self.entries(known).into_iter();
        visitor
            .visit_map(Fields {
                cursor: self,
                entries,
                next: None,
            })
            .map_err(|stop: Stop| stop.within(&path))
    }
}

impl<'de> Deserializer<'de> for Cursor<'_> {
    type Error = Stop;

    integers! {
        deserialize_i8 visit_i8 i8;
        deserialize_i16 visit_i16 i16;
        deserialize_i32 visit_i32 i32;
        deserialize_i64 visit_i64 i64;
        deserialize_u8 visit_u8 u8;
        deserialize_u16 visit_u16 u16;
        deserialize_u32 visit_u32 u32;
        deserialize_u64 visit_u64 u64;
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        match self.value() {
            None | Some(Value::Null) => visitor.visit_unit(),
            Some(Value::Bool(value)) => visitor.visit_bool(*value),
            Some(Value::Integer(value)) => match i64::try_from(*value) {
                Ok(value) => visitor.visit_i64(value),
                Err(_) => visitor.visit_u64(*value as u64),
            },
            Some(Value::Float(value)) => visitor.visit_f64(*value),
            Some(Value::Text(text)) => visitor.visit_str(text),
            Some(Value::List(_)) => self.deserialize_seq(visitor),
            Some(Value::Map(_)) => self.deserialize_map(visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        if let Some(Value::Bool(value)) = self.value() {
            return visitor.visit_bool(*value);
        }
        self.wrong("true or false");
        visitor.visit_bool(false)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        match self.value() {
            Some(Value::Float(value)) => visitor.visit_f64(*value),
            Some(Value::Integer(value)) => visitor.visit_f64(*value as f64),
            _ => {
                self.wrong("a number");
                visitor.visit_f64(0.0)
            }
        }
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        self.deserialize_str(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        let text = match self.value() {
            Some(Value::Text(text)) => text.as_str(),
            Some(Value::Bool(_) | Value::Integer(_) | Value::Float(_)) => {
                self.wrong("text (put it in quotes)");
                ""
            }
            _ => {
                self.wrong("text");
                ""
            }
        };
        visitor
            .visit_str(text)
            .map_err(|stop: Stop| stop.within(&self.path))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        self.deserialize_str(visitor)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        match self.value() {
            None | Some(Value::Null) => visitor.visit_none(),
            Some(_) => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        let path = self.path.clone();
        let items = if let Some(Value::List(items)) = self.value() {
            items.as_slice()
        } else {
            self.wrong("a list");
            &[]
        };
        visitor
            .visit_seq(Items {
                cursor: self,
                items: items.iter().enumerate(),
            })
            .map_err(|stop: Stop| stop.within(&path))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Stop> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        self.visit_fields(None, visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.visit_fields(Some(fields), visitor)
    }

    /// Enums of the API have unit variants only: names.
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        let known = |text: &&str| variants.contains(text);
        let text = match self.value() {
            Some(Value::Text(text)) => Some(text.as_str()),
            _ => None,
        };
        if let Some(text) = text.filter(known) {
            let variant: StrDeserializer<'_, Stop> = text.into_deserializer();
            return visitor.visit_enum(variant);
        }
        let suggestion = text
            .and_then(|text| nearest(text, variants))
            .map_or_else(String::new, |near| format!(", did you mean {near}?"));
        self.wrong(&format!("one of {}{suggestion}", variants.join(", ")));
        let Some(first) = variants.first() else {
            return Err(Stop::custom(format!("{name} has no values")));
        };
        let variant: StrDeserializer<'_, Stop> = (*first).into_deserializer();
        visitor.visit_enum(variant)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        self.deserialize_str(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        visitor.visit_unit()
    }
}

struct Items<'a> {
    cursor: Cursor<'a>,
    items: std::iter::Enumerate<std::slice::Iter<'a, Node>>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Stop;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Stop> {
        let Some((index, node)) = self.items.next() else {
            return Ok(None);
        };
        let path = format!("{}[{index}]", self.cursor.path);
        seed.deserialize(self.cursor.child(Some(node), path))
            .map(Some)
    }
}

struct Fields<'a> {
    cursor: Cursor<'a>,
    entries: std::vec::IntoIter<(&'a str, Option<&'a Node>)>,
    next: Option<(&'a str, Option<&'a Node>)>,
}

impl<'de> MapAccess<'de> for Fields<'_> {
    type Error = Stop;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Stop> {
        self.next = self.entries.next();
        let Some((key, _)) = self.next else {
            return Ok(None);
        };
        let key: StringDeserializer<Stop> = key.to_owned().into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Stop> {
        let (key, node) = self.next.take().unwrap_or(("", None));
        let path = join(&self.cursor.path, key);
        seed.deserialize(self.cursor.child(node, path))
    }
}
