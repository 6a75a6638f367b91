//! A file of objects.

use crate::{
    API_VERSION,
    deployment::SpecDecodeDeployment,
    endpoint::SpeculationEndpoint,
    problem::{Invalid, Lines, Problem},
    read::{covers, read},
    suggest::nearest,
    tree::{self, Node, Value},
    validate,
};

/// Kind that says what an accelerator is; only an operator reads it.
const ACCELERATOR_PROFILE: &str = "AcceleratorProfile";

/// An object and where its fields stand in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Document<T> {
    /// The object.
    pub object: T,
    /// Lines of its fields.
    pub lines: Lines,
}

/// The objects of a file, all of them valid.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifest {
    /// Deployments, in file order.
    pub deployments: Vec<Document<SpecDecodeDeployment>>,
    /// Endpoints, in file order.
    pub endpoints: Vec<Document<SpeculationEndpoint>>,
    /// Documents of other APIs, and kinds that matter to an operator only: left out, with a word.
    pub skipped: Vec<Problem>,
}

impl Manifest {
    /// Reads a file of one or more documents.
    ///
    /// # Errors
    /// Everything that is wrong with the file, with lines.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let documents = match tree::parse(text) {
            Ok(documents) => documents,
            Err(problem) => {
                return Err(Invalid {
                    problems: vec![problem],
                });
            }
        };
        let mut manifest = Self::default();
        let mut problems = Vec::new();
        for node in &documents {
            manifest.add(node, &mut problems);
        }
        manifest.names_are_unique(&mut problems);
        if documents.is_empty() {
            let message = format!("no documents, expected kinds {}", kinds().join(", "));
            problems.push(Problem {
                line: 0,
                field: String::new(),
                message,
            });
        }
        if problems.is_empty() {
            return Ok(manifest);
        }
        problems.sort_by_key(|problem| problem.line);
        Err(Invalid { problems })
    }

    fn add(&mut self, node: &Node, problems: &mut Vec<Problem>) {
        let lines = node.lines();
        if !matches!(node.value, Value::Map(_)) {
            let message = format!(
                "expected an object with apiVersion and kind, found {}",
                node.value
            );
            problems.push(lines.problem("", message));
            return;
        }
        let version = node.text("apiVersion").unwrap_or_default();
        let kind = node.text("kind").unwrap_or_default();
        let is_ours = version.starts_with("foretoken.io/") || version.is_empty();
        if !is_ours && !kinds().contains(&kind) {
            let message = format!("{version} {kind} is not read here");
            self.skipped.push(lines.problem("kind", message));
            return;
        }
        if version != API_VERSION {
            let found = if version.is_empty() {
                "nothing"
            } else {
                version
            };
            let message = format!("{found} is not allowed: must be {API_VERSION}");
            problems.push(lines.problem("apiVersion", message));
        }
        match kind {
            SpecDecodeDeployment::KIND => {
                let found = typed(node, lines, validate::deployment, problems);
                self.deployments.extend(found);
            }
            SpeculationEndpoint::KIND => {
                let found = typed(node, lines, validate::endpoint, problems);
                self.endpoints.extend(found);
            }
            ACCELERATOR_PROFILE => {
                let message = format!("{ACCELERATOR_PROFILE} is not read here");
                self.skipped.push(lines.problem("kind", message));
            }
            _ => problems.push(unknown_kind(kind, &lines)),
        }
    }

    fn names_are_unique(&self, problems: &mut Vec<Problem>) {
        let deployments = self
            .deployments
            .iter()
            .map(|document| (&document.object.metadata, &document.lines));
        let endpoints = self
            .endpoints
            .iter()
            .map(|document| (&document.object.metadata, &document.lines));
        let mut seen = Vec::new();
        let all = deployments.map(|entry| (SpecDecodeDeployment::KIND, entry));
        for (kind, (metadata, lines)) in
            all.chain(endpoints.map(|entry| (SpeculationEndpoint::KIND, entry)))
        {
            let key = (kind, metadata.namespace(), metadata.name.as_str());
            if seen.contains(&key) {
                let message = format!(
                    "{:?} is taken by another {kind} of this file",
                    metadata.name
                );
                problems.push(lines.problem("metadata.name", message));
            }
            seen.push(key);
        }
    }
}

fn kinds() -> [&'static str; 3] {
    [
        SpecDecodeDeployment::KIND,
        SpeculationEndpoint::KIND,
        ACCELERATOR_PROFILE,
    ]
}

fn unknown_kind(kind: &str, lines: &Lines) -> Problem {
    let allowed = kinds().join(", ");
    let message = match nearest(kind, &kinds()) {
        Some(near) => format!("{kind} is not allowed, did you mean {near}?"),
        None if kind.is_empty() => format!("is required: one of {allowed}"),
        None => format!("{kind} is not allowed: must be one of {allowed}"),
    };
    lines.problem("kind", message)
}

/// Reads and validates one document. Rules say nothing of fields that could not be read.
fn typed<T: serde::de::DeserializeOwned>(
    node: &Node,
    lines: Lines,
    rules: fn(&T, &Lines) -> Vec<Problem>,
    problems: &mut Vec<Problem>,
) -> Option<Document<T>> {
    let (object, unreadable) = read::<T>(node, &lines);
    let broken = |problem: &Problem| {
        unreadable.iter().any(|known| {
            covers(&known.field, &problem.field) || covers(&problem.field, &known.field)
        })
    };
    if let Some(object) = &object {
        problems.extend(
            rules(object, &lines)
                .into_iter()
                .filter(|problem| !broken(problem)),
        );
    }
    let is_readable = unreadable.is_empty();
    problems.extend(unreadable);
    object
        .filter(|_| is_readable)
        .map(|object| Document { object, lines })
}

#[cfg(test)]
mod tests;
