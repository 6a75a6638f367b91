//! From chat messages to the text of a prompt.
//!
//! Templates are Jinja as the `transformers` library renders it: blocks trimmed, Python's string
//! methods, `raise_exception`, `strftime_now`, `tojson` as Python writes JSON.
//!
//! A model without a template gets [`DEFAULT_TEMPLATE`]: the contents of the messages, joined by
//! a line break, without a word about who said what. A base model can only continue a text, and
//! so the user decides what the text is.

mod json;
mod python;

use std::{borrow::Cow, collections::BTreeMap, path::Path};

use minijinja::{
    Environment, Error, ErrorKind, Template, UndefinedBehavior, Value, syntax::SyntaxConfig,
    value::Serde,
};
use serde::Deserialize;
use serde_json::Value as Json;

use crate::{
    file::{FileError, Object, read_json, read_text},
    tokenizer::SpecialToken,
};

/// What a model without a template gets.
pub const DEFAULT_TEMPLATE: &str = "{{ messages | map(attribute='content') | join('\\n') }}";

/// Folder of templates beside `chat_template.jinja`, each a file by its name.
pub(crate) const ADDITIONAL: &str = "additional_chat_templates";

/// Steps a template may take: far more than any real one does, few enough that a loop without
/// end is stopped in a moment.
const FUEL: u64 = 5_000_000;

/// Why a folder's template cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// A file is not valid.
    #[error(transparent)]
    File(#[from] FileError),
    /// The template does not parse.
    #[error("chat template '{name}' of {folder} does not parse: {reason}")]
    Syntax {
        /// Name of the template; `default` if it has none.
        name: String,
        /// The model's folder.
        folder: String,
        /// Line and reason.
        reason: String,
    },
}

/// Why messages have no prompt.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The template itself refuses the messages (`raise_exception`).
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    /// The template fails on the messages.
    #[error("the model's chat template fails on these messages: {0}")]
    Failed(String),
}

/// What a chat request says besides its messages.
#[derive(Clone, Debug, Default)]
pub struct RenderOptions {
    /// Ends with what makes the model answer.
    pub add_generation_prompt: bool,
    /// Descriptions of tools, as the request has them.
    pub tools: Option<Json>,
    /// Further variables of the template.
    pub variables: serde_json::Map<String, Json>,
}

/// A model's chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    special_tokens: BTreeMap<&'static str, String>,
    is_default: bool,
}

/// One template, or several with names.
#[derive(Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// `chat_template.json`, which some processors write.
#[derive(Deserialize)]
struct TemplateFile {
    chat_template: String,
}

impl ChatTemplate {
    /// Finds the template of a model folder: `chat_template.jinja`, `chat_template.json`, or
    /// `chat_template` in `tokenizer_config.json` (one, or named ones of which `default` and
    /// `tool_use` are used), else [`DEFAULT_TEMPLATE`]; and `additional_chat_templates/tool_use.jinja`.
    ///
    /// # Errors
    /// See [`TemplateError`].
    pub fn load(folder: &Path) -> Result<Self, TemplateError> {
        let config = Object::read(folder, "tokenizer_config.json")?;
        let templates = if let Some(text) = read_text(folder, "chat_template.jinja")? {
            Some(Templates::One(text))
        } else if let Some(file) = read_json::<TemplateFile>(folder, "chat_template.json")? {
            Some(Templates::One(file.chat_template))
        } else {
            let allowed = "a template, or a list of objects with name and template";
            config.parsed("chat_template", allowed)?
        };
        let mut sources = match templates {
            None => Vec::new(),
            Some(Templates::One(text)) => vec![("default".to_owned(), text)],
            Some(Templates::Named(list)) => list
                .into_iter()
                .map(|named| (named.name, named.template))
                .collect(),
        };
        // Others of that folder nobody asks for.
        if let Some(text) = read_text(&folder.join(ADDITIONAL), "tool_use.jinja")?
            && !sources.iter().any(|(name, _)| name == "tool_use")
        {
            sources.push(("tool_use".to_owned(), text));
        }
        // A list without `default` has no template for plain chat but its first.
        if !sources.iter().any(|(name, _)| name == "default")
            && let Some((_, text)) = sources.first()
        {
            sources.push(("default".to_owned(), text.clone()));
        }
        let mut special_tokens = BTreeMap::new();
        for name in ["bos_token", "eos_token", "pad_token", "unk_token"] {
            if let Some(token) = SpecialToken::read(&config, name)? {
                special_tokens.insert(name, token.text().to_owned());
            }
        }
        Self::build(sources, special_tokens, &folder.display().to_string())
    }

