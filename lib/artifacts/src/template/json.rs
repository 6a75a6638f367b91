//! JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it: models were trained on
//! prompts with its spaces.

use std::io::{self, Write};

use minijinja::{Error, ErrorKind, Value, value::Kwargs};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// `", "` and `": "` on one line.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(b": ")
    }
}

/// The `tojson` filter of chat templates.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn tojson(value: Value, args: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = args.get("indent")?;
    // Accepted and already so.
    let _: Option<bool> = args.get("ensure_ascii")?;
    args.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Spaced)),
        Some(width) => {
            let spaces = " ".repeat(width.min(16));
            let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, formatter))
        }
    };
    let failed = |e: &dyn std::fmt::Display| Error::new(ErrorKind::InvalidOperation, e.to_string());
    written.map_err(|e| failed(&e))?;
    String::from_utf8(out)
        .map(Value::from)
        .map_err(|e| failed(&e))
}
