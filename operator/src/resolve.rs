//! Which endpoints a deployment means, and which of them it may use. Pure: it is told who exists.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use foretoken_crds::{
    SpecDecodeDeployment, SpeculationEndpoint,
    deployment::EndpointSource,
    endpoint::NamespacesFrom,
    object::{name, namespace},
    policy::PolicyType,
};
use foretoken_protocol::link::Grants;

/// An endpoint that a deployment may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Share of sessions among the sources.
    pub weight: u32,
}

/// Why a source of drafts is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Nothing has this name.
    #[error(
        "{field}: there is no SpeculationEndpoint {namespace}/{name}: create it, or correct the reference"
    )]
    Missing {
        /// The source.
        field: String,
        /// Where it was looked for.
        namespace: String,
        /// The name.
        name: String,
    },
    /// Nothing has these labels.
    #[error(
        "{field}: no SpeculationEndpoint of namespace {namespace} has these labels: label one, or \
         correct the selector"
    )]
    NoneSelected {
        /// The source.
        field: String,
        /// Where they were looked for.
        namespace: String,
    },
    /// It is there, and not for this deployment.
    #[error(
        "{field}: SpeculationEndpoint {namespace}/{name} does not allow namespace {user}: ask its \
         owner to set spec.allowedNamespaces to {{from: All}}, or to a selector that selects {user}"
    )]
    NotGranted {
        /// The source.
        field: String,
        /// Namespace of the endpoint.
        namespace: String,
        /// Name of the endpoint.
        name: String,
        /// Namespace of the deployment.
        user: String,
    },
    /// It is about to go.
    #[error(
        "{field}: SpeculationEndpoint {namespace}/{name} is being deleted: name another, or none"
    )]
    Leaving {
        /// The source.
        field: String,
        /// Namespace of the endpoint.
        namespace: String,
        /// Name of the endpoint.
        name: String,
    },
}

impl SourceError {
    /// The same in one word.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Missing { .. } | Self::NoneSelected { .. } => "EndpointNotFound",
            Self::NotGranted { .. } => "NotGranted",
            Self::Leaving { .. } => "EndpointDeleting",
        }
    }
}

/// What the sources of a deployment mean.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Endpoints that it may use, each once.
    pub found: Vec<Found>,
    /// Sources that are not used.
    pub problems: Vec<SourceError>,
}

/// Who exists.
pub struct Known<'a> {
    /// All endpoints of the cluster.
    pub endpoints: &'a [Arc<SpeculationEndpoint>],
    /// Labels of the deployment's namespace.
    pub labels: &'a BTreeMap<String, String>,
}

/// Namespaces whose deployments may use `endpoint`; `all` are those that there are, with their labels.
pub fn granted<'a>(
    endpoint: &SpeculationEndpoint,
    all: impl Iterator<Item = (String, &'a BTreeMap<String, String>)>,
) -> Grants {
    let allowed = endpoint.spec.allowed_namespaces.as_ref();
    if allowed.is_some_and(|allowed| allowed.from == NamespacesFrom::All) {
        return Grants::All;
    }
    let mut only: BTreeSet<String> = all
        .filter(|(user, labels)| endpoint.grants(user, labels))
        .map(|(user, _)| user)
        .collect();
    only.insert(namespace(&endpoint.metadata).to_owned());
    Grants::Only(only)
}

/// Whether `deployment` drafts at all.
pub fn drafts(deployment: &SpecDecodeDeployment) -> bool {
    let speculation = deployment.spec.speculation.as_ref();
    speculation.is_some_and(|speculation| speculation.policy.kind != PolicyType::Autoregressive)
}

/// Whether `source`, of a deployment in the namespace `user`, means `endpoint` by name or labels.
fn means(source: &EndpointSource, user: &str, endpoint: &SpeculationEndpoint) -> bool {
    let metadata = &endpoint.metadata;
    let place = source.namespace.as_deref().unwrap_or(user);
    namespace(metadata) == place
        && match (&source.name, &source.selector, &metadata.labels) {
            (Some(wanted), _, _) => name(metadata) == wanted,
            (None, Some(selector), Some(labels)) => selector.matches(labels),
            (None, _, _) => false,
        }
}

/// Whether `deployment` means `endpoint`, be it allowed or not.
pub fn names(deployment: &SpecDecodeDeployment, endpoint: &SpeculationEndpoint) -> bool {
    let Some(speculation) = deployment
        .spec
        .speculation
        .as_ref()
        .filter(|_| drafts(deployment))
    else {
        return false;
    };
    let user = namespace(&deployment.metadata);
    let is_own = |(own, _): &(String, _)| {
        namespace(&endpoint.metadata) == user && name(&endpoint.metadata) == own
    };
    let mut sources = speculation.endpoints.iter();
    sources.any(|source| means(source, user, endpoint)) || deployment.templates().iter().any(is_own)
}

/// What the sources of `deployment` mean.
pub fn resolve(deployment: &SpecDecodeDeployment, known: &Known<'_>) -> Resolved {
    let mut resolved = Resolved::default();
    let Some(speculation) = &deployment.spec.speculation else {
        return resolved;
    };
    if !drafts(deployment) {
        return resolved;
    }
    let mut inline = deployment.templates().into_iter();
    for (index, source) in speculation.endpoints.iter().enumerate() {
        let field = format!("spec.speculation.endpoints[{index}]");
        if source.template.is_some() {
            let own = namespace(&deployment.metadata);
            if let Some((name, _)) = inline.next() {
                resolved.add(own, &name, source.weight);
            }
            continue;
        }
        resolved.take(deployment, source, field, known);
    }
    resolved
}

impl Resolved {
    fn add(&mut self, namespace: &str, name: &str, weight: u32) {
        let is_same = |found: &Found| found.namespace == namespace && found.name == name;
        if !self.found.iter().any(is_same) {
            self.found.push(Found {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                weight,
            });
        }
    }

    /// Takes what a reference or a selector means.
    fn take(
        &mut self,
        deployment: &SpecDecodeDeployment,
        source: &EndpointSource,
        field: String,
        known: &Known<'_>,
    ) {
        let user = namespace(&deployment.metadata);
        let place = source.namespace.as_deref().unwrap_or(user);
        let is_meant = |endpoint: &&Arc<SpeculationEndpoint>| means(source, user, endpoint);
        let mut meant: Vec<_> = known.endpoints.iter().filter(is_meant).collect();
        meant.sort_by_key(|endpoint| name(&endpoint.metadata).to_owned());
        let namespace = place.to_owned();
        if meant.is_empty() {
            self.problems.push(match source.name.clone() {
                Some(name) => SourceError::Missing {
                    field,
                    namespace,
                    name,
                },
                None => SourceError::NoneSelected { field, namespace },
            });
            return;
        }
        for endpoint in meant {
            let field = field.clone();
            let namespace = namespace.clone();
            let found = name(&endpoint.metadata).to_owned();
            if !endpoint.grants(user, known.labels) {
                self.problems.push(SourceError::NotGranted {
                    field,
                    namespace,
                    name: found,
                    user: user.to_owned(),
                });
            } else if endpoint.metadata.deletion_timestamp.is_some() {
                self.problems.push(SourceError::Leaving {
                    field,
                    namespace,
                    name: found,
                });
            } else {
                self.add(place, &found, source.weight);
            }
        }
    }
}

#[cfg(test)]
mod tests;
