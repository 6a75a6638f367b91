//! From a tree to a value of its schema, reporting every mistake instead of the first.
//!
//! What the API server does with an object is done here with lines: a field that is null is as good
//! as absent, a whole number may be written as a fraction, a field that the schema does not know is
//! a mistake (as for `kubectl apply`, which asks for that). What is wrong is left out of the value,
//! so that reading goes on.
//!
//! Every keyword that our schemas use is looked at; a test fails on one that is not.

use std::{collections::BTreeMap, sync::LazyLock};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use regex::Regex;
use serde_json::{Map, Number, Value as Json};

use crate::{
    bounds::words,
    problem::{Lines, Problem},
    suggest::nearest,
    tree::{Entry, Node, Value, join},
};

/// Reads `node` at `path` as `schema` says. The value lacks what is wrong.
pub(crate) fn read(
    node: &Node,
    path: &str,
    schema: &JSONSchemaProps,
    lines: &Lines,
) -> (Option<Json>, Vec<Problem>) {
    let mut reader = Reader {
        lines,
        problems: Vec::new(),
    };
    let value = reader.value(node, path, schema);
    (value, reader.problems)
}

/// Whether `field` is `path` or inside it.
pub(crate) fn covers(path: &str, field: &str) -> bool {
    field
        .strip_prefix(path)
        .is_some_and(|rest| path.is_empty() || rest.is_empty() || rest.starts_with(['.', '[']))
}

struct Reader<'a> {
    lines: &'a Lines,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    fn say(&mut self, field: &str, message: impl Into<String>) {
        self.problems.push(self.lines.problem(field, message));
    }

    /// Notes a value that is not allowed.
    fn refuse(&mut self, node: &Node, path: &str, allowed: &str) -> Option<Json> {
        let value = &node.value;
        self.say(path, format!("{value} is not allowed: must be {allowed}"));
        None
    }

    fn value(&mut self, node: &Node, path: &str, schema: &JSONSchemaProps) -> Option<Json> {
        if schema.x_kubernetes_preserve_unknown_fields == Some(true) {
            return match &node.value {
                Value::Map(_) => plain(node),
                _ => self.refuse(node, path, "a mapping"),
            };
        }
        match schema.type_.as_deref() {
            Some("object") => self.object(node, path, schema),
            Some("array") => self.list(node, path, schema),
            Some("string") => self.text(node, path, schema),
            Some("integer") => self.integer(node, path, schema),
            Some("number") => self.number(node, path, schema),
            Some("boolean") => match &node.value {
                Value::Bool(value) => Some(Json::Bool(*value)),
                _ => self.refuse(node, path, "true or false"),
            },
            _ => plain(node),
        }
    }

    fn object(&mut self, node: &Node, path: &str, schema: &JSONSchemaProps) -> Option<Json> {
        let Value::Map(entries) = &node.value else {
            return self.refuse(node, path, "a mapping");
        };
        let is_present = |entry: &&Entry| !matches!(entry.node.value, Value::Null);
        let present = entries.iter().filter(is_present).count();
        self.count(present, path, schema.min_properties, schema.max_properties);
        let none = BTreeMap::new();
        let known = schema.properties.as_ref().unwrap_or(&none);
        let others = match &schema.additional_properties {
            Some(JSONSchemaPropsOrBool::Schema(others)) => Some(others.as_ref()),
            _ => None,
        };
        let mut fields = Map::new();
        for Entry { key, node, .. } in entries {
            let field = join(path, key);
            match known.get(key).or(others) {
                Some(_) if matches!(node.value, Value::Null) => {}
                Some(schema) => {
                    let value = self.value(node, &field, schema);
                    fields.extend(value.map(|value| (key.clone(), value)));
                }
                None => self.unknown(key, &field, known),
            }
        }
        for required in schema.required.iter().flatten() {
            if !entries
                .iter()
                .filter(is_present)
                .any(|entry| entry.key == *required)
            {
                self.say(&join(path, required), "is required");
            }
        }
        Some(Json::Object(fields))
    }

    fn unknown(&mut self, key: &str, field: &str, known: &BTreeMap<String, JSONSchemaProps>) {
        let names: Vec<&str> = known.keys().map(String::as_str).collect();
        let message = match nearest(key, &names) {
            Some(name) => format!("unknown field, did you mean {name:?}?"),
            None => format!("unknown field, known here: {}", names.join(", ")),
        };
        self.say(field, message);
    }

    fn list(&mut self, node: &Node, path: &str, schema: &JSONSchemaProps) -> Option<Json> {
        let Value::List(nodes) = &node.value else {
            return self.refuse(node, path, "a list");
        };
        self.count(nodes.len(), path, schema.min_items, schema.max_items);
        let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items else {
            return plain(node);
        };
        let mut values: Vec<Json> = Vec::new();
        for (index, node) in nodes.iter().enumerate() {
            let place = format!("{path}[{index}]");
            let Some(value) = self.value(node, &place, items) else {
                continue;
            };
            for key in schema.x_kubernetes_list_map_keys.iter().flatten() {
                let own = value.get(key);
                if own.is_some() && values.iter().any(|other| other.get(key) == own) {
                    let shown = own.and_then(Json::as_str).unwrap_or_default();
                    self.say(&join(&place, key), format!("{shown:?} is there already"));
                }
            }
            values.push(value);
        }
        Some(Json::Array(values))
    }

    fn count(&mut self, count: usize, path: &str, least: Option<i64>, most: Option<i64>) {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        if let Some(most) = most.filter(|most| count > *most) {
            self.say(
                path,
                format!("{count} entries are not allowed: at most {most}"),
            );
        }
        if let Some(least) = least.filter(|least| count < *least) {
            self.say(
                path,
                format!("{count} entries are not allowed: at least {least}"),
            );
        }
    }

    fn text(&mut self, node: &Node, path: &str, schema: &JSONSchemaProps) -> Option<Json> {
        let text = match &node.value {
            Value::Text(text) => text.as_str(),
            Value::Bool(_) | Value::Integer(_) | Value::Float(_) if schema.enum_.is_none() => {
                return self.refuse(node, path, "text (put it in quotes)");
            }
            _ if schema.enum_.is_none() => return self.refuse(node, path, "text"),
            _ => "",
        };
        if let Some(allowed) = &schema.enum_ {
            let names = |JSON(value): &'_ JSON| value.as_str().map(str::to_owned);
            let names: Vec<String> = allowed.iter().filter_map(names).collect();
            if !names.iter().any(|name| name == text) {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let near = nearest(text, &names).filter(|_| !text.is_empty());
                let near = near.map_or_else(String::new, |near| format!(", did you mean {near}?"));
                return self.refuse(node, path, &format!("one of {}{near}", names.join(", ")));
            }
        }
        let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        let least = schema.min_length.unwrap_or(0);
        let most = schema.max_length.unwrap_or(i64::MAX);
        if !(least..=most).contains(&length) {
            self.say(
                path,
                format!("{length} characters are not allowed: must have {least} to {most}"),
            );
            return None;
        }
        if let Some(pattern) = &schema.pattern
            && !matches(pattern, text)
        {
            return self.refuse(node, path, &words(pattern));
        }
        Some(Json::String(text.to_owned()))
    }

    fn integer(&mut self, node: &Node, path: &str, schema: &JSONSchemaProps) -> Option<Json> {
        let (least, most) = bounds(schema);
        let value = match &node.value {
            Value::Integer(value) => *value,
            // Whole, as the API server sees it too.
            Value::Float(value) if value.fract() == 0.0 && value.abs() < 1e15 => *value as i128,
            _ => {
                let allowed = format!("a whole number from {least} to {most}");
                return self.refuse(node, path, &allowed);
            }
        };
        if value < least as i128 || value > most as i128 {
            return self.refuse(node, path, &format!("from {least} to {most}"));
        }
        Number::from_i128(value).map(Json::Number)
    }

    fn number(&mut self, node: &Node, path: &str, schema: &JSONSchemaProps) -> Option<Json> {
        let (least, most) = bounds(schema);
        let value = match &node.value {
            Value::Integer(value) => *value as f64,
            Value::Float(value) => *value,
            _ => return self.refuse(node, path, &format!("a number from {least} to {most}")),
        };
        if !(least..=most).contains(&value) {
            return self.refuse(node, path, &format!("from {least} to {most}"));
        }
        Number::from_f64(value).map(Json::Number)
    }
}

