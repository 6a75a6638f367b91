//! What templates may use of Python and of jinja2, as `transformers` sets that up, and minijinja does
//! not have or decides otherwise.

use minijinja::{
    Environment, Error, ErrorKind, Output, State, Value,
    value::{Kwargs, ValueKind, from_args},
};

/// Gives it to `environment`.
pub(super) fn extend(environment: &mut Environment<'_>) {
    environment.set_unknown_method_callback(method);
    environment.set_formatter(print);
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("wordcount", wordcount);
    environment.add_filter("center", center);
    environment.add_test("callable", is_callable);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
}

/// A number as Python's `repr` writes it: the shortest digits that mean it, with an exponent where
/// that is below -4 or above 15.
pub(super) fn number(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    let scientific = format!("{x:e}");
    let exponent = scientific.split_once('e');
    let exponent = exponent.and_then(|(digits, exponent)| Some((digits, exponent.parse().ok()?)));
    match exponent {
        // Infinity has none.
        None => scientific,
        Some((_, -4..=15)) => format!("{x:?}"),
        Some((digits, exponent @ i32::MIN..=-5)) => format!("{digits}e-{:02}", exponent.abs()),
        Some((digits, exponent @ 16..)) => format!("{digits}e+{exponent}"),
    }
}

fn print(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    match f64::try_from(value.clone()) {
        Ok(x) if value.kind() == ValueKind::Number && !value.is_integer() => {
            Ok(out.write_str(&number(x))?)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// Methods of texts and lists.
fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    match (method, value.as_str(), value.kind()) {
        ("rsplit", Some(text), _) => rsplit(text, args),
        ("removeprefix", Some(text), _) => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(text.strip_prefix(prefix).unwrap_or(text).into())
        }
        ("removesuffix", Some(text), _) => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(text.strip_suffix(suffix).unwrap_or(text).into())
        }
        ("index", Some(text), _) => {
            let (part,): (&str,) = from_args(args)?;
            let at = text
                .find(part)
                .ok_or_else(|| wrong("substring not found"))?;
            Ok(text[..at].chars().count().into())
        }
        ("index", None, ValueKind::Seq | ValueKind::Iterable) => {
            let (item,): (&Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|other| other == *item);
            let at = at.ok_or_else(|| wrong(format!("{item} is not in list")))?;
            Ok(at.into())
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// `text.rsplit(sep=None, maxsplit=-1)`.
fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (between, most, named): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
    let between = match between {
        Some(between) => Some(between),
        None => named.get("sep")?,
    };
    let most = match most {
        Some(most) => Some(most),
        None => named.get("maxsplit")?,
    };
    named.assert_all_used()?;
    // None, or less than none: all.
    let most = most.and_then(|most| usize::try_from(most).ok());
    let most = most.unwrap_or(usize::MAX);
    let parts: Vec<&str> = match between {
        Some("") => return Err(wrong("empty separator")),
        Some(between) => text.rsplitn(most.saturating_add(1), between).collect(),
        None => words_from_the_end(text, most),
    };
    Ok(parts.into_iter().rev().map(Value::from).collect())
}

/// The last `most` words, from the end on, and what is before them, if anything is.
fn words_from_the_end(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() {
        let word = match rest.rsplit(char::is_whitespace).next() {
            Some(word) if parts.len() < most => word,
            _ => rest,
        };
        parts.push(word);
        rest = rest[..rest.len() - word.len()].trim_end();
    }
    parts
}

fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    minijinja::filters::length(value)
}

fn wordcount(text: &str) -> usize {
    let is_between = |c: char| !c.is_alphanumeric() && c != '_';
    let words = text.split(is_between).filter(|word| !word.is_empty());
    words.count()
}

/// In the middle of so many characters. What is odd about the rest goes where Python puts it.
fn center(text: &str, width: Option<usize>) -> Result<String, Error> {
    const WIDEST: usize = 1 << 16;
    let width = width.unwrap_or(80);
    if width > WIDEST {
        return Err(wrong(format!("a width is at most {WIDEST}")));
    }
    let rest = width.saturating_sub(text.chars().count());
    let left = rest / 2 + (rest & width & 1);
    let (left, right) = (" ".repeat(left), " ".repeat(rest - left));
    Ok(format!("{left}{text}{right}"))
}

/// Functions; and what is undefined, which Python can call to hear that it is.
fn is_callable(value: &Value) -> bool {
    value.is_undefined() || value.kind() == ValueKind::Plain
}

fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Whatever has a length and items, as texts and maps do.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Iterable, Map, Seq, String, Undefined};
    match value.kind() {
        Undefined | String | Seq | Map => true,
        // Ranges, and parts of lists.
        Iterable => value.len().is_some(),
        _ => false,
    }
}

fn wrong(problem: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}
