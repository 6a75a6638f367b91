//! The rules of a schema, run without a cluster.

use std::{cell::RefCell, collections::BTreeMap};

use kube_cel::{CompiledSchema, ErrorKind, ValidationError, Validator, compile_schema};
use serde_json::{Value as Json, json};

use crate::{
    definition::Kind,
    problem::{Lines, Problem},
    read::covers,
    tree::{Node, Value},
};

thread_local! {
    /// Rules as programs, by kind: parsing them takes longer than running them.
    static COMPILED: RefCell<BTreeMap<Kind, CompiledSchema>> = const { RefCell::new(BTreeMap::new()) };
    static VALIDATOR: Validator = Validator::new();
}

/// What the rules of `kind` say about `value`, which has been read from `node` but for what
/// `wrong` names. A rule says nothing of what could not be read.
pub(crate) fn broken(
    kind: Kind,
    value: &Json,
    node: &Node,
    lines: &Lines,
    wrong: &[Problem],
) -> Vec<Problem> {
    let errors = COMPILED.with_borrow_mut(|compiled| {
        let schema = compiled
            .entry(kind)
            .or_insert_with(|| compile_schema(&json!(kind.schema())));
        VALIDATOR.with(|validator| validator.validate_compiled(schema, value, None))
    });
    let Err(errors) = errors else {
        return Vec::new();
    };
    let is_sound = |error: &ValidationError| {
        // Where something is missing, a rule that looks at it has nothing to look at.
        (wrong.is_empty() || error.kind == ErrorKind::ValidationFailure)
            && !wrong.iter().any(|known| looks_at(error, &known.field))
    };
    let sound = errors.into_iter().filter(is_sound);
    sound.map(|error| told(&error, node, lines)).collect()
}

/// Whether a rule that was broken has looked at `field`, or at what is around it or inside it. What
/// could not be read has its default there, and that is not what was meant.
fn looks_at(error: &ValidationError, field: &str) -> bool {
    let blamed = &error.field_path;
    let beside = blamed.rfind('.').map_or("", |end| &blamed[..end]);
    let neighbour = field
        .strip_prefix(beside)
        .and_then(|rest| rest.trim_start_matches('.').split(['.', '[']).next());
    covers(field, blamed)
        || covers(blamed, field)
        || neighbour.is_some_and(|name| error.rule.contains(&format!("self.{name}")))
}

/// What a rule says, the offending value before it where the message reads on from it.
fn told(error: &ValidationError, node: &Node, lines: &Lines) -> Problem {
    let ValidationError {
        field_path,
        message,
        ..
    } = error;
    let shown = node.at(field_path).map(|found| &found.value);
    let message = match shown {
        Some(value @ (Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::Text(_)))
            if message.starts_with("must be") || message.starts_with("must start") =>
        {
            format!("{value} is not allowed: {message}")
        }
        _ => message.clone(),
    };
    lines.problem(field_path, message)
}
