//! The reference of the API, as a page, made from the types like the definitions.
//!
//! An object that several kinds have is described once, at the place nearest to a root, and linked
//! from everywhere else.

use std::fmt::{self, Write as _};

use serde_json::{Value, json};

use crate::{API_VERSION, Kind, bounds::WORDS};

/// The page, in Markdown.
pub fn reference() -> String {
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write(&mut page);
    page
}

fn write(page: &mut String) -> fmt::Result {
    writeln!(page, "# API reference\n")?;
    writeln!(
        page,
        "<!-- Made by `foretoken crd --reference` from the types: edits are lost. -->\n"
    )?;
    writeln!(
        page,
        "Kinds of `{API_VERSION}`, as a cluster takes them (`foretoken crd | kubectl apply \
         --server-side -f -`) and as `foretoken up` and `foretoken check` read them. A field in \
         bold is required. A field that is null is absent."
    )?;
    writeln!(page, "\n| texts called | have |\n| --- | --- |")?;
    for (_, name, words) in WORDS {
        writeln!(page, "| {name} | {words} |")?;
    }
    let sections: Vec<Section> = Kind::ALL.into_iter().flat_map(sections).collect();
    for kind in Kind::ALL {
        head(page, kind)?;
        let own = |section: &&Section| section.kind == kind && home(&sections, section) == *section;
        for section in sections.iter().filter(own) {
            table(page, section, &sections)?;
        }
    }
    Ok(())
}

fn head(page: &mut String, kind: Kind) -> fmt::Result {
    let definition = kind.definition();
    let names = &definition.spec.names;
    let root = json!(kind.schema());
    let short = names
        .short_names
        .iter()
        .flatten()
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    let scope = match definition.spec.scope.as_str() {
        "Namespaced" => "in a namespace",
        _ => "for the whole cluster",
    };
    writeln!(
        page,
        "\n## {}\n\n{}\n",
        kind.name(),
        text(&root["description"])
    )?;
    let name = &root["properties"]["metadata"]["properties"]["name"];
    writeln!(
        page,
        "For `kubectl`: `{}`, `{short}`; {scope}. `metadata.name`: {}.\n",
        names.plural,
        allowed(name)
    )?;
    writeln!(page, "| column | from |\n| --- | --- |")?;
    let versions = &definition.spec.versions;
    for column in versions
        .iter()
        .filter_map(|version| version.additional_printer_columns.as_ref())
        .flatten()
    {
        let said = column
            .description
            .as_deref()
            .map_or_else(String::new, |said| format!(": {said}"));
        writeln!(page, "| {} | `{}`{said} |", column.name, column.json_path)?;
    }
    Ok(())
}

/// An object within a kind.
#[derive(Clone, Debug, PartialEq)]
struct Section {
    kind: Kind,
    /// Where it stands, such as `spec.speculation.endpoints[]`.
    path: String,
    schema: Value,
}

impl Section {
    fn depth(&self) -> usize {
        self.path.matches(['.', '[']).count()
    }

    fn title(&self) -> String {
        format!("{}: {}", self.kind.name(), self.path)
    }

    /// The link that Markdown makes of the title.
    fn anchor(&self) -> String {
        let kept = |c: &char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '-');
        let title: String = self.title().chars().filter(kept).collect();
        title.to_lowercase().replace(' ', "-")
    }
}

/// All objects of `kind` that have fields, from the root on.
fn sections(kind: Kind) -> Vec<Section> {
    let root = json!(kind.schema());
    let mut found = Vec::new();
    for part in ["spec", "status"] {
        collect(kind, part, &root["properties"][part], &mut found);
    }
    found
}

fn collect(kind: Kind, path: &str, schema: &Value, found: &mut Vec<Section>) {
    if schema["items"].is_object() {
        return collect(kind, &format!("{path}[]"), &schema["items"], found);
    }
    let Some(properties) = schema["properties"].as_object() else {
        return;
    };
    found.push(Section {
        kind,
        path: path.to_owned(),
        schema: schema.clone(),
    });
    for (name, property) in properties {
        collect(kind, &format!("{path}.{name}"), property, found);
    }
}

/// The section that describes what `section` is: of the same ones the nearest to a root.
fn home<'a>(sections: &'a [Section], section: &Section) -> &'a Section {
    let same = |other: &&Section| other.schema["properties"] == section.schema["properties"];
    let nearest = sections
        .iter()
        .filter(same)
        .min_by_key(|other| other.depth());
    nearest.unwrap_or(&sections[0])
}