/// Least and largest number that `schema` allows.
fn bounds(schema: &JSONSchemaProps) -> (f64, f64) {
    let least = schema.minimum.unwrap_or(i64::MIN as f64);
    (least, schema.maximum.unwrap_or(i64::MAX as f64))
}

/// Whether `text` matches `pattern`.
fn matches(pattern: &str, text: &str) -> bool {
    static KNOWN: LazyLock<std::sync::Mutex<BTreeMap<String, Option<Regex>>>> =
        LazyLock::new(std::sync::Mutex::default);
    let mut known = KNOWN
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    let regex = known
        .entry(pattern.to_owned())
        .or_insert_with(|| Regex::new(pattern).ok());
    regex.as_ref().is_some_and(|regex| regex.is_match(text))
}

/// The node as it is; none if it holds a number that JSON has not.
fn plain(node: &Node) -> Option<Json> {
    Some(match &node.value {
        Value::Null => Json::Null,
        Value::Bool(value) => Json::Bool(*value),
        Value::Integer(value) => Json::Number(Number::from_i128(*value)?),
        Value::Float(value) => Json::Number(Number::from_f64(*value)?),
        Value::Text(text) => Json::String(text.clone()),
        Value::List(items) => items.iter().filter_map(plain).collect(),
        Value::Map(entries) => entries
            .iter()
            .filter_map(|Entry { key, node, .. }| Some((key.clone(), plain(node)?)))
            .collect(),
    })
}

#[cfg(test)]
mod tests;
