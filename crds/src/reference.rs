//! Which endpoints of a file a deployment's references mean.

use std::collections::BTreeMap;

use crate::{
    deployment::{EndpointSource, SpecDecodeDeployment},
    endpoint::{EndpointSpec, SpeculationEndpoint},
    manifest::{Document, Manifest},
    object,
    policy::PolicyType,
    problem::Problem,
};

/// Why a reference means no endpoint of the file that the deployment may use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReferenceError {
    /// Nothing has this name.
    #[error("no SpeculationEndpoint {namespace}/{name} in this file")]
    Name {
        /// Where it was looked for.
        namespace: String,
        /// The name.
        name: String,
    },
    /// Nothing has these labels.
    #[error("no SpeculationEndpoint of namespace {namespace} in this file has these labels")]
    Labels {
        /// Where they were looked for.
        namespace: String,
    },
    /// It is there, and not for this deployment.
    #[error(
        "SpeculationEndpoint {namespace}/{name} does not allow namespace {user}: set its \
         spec.allowedNamespaces to {{from: All}}, or to a selector that selects {user}"
    )]
    Closed {
        /// Namespace of the endpoint.
        namespace: String,
        /// Name of the endpoint.
        name: String,
        /// Namespace of the deployment.
        user: String,
    },
    /// What a template is called is the name of another object.
    #[error(
        "the template makes SpeculationEndpoint {namespace}/{name}, which this file has already: \
         give one of the two another name"
    )]
    Taken {
        /// Namespace of both.
        namespace: String,
        /// Name of both.
        name: String,
    },
}

/// A pool of drafts that a deployment means.
#[derive(Clone, Debug, PartialEq)]
pub struct Pool<'a> {
    /// Namespace of the endpoint.
    pub namespace: String,
    /// Name of the endpoint; of one that a template makes, what it will be called.
    pub name: String,
    /// What is said of it.
    pub spec: &'a EndpointSpec,
}

impl<'a> From<&'a SpeculationEndpoint> for Pool<'a> {
    fn from(endpoint: &'a SpeculationEndpoint) -> Self {
        Self {
            namespace: object::namespace(&endpoint.metadata).to_owned(),
            name: object::name(&endpoint.metadata).to_owned(),
            spec: &endpoint.spec,
        }
    }
}

/// What each source of `deployment` means, of the endpoints of `manifest` and of those that it brings
/// with it.
pub fn pools<'a>(
    manifest: &'a Manifest,
    deployment: &'a SpecDecodeDeployment,
) -> Vec<Result<Vec<Pool<'a>>, ReferenceError>> {
    let Some(speculation) = &deployment.spec.speculation else {
        return Vec::new();
    };
    let mut templates = deployment.templates().into_iter();
    let meant = |source: &EndpointSource| {
        if source.template.is_none() {
            return named(manifest, deployment, source);
        }
        let made = templates.next().map(|made| own(manifest, deployment, made));
        made.into_iter().collect()
    };
    speculation.endpoints.iter().map(meant).collect()
}

/// The pool that a template makes.
fn own<'a>(
    manifest: &Manifest,
    deployment: &SpecDecodeDeployment,
    (name, spec): (String, &'a EndpointSpec),
) -> Result<Pool<'a>, ReferenceError> {
    let namespace = object::namespace(&deployment.metadata).to_owned();
    let mut known = manifest
        .endpoints
        .iter()
        .map(|known| &known.object.metadata);
    if known.any(|known| object::namespace(known) == namespace && object::name(known) == name) {
        return Err(ReferenceError::Taken { namespace, name });
    }
    Ok(Pool {
        namespace,
        name,
        spec,
    })
}

/// The endpoints of `manifest` that `source` means by name or labels.
fn named<'a>(
    manifest: &'a Manifest,
    deployment: &SpecDecodeDeployment,
    source: &EndpointSource,
) -> Result<Vec<Pool<'a>>, ReferenceError> {
    let EndpointSource {
        name,
        namespace,
        weight: _,
        selector,
        template: _,
    } = source;
    let user = object::namespace(&deployment.metadata);
    let namespace = namespace.as_deref().unwrap_or(user);
    let meant = |endpoint: &&SpeculationEndpoint| {
        let metadata = &endpoint.metadata;
        object::namespace(metadata) == namespace
            && match (name, selector) {
                (Some(name), _) => object::name(metadata) == name,
                (None, Some(selector)) => {
                    selector.matches(metadata.labels.as_ref().unwrap_or(&BTreeMap::new()))
                }
                (None, None) => false,
            }
    };
    let endpoints = manifest.endpoints.iter().map(|document| &document.object);
    let found: Vec<_> = endpoints.filter(meant).collect();
    let namespace = namespace.to_owned();
    if found.is_empty() {
        return Err(match name.clone() {
            Some(name) => ReferenceError::Name { namespace, name },
            None => ReferenceError::Labels { namespace },
        });
    }
    let grants = |endpoint: &SpeculationEndpoint| match manifest.namespaces.get(user) {
        Some(labels) => endpoint.grants(user, labels),
        // Only a cluster knows the labels of a namespace that is not in the file.
        None => endpoint.grants_by_labels() || endpoint.grants(user, &BTreeMap::new()),
    };
    match found.iter().find(|endpoint| !grants(endpoint)) {
        None => Ok(found.into_iter().map(Pool::from).collect()),
        Some(closed) => Err(ReferenceError::Closed {
            namespace,
            name: object::name(&closed.metadata).to_owned(),
            user: user.to_owned(),
        }),
    }
}