fn table(page: &mut String, section: &Section, sections: &[Section]) -> fmt::Result {
    writeln!(page, "\n### {}\n", section.title())?;
    writeln!(
        page,
        "| field | is | default | |\n| --- | --- | --- | --- |"
    )?;
    let required: Vec<&str> = section.schema["required"]
        .as_array()
        .map(|all| all.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    for (name, schema) in section.schema["properties"]
        .as_object()
        .into_iter()
        .flatten()
    {
        let shown = if required.contains(&name.as_str()) {
            format!("**`{name}`**")
        } else {
            format!("`{name}`")
        };
        let default = match &schema["default"] {
            Value::Null => String::new(),
            value => format!("`{value}`").replace('"', ""),
        };
        let path = format!("{}.{name}", section.path);
        let what = what(schema, &path, section.kind, sections);
        // A list of meanings, as lines of a cell.
        let said = text(&schema["description"])
            .replace("\n\n- ", "<br>")
            .replace("\n- ", "<br>")
            .replace("\n\n", " ");
        writeln!(page, "| {shown} | {what} | {default} | {said} |")?;
    }
    let rules = rules(&section.schema);
    if !rules.is_empty() {
        writeln!(page, "\n{}", rules.join("\n"))?;
    }
    Ok(())
}

/// The rules of an object, of its texts and of those in its lists, as entries of a list.
fn rules(schema: &Value) -> Vec<String> {
    let of = |schema: &Value| schema["x-kubernetes-validations"].as_array().cloned();
    let mut said = Vec::new();
    for rule in of(schema).into_iter().flatten() {
        let field = text(&rule["fieldPath"]).trim_start_matches('.');
        let message = text(&rule["message"]);
        said.push(match field {
            "" => format!("- It {message}."),
            _ => format!("- `{field}` {message}."),
        });
    }
    let properties = schema["properties"].as_object();
    for (name, property) in properties.into_iter().flatten() {
        let (texts, whose) = if property["items"].is_object() {
            (&property["items"], "Each of ")
        } else {
            (property, "")
        };
        for rule in of(texts)
            .into_iter()
            .flatten()
            .filter(|_| texts["type"] == "string")
        {
            said.push(format!("- {whose}`{name}` {}.", text(&rule["message"])));
        }
    }
    said
}

/// What a field may be, with a link where it has fields of its own.
fn what(schema: &Value, path: &str, kind: Kind, sections: &[Section]) -> String {
    if schema["items"].is_object() {
        let each = what(&schema["items"], &format!("{path}[]"), kind, sections);
        return format!("list of {each}, {}", range(schema, "minItems", "maxItems"));
    }
    let own = |section: &&Section| section.kind == kind && section.path == path;
    if let Some(section) = sections.iter().find(own) {
        let home = home(sections, section);
        let name = home.path.rsplit('.').next().unwrap_or_default();
        return format!("[{}](#{})", name.trim_end_matches("[]"), home.anchor());
    }
    allowed(schema)
}

/// What a value may be.
fn allowed(schema: &Value) -> String {
    if schema["additionalProperties"].is_object() {
        let each = allowed(&schema["additionalProperties"]);
        return format!(
            "map to {each}, {}",
            range(schema, "minProperties", "maxProperties")
        );
    }
    let kind = text(&schema["type"]);
    let names = schema["enum"].as_array();
    match (kind, names) {
        (_, Some(names)) => {
            let names = names.iter().filter_map(Value::as_str);
            names
                .map(|name| format!("`{name}`"))
                .collect::<Vec<_>>()
                .join(", ")
        }
        ("string", _) => {
            let pattern = text(&schema["pattern"]);
            let named = WORDS.iter().find(|(known, ..)| *known == pattern);
            let what = match named {
                Some((_, name, _)) => name,
                None if schema["format"] == "date-time" => "time",
                None => "text",
            };
            let length = range(schema, "minLength", "maxLength");
            if length.is_empty() {
                what.to_owned()
            } else {
                format!("{what}, {length} characters")
            }
        }
        ("integer" | "number", _) => {
            let what = if kind == "integer" {
                "whole number"
            } else {
                "number"
            };
            format!("{what}, {}", range(schema, "minimum", "maximum"))
        }
        ("boolean", _) => "`true`, `false`".to_owned(),
        _ => "mapping".to_owned(),
    }
}

fn range(schema: &Value, least: &str, most: &str) -> String {
    // Bounds are kept as fractions, and are whole.
    let number = |bound: &str| schema[bound].as_f64().map(|number| number as i64);
    match (number(least), number(most)) {
        (Some(least), Some(most)) => format!("{least} to {most}"),
        (None, Some(most)) => format!("at most {most}"),
        (Some(least), None) => format!("at least {least}"),
        (None, None) => String::new(),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn the_committed_page_is_that_of_the_types() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/api.md");
        let committed = fs::read_to_string(path).unwrap_or_default();
        assert!(
            committed == reference(),
            "docs/api.md is not what the types say: run `make api`"
        );
    }

    #[test]
    fn every_link_leads_to_a_heading_and_every_heading_is_there_once() {
        let page = reference();
        let sections: Vec<Section> = Kind::ALL.into_iter().flat_map(sections).collect();
        for link in page
            .split("](#")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            let meant = sections.iter().filter(|section| section.anchor() == link);
            let titles: Vec<String> = meant.map(Section::title).collect();
            let [title] = titles.as_slice() else {
                panic!("#{link} leads to {titles:?}");
            };
            assert_eq!(
                page.matches(&format!("### {title}\n")).count(),
                1,
                "{title}"
            );
        }
    }

    #[test]
    fn every_field_is_described() {
        for line in reference()
            .lines()
            .filter(|line| line.starts_with("| `") || line.starts_with("| **"))
        {
            assert!(!line.ends_with("|  |"), "nothing is said of {line}");
        }
    }
}
