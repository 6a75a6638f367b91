//! A file of objects.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;

use crate::{
    API_VERSION,
    definition::Kind,
    deployment::SpecDecodeDeployment,
    endpoint::SpeculationEndpoint,
    metadata,
    object::{self, Accelerator},
    problem::{Invalid, Lines, Problem},
    profile::AcceleratorProfile,
    read::read,
    rules,
    suggest::nearest,
    tree::{self, Node, Value},
};

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
    /// What accelerators are, in file order.
    pub profiles: Vec<Document<AcceleratorProfile>>,
    /// Namespaces of this file with their labels, by which an endpoint may select who uses it.
    pub namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Documents of other APIs: left out, with a word.
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

    /// The profile that is asked for by name, if it is in this file.
    pub fn profile(&self, asked: Option<&Accelerator>) -> Option<&AcceleratorProfile> {
        let name = asked?.profile.as_deref()?;
        let mut profiles = self.profiles.iter().map(|document| &document.object);
        profiles.find(|profile| object::name(&profile.metadata) == name)
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
        let is_whole = !version.is_empty() && !kind.is_empty();
        let is_ours = version.starts_with("foretoken.io/") || !is_whole;
        if (version, kind) == ("v1", "Namespace")
            && let Some(name) = node.at("metadata.name").and_then(Node::as_text)
        {
            let labels = node.at("metadata.labels").map(Node::texts);
            let labels = labels.into_iter().flatten();
            let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned()));
            self.namespaces.insert(name.to_owned(), labels.collect());
            return;
        }
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
        match Kind::called(kind) {
            Some(kind @ Kind::SpecDecodeDeployment) => {
                self.deployments.extend(typed(kind, node, lines, problems));
            }
            Some(kind @ Kind::SpeculationEndpoint) => {
                self.endpoints.extend(typed(kind, node, lines, problems));
            }
            Some(kind @ Kind::AcceleratorProfile) => {
                self.profiles.extend(typed(kind, node, lines, problems));
            }
            None => problems.push(unknown_kind(kind, &lines)),
        }
    }

    /// Kind, metadata and lines of all objects.
    fn objects(&self) -> impl Iterator<Item = (Kind, &ObjectMeta, &Lines)> {
        let deployments = self.deployments.iter().map(|document| {
            let Document { object, lines } = document;
            (Kind::SpecDecodeDeployment, &object.metadata, lines)
        });
        let endpoints = self.endpoints.iter().map(|document| {
            let Document { object, lines } = document;
            (Kind::SpeculationEndpoint, &object.metadata, lines)
        });
        let profiles = self.profiles.iter().map(|document| {
            let Document { object, lines } = document;
            (Kind::AcceleratorProfile, &object.metadata, lines)
        });
        deployments.chain(endpoints).chain(profiles)
    }

    fn names_are_unique(&self, problems: &mut Vec<Problem>) {
        let mut seen = Vec::new();
        for (kind, metadata, lines) in self.objects() {
            let namespace = match kind {
                Kind::AcceleratorProfile => "",
                Kind::SpecDecodeDeployment | Kind::SpeculationEndpoint => {
                    object::namespace(metadata)
                }
            };
            let name = object::name(metadata);
            let key = (kind, namespace, name);
            if seen.contains(&key) {
                let kind = kind.name();
                let message = format!("{name:?} is taken by another {kind} of this file");
                problems.push(lines.problem("metadata.name", message));
            }
            seen.push(key);
        }
    }
}

fn kinds() -> [&'static str; 3] {
    Kind::ALL.map(Kind::name)
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

/// Reads one document and holds it to the rules of its kind.
fn typed<T: DeserializeOwned>(
    kind: Kind,
    node: &Node,
    lines: Lines,
    problems: &mut Vec<Problem>,
) -> Option<Document<T>> {
    let (value, mut wrong) = read(node, "", metadata::document(kind), &lines);
    wrong.extend(metadata::keys(node, &lines));
    let mut value = value.unwrap_or(Json::Null);
    metadata::prune(&mut value);
    let broken = rules::broken(kind, &value, node, &lines, &wrong);
    let is_valid = wrong.is_empty() && broken.is_empty();
    problems.extend(wrong);
    problems.extend(broken);
    if !is_valid {
        return None;
    }
    match serde_json::from_value(value) {
        Ok(object) => Some(Document { object, lines }),
        Err(error) => {
            problems.push(lines.problem("", format!("cannot be read: {error}")));
            None
        }
    }
}

#[cfg(test)]
mod tests;