    fn build(
        mut sources: Vec<(String, String)>,
        special_tokens: BTreeMap<&'static str, String>,
        folder: &str,
    ) -> Result<Self, TemplateError> {
        let is_default = sources.is_empty();
        if is_default {
            sources.push(("default".to_owned(), DEFAULT_TEMPLATE.to_owned()));
        }
        let mut environment = environment();
        for (name, text) in sources {
            let syntax = |error: &Error| TemplateError::Syntax {
                name: name.clone(),
                folder: folder.to_owned(),
                reason: describe(error),
            };
            environment
                .add_template_owned(name.clone(), without_generation_tags(&text))
                .map_err(|error| syntax(&error))?;
        }
        Ok(Self {
            environment,
            special_tokens,
            is_default,
        })
    }

    /// The prompt for `messages`, a JSON list of objects with `role` and `content`.
    ///
    /// # Errors
    /// See [`RenderError`]: the messages do not suit the template.
    pub fn render(&self, messages: &Json, options: &RenderOptions) -> Result<String, RenderError> {
        let mut variables: BTreeMap<&str, Value> = BTreeMap::new();
        for (name, value) in &options.variables {
            variables.insert(name, Value::from(Serde(value)));
        }
        for (name, text) in &self.special_tokens {
            variables.insert(name, Value::from(text.as_str()));
        }
        variables.insert(
            "add_generation_prompt",
            Value::from(options.add_generation_prompt),
        );
        // Templates ask `if tools`, and some `if tools is not none`.
        let tools = options.tools.as_ref().filter(|tools| !tools.is_null());
        variables.insert(
            "tools",
            tools.map_or(Value::from(()), |tools| Value::from(Serde(tools))),
        );
        let with_tools = tools.and_then(|_| self.environment.get_template("tool_use").ok());
        let template = match with_tools {
            Some(template) => template,
            None => self
                .environment
                .get_template("default")
                .map_err(|e| failed(&e))?,
        };
        let messages = with_known_roles(messages, &template);
        variables.insert("messages", Value::from(Serde(&*messages)));
        template.render(variables).map_err(|e| failed(&e))
    }

    /// Whether the model has no template of its own.
    pub fn is_default(&self) -> bool {
        self.is_default
    }

    /// Whether the prompt still lacks the special tokens that begin a text: a model's own
    /// template writes them, the default one does not.
    pub fn wants_special_tokens(&self) -> bool {
        self.is_default
    }
}

/// The messages with `developer`, the newer name of `system`, as the template knows it: most would leave
/// out what a role says that they do not know.
fn with_known_roles<'a>(messages: &'a Json, template: &Template<'_, '_>) -> Cow<'a, Json> {
    let is_newer = |message: &Json| message["role"] == "developer";
    let list = messages.as_array();
    let Some(list) = list.filter(|list| list.iter().any(is_newer)) else {
        return Cow::Borrowed(messages);
    };
    if template.source().contains("developer") {
        return Cow::Borrowed(messages);
    }
    let mut list = list.clone();
    for message in list.iter_mut().filter(|message| is_newer(message)) {
        message["role"] = "system".into();
    }
    Cow::Owned(Json::Array(list))
}

/// The environment that `transformers` gives to templates.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    // The delimiters are the defaults, which are valid.
    if let Ok(syntax) = syntax.build() {
        environment.set_syntax(syntax);
    }
    environment.set_undefined_behavior(UndefinedBehavior::Lenient);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment.add_filter("tojson", json::tojson);
    python::extend(&mut environment);
    environment
}

/// Marks an error as the template's own refusal.
const REFUSAL: &str = "raise_exception: ";

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(
        ErrorKind::InvalidOperation,
        format!("{REFUSAL}{message}"),
    ))
}

fn strftime_now(format: &str) -> Result<String, Error> {
    use chrono::format::{Item, StrftimeItems};
    let items: Vec<Item<'_>> = StrftimeItems::new(format).collect();
    if items.contains(&Item::Error) {
        let reason = format!("'{format}' is no time format");
        return Err(Error::new(ErrorKind::InvalidOperation, reason));
    }
    Ok(chrono::Utc::now()
        .format_with_items(items.iter())
        .to_string())
}

/// `{% generation %}` marks what a trainer learns from; for serving it means nothing.
fn without_generation_tags(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("{%") {
        let Some(end) = rest[start..].find("%}").map(|n| start + n) else {
            break;
        };
        let tag = &rest[start + 2..end];
        let word = tag.trim_matches(['-', '+']).trim();
        out.push_str(&rest[..start + 2]);
        match word {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        out.push_str("%}");
        rest = &rest[end + 2..];
    }
    out.push_str(rest);
    out
}

fn failed(error: &Error) -> RenderError {
    match error
        .detail()
        .and_then(|detail| detail.strip_prefix(REFUSAL))
    {
        Some(message) => RenderError::Refused(message.to_owned()),
        None => RenderError::Failed(describe(error)),
    }
}

/// Kind, detail and line of an error, on one line.
fn describe(error: &Error) -> String {
    let detail = error
        .detail()
        .map(|detail| format!(": {detail}"))
        .unwrap_or_default();
    let line = error
        .line()
        .map(|line| format!(" (line {line})"))
        .unwrap_or_default();
    format!("{}{detail}{line}", error.kind())
}

#[cfg(test)]
mod tests;
