//! JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it: models were trained on
//! prompts with its spaces.

use std::io::{self, Write};

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, Serde},
};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// All on one line.
struct Line {
    /// Between items.
    item: String,
    /// After keys.
    key: String,
}

impl Line {
    /// As the `separators` of a filter say, which none has to have.
    fn read(args: &Kwargs, indent: Option<usize>) -> Result<Self, Error> {
        let Some(given) = args.get::<Option<Vec<String>>>("separators")? else {
            return Ok(Self {
                item: ", ".to_owned(),
                key: ": ".to_owned(),
            });
        };
        match <[String; 2]>::try_from(given) {
            Ok([item, key]) if indent.is_none() => Ok(Self { item, key }),
            _ => {
                let problem = "separators are two texts, and go without indent";
                Err(Error::new(ErrorKind::InvalidOperation, problem))
            }
        }
    }

    fn next<W: ?Sized + Write>(&self, w: &mut W, first: bool) -> io::Result<()> {
        if first {
            Ok(())
        } else {
            w.write_all(self.item.as_bytes())
        }
    }
}

impl Formatter for Line {
    fn begin_array_value<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.next(w, first)
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.next(w, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(self.key.as_bytes())
    }
}

/// The `tojson` filter of chat templates.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn tojson(value: Value, args: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = args.get("indent")?;
    let line = Line::read(&args, indent)?;
    // Accepted and already so.
    let _: Option<bool> = args.get("ensure_ascii")?;
    let sorts = args.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    args.assert_all_used()?;
    let failed = |e: &dyn std::fmt::Display| Error::new(ErrorKind::InvalidOperation, e.to_string());
    let value = if sorts {
        // Its maps are sorted.
        let sorted = serde_json::to_value(&value).map_err(|e| failed(&e))?;
        Value::from(Serde(sorted))
    } else {
        value
    };
    let mut out = Vec::new();
    let written = match indent {
        None => value.serialize(&mut Serializer::with_formatter(&mut out, line)),
        Some(width) => {
            let spaces = " ".repeat(width.min(16));
            let formatter = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut out, formatter))
        }
    };
    written.map_err(|e| failed(&e))?;
    String::from_utf8(out)
        .map(Value::from)
        .map_err(|e| failed(&e))
}