/// The references of `manifest` that mean no usable endpoint of the same file. In a cluster the
/// endpoint may be elsewhere; one machine has nothing but the file.
pub fn unresolved(manifest: &Manifest) -> Vec<Problem> {
    let mut problems = Vec::new();
    for Document { object, lines } in &manifest.deployments {
        let speculation = object.spec.speculation.as_ref();
        if speculation.is_none_or(|asked| asked.policy.kind == PolicyType::Autoregressive) {
            continue;
        }
        for (index, meant) in pools(manifest, object).into_iter().enumerate() {
            if let Err(error) = meant {
                let field = format!("spec.speculation.endpoints[{index}]");
                problems.push(lines.problem(field, error.to_string()));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(endpoints: &str, kind: &str) -> String {
        format!(
            "apiVersion: foretoken.io/v1alpha1
kind: SpecDecodeDeployment
metadata: {{name: story, namespace: chat}}
spec:
  model: {{uri: \"hf://a/b\"}}
  speculation:
    policy: {{type: {kind}}}
    endpoints:
{endpoints}
---
apiVersion: foretoken.io/v1alpha1
kind: SpeculationEndpoint
metadata: {{name: tiny, namespace: drafts, labels: {{size: tiny}}}}
spec: {{model: {{uri: \"hf://a/c\"}}}}
"
        )
    }

    fn said(endpoints: &str, kind: &str) -> Vec<String> {
        let manifest = Manifest::parse(&text(endpoints, kind)).unwrap();
        let problems = unresolved(&manifest);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_reference_that_means_nothing_is_said_with_its_line() {
        let said = said(
            "    - {name: tiny}\n    - {selector: {matchLabels: {size: huge}}}\n    - \
             {name: tiny, namespace: drafts}\n    - {template: {model: {uri: \"hf://a/d\"}}}",
            "Speculative",
        );
        let place = "spec.speculation.endpoints";
        assert_eq!(
            said,
            [
                format!("line 9: {place}[0]: no SpeculationEndpoint chat/tiny in this file"),
                format!(
                    "line 10: {place}[1]: no SpeculationEndpoint of namespace chat in this file \
                     has these labels"
                ),
                format!(
                    "line 11: {place}[2]: SpeculationEndpoint drafts/tiny does not allow \
                     namespace chat: set its spec.allowedNamespaces to {{from: All}}, or to a \
                     selector that selects chat"
                ),
            ]
        );
    }

    #[test]
    fn a_selector_of_namespaces_is_held_to_those_of_the_file() {
        let open = "drafts, labels: {size: tiny}}\nspec: {model: {uri: \"hf://a/c\"}, \
                    allowedNamespaces: {from: Selector, selector: {matchLabels: {drafts: shared}}}}\n";
        let text = text("    - {name: tiny, namespace: drafts}", "SSD").replace(
            "drafts, labels: {size: tiny}}\nspec: {model: {uri: \"hf://a/c\"}}\n",
            open,
        );
        assert!(text.ends_with(open), "{text}");
        let problems = |namespace: &str| {
            let text = format!("{text}---\n{namespace}");
            let manifest = Manifest::parse(&text).unwrap();
            assert_eq!(manifest.skipped, [], "{text}");
            unresolved(&manifest).len()
        };
        let namespace = |labels: &str| {
            let name = "apiVersion: v1\nkind: Namespace\nmetadata: {name: chat";
            problems(&format!("{name}{labels}}}\n"))
        };
        assert_eq!(namespace(", labels: {drafts: shared}"), 0);
        assert_eq!(namespace(", labels: {drafts: own}"), 1);
        assert_eq!(namespace(""), 1);
        assert_eq!(problems(""), 0, "a cluster knows its labels");
    }

    #[test]
    fn what_a_template_makes_has_a_name_of_its_own() {
        let template = "    - {template: {model: {uri: \"hf://a/d\"}}}\n";
        let other = "\n---\napiVersion: foretoken.io/v1alpha1\nkind: SpeculationEndpoint\n\
                     metadata: {name: story-2, namespace: chat}\nspec: {model: {uri: \"hf://a/e\"}}";
        let text = text(&template.repeat(3), "SSD") + other;
        let manifest = Manifest::parse(&text).unwrap();
        let meant = pools(&manifest, &manifest.deployments[0].object);
        let names = meant.iter().map(|pools| {
            let pools = pools.as_ref().map_err(ToString::to_string)?;
            Ok(pools.iter().map(|pool| pool.name.as_str()).collect())
        });
        let taken = "the template makes SpeculationEndpoint chat/story-2, which this file has \
                     already: give one of the two another name";
        assert_eq!(
            names.collect::<Vec<Result<Vec<_>, String>>>(),
            [
                Ok(vec!["story"]),
                Err(taken.to_owned()),
                Ok(vec!["story-3"])
            ]
        );
    }

    #[test]
    fn a_deployment_that_does_not_speculate_needs_no_endpoint() {
        assert_eq!(said("    - {name: tiny}", "Autoregressive"), [""; 0]);
    }
}
