//! JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it: models were trained on
//! prompts with its spaces.

use std::io::{self, Write};

use minijinja::{
    Error, ErrorKind, Value,
    value::{Kwargs, Serde},
};
use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

use super::python::number;

/// Widest indent.
const WIDEST: usize = 16;

/// How values are set apart.
struct Layout {
    /// Between items.
    item: String,
    /// After keys.
    key: String,
    /// Spaces before what is on a line of its own, for each level; none: all is on one line.
    indent: Option<usize>,
    /// How deep it is.
    level: usize,
    /// Whether the innermost list or object has an item so far.
    has_items: bool,
}

impl Layout {
    /// As the `separators` of a filter say, which none has to have.
    fn read(args: &Kwargs, indent: Option<usize>) -> Result<Self, Error> {
        let (item, key) = match args.get::<Option<Vec<String>>>("separators")? {
            None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
            None => (", ".to_owned(), ": ".to_owned()),
            Some(given) => {
                let problem = "separators are two texts";
                let wrong = |_| Error::new(ErrorKind::InvalidOperation, problem);
                <[String; 2]>::try_from(given).map_err(wrong)?.into()
            }
        };
        Ok(Self {
            item,
            key,
            indent: indent.map(|width| width.min(WIDEST)),
            level: 0,
            has_items: false,
        })
    }

    fn begin<W: ?Sized + Write>(&mut self, w: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level += 1;
        self.has_items = false;
        w.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        if !first {
            w.write_all(self.item.as_bytes())?;
        }
        self.line(w)
    }

    fn end<W: ?Sized + Write>(&mut self, w: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.level -= 1;
        if self.has_items {
            self.line(w)?;
        }
        // It is an item of what it lies in.
        self.has_items = true;
        w.write_all(bracket)
    }

    fn line<W: ?Sized + Write>(&self, w: &mut W) -> io::Result<()> {
        match self.indent {
            None => Ok(()),
            Some(width) => write!(w, "\n{:1$}", "", width * self.level),
        }
    }
}

impl Formatter for Layout {
    fn write_f64<W: ?Sized + Write>(&mut self, w: &mut W, x: f64) -> io::Result<()> {
        w.write_all(number(x).as_bytes())
    }

    fn begin_array<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.begin(w, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.end(w, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.next(w, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_items = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.begin(w, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        self.end(w, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, w: &mut W, first: bool) -> io::Result<()> {
        self.next(w, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, w: &mut W) -> io::Result<()> {
        w.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.has_items = true;
        Ok(())
    }
}

/// The `tojson` filter of chat templates.
#[expect(clippy::needless_pass_by_value, reason = "the signature of a filter")]
pub(super) fn tojson(value: Value, args: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = args.get("indent")?;
    let layout = Layout::read(&args, indent)?;
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
    value
        .serialize(&mut Serializer::with_formatter(&mut out, layout))
        .map_err(|e| failed(&e))?;
    String::from_utf8(out)
        .map(Value::from)
        .map_err(|e| failed(&e))
}
