//! Bounds and rules as the schema says them, and nowhere else.
//!
//! Every list and text of the API has a bound, so that the API server can tell that a rule is cheap
//! enough to run, and no object can grow until it cannot be stored.

use schemars::{Schema, json_schema};
use serde_json::{Value, json};

/// Most tokens a window may have.
pub(crate) const MAX_LOOKAHEAD: u32 = 32;
/// Most replicas of anything.
pub(crate) const MAX_REPLICAS: u32 = 1000;
/// Most entries of any list that a user writes.
pub(crate) const MAX_ITEMS: u32 = 64;
/// Most entries of a map of labels or annotations.
pub(crate) const MAX_LABELS: u32 = 64;
/// Longest URI, revision and served name, in characters.
pub(crate) const MAX_TEXT: u32 = 1024;
/// Longest message of a status, in characters.
pub(crate) const MAX_MESSAGE: u32 = 32_768;
/// Longest name of one part (RFC 1123 label), and longest value of a label.
pub(crate) const MAX_LABEL: u32 = 63;
/// Longest name of an object, or of something with a domain before it.
pub(crate) const MAX_PREFIXED: u32 = 253;
/// Longest name of a deployment or an endpoint: a Service's has 63, and what belongs to an object is
/// called after it, `NAME-router` for one.
pub(crate) const MAX_NAME: u32 = 50;

/// An RFC 1123 label.
pub(crate) const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// An RFC 1035 label, as the names of Services are.
pub(crate) const SERVICE: &str = "^[a-z]([-a-z0-9]*[a-z0-9])?$";
/// Value of a label.
pub(crate) const LABEL_VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$";
/// Key of a label, or name of a resource: a name with, perhaps, a domain and a slash before it.
pub(crate) const QUALIFIED: &str =
    "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";
/// An RFC 1123 subdomain.
pub(crate) const DOMAIN: &str = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$";

/// Address of a collector.
pub(crate) const COLLECTOR: &str = r"^http://[-a-zA-Z0-9_.]+(:[0-9]{1,5})?/?$";

/// A name that is printed, and written into lines of a shell: without control characters.
pub(crate) const PRINTABLE: &str = r"^\P{Cc}*$";

/// An amount of memory. [`Memory`](crate::memory::Memory) reads the same.
pub(crate) const MEMORY: &str = "^[1-9][0-9]{0,5}(Mi|Gi|Ti)$";

/// An origin of web pages as browsers send it, or all of them. The router reads the same.
pub(crate) const ORIGIN: &str =
    r"^(\*|[a-z][-+.a-z0-9]*://([-_.a-z0-9]+|\[[0-9a-f:]+\])(:[1-9][0-9]{0,4})?)$";

/// Each pattern of the schema, what it is called, and what it asks for.
pub(crate) const WORDS: [(&str, &str, &str); 9] = [
    (
        PRINTABLE,
        "printable text",
        "text without control characters",
    ),
    (
        MEMORY,
        "amount of memory",
        "a whole number and Mi, Gi or Ti, such as 4Gi",
    ),
    (
        COLLECTOR,
        "address of a collector",
        "http://HOST:PORT, where OTLP is spoken over gRPC (usually port 4317)",
    ),
    (
        ORIGIN,
        "origin",
        "'*', or SCHEME://HOST or SCHEME://HOST:PORT in lower case, such as https://chat.example.com",
    ),
    (
        LABEL,
        "label",
        "lower case letters, digits and '-', starting and ending with a letter or digit",
    ),
    (
        SERVICE,
        "name of a service",
        "lower case letters, digits and '-', starting with a letter and ending with a letter or digit",
    ),
    (
        DOMAIN,
        "domain",
        "lower case letters, digits, '-' and '.', starting and ending with a letter or digit",
    ),
    (
        LABEL_VALUE,
        "value of a label",
        "letters, digits, '-', '_' and '.', starting and ending with a letter or digit",
    ),
    (
        QUALIFIED,
        "qualified name",
        "a name, or a domain, '/' and a name, such as example.com/name",
    ),
];

/// What `pattern` asks for, in words; the pattern itself if nobody has put it into words.
pub(crate) fn words(pattern: &str) -> String {
    let known = WORDS.iter().find(|(known, ..)| *known == pattern);
    known.map_or_else(
        || format!("text that matches {pattern}"),
        |(.., words)| (*words).to_owned(),
    )
}

/// A rule in CEL, for `x-kubernetes-validations`: `self` is what the rule stands at, `field` the
/// path from there to what is to blame, empty for itself. A message that begins with "must be"
/// reads on from the offending value.
pub(crate) fn rule(expression: &str, field: &str, message: &str) -> Value {
    let mut rule = json!({"rule": expression, "message": message});
    if !field.is_empty() {
        rule["fieldPath"] = field.into();
    }
    rule
}

/// Schema of a map of at most `entries` texts of at most `length` characters.
pub(crate) fn texts(entries: u32, length: u32, pattern: Option<&str>) -> Schema {
    let mut text = json!({"type": "string", "maxLength": length});
    if let Some(pattern) = pattern {
        text["pattern"] = pattern.into();
    }
    json_schema!({
        "type": "object",
        "maxProperties": entries,
        "additionalProperties": text,
    })
}
