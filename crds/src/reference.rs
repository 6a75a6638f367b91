//! Which endpoints of a file a deployment's references mean.

use std::collections::BTreeMap;

use crate::{
    deployment::{EndpointSource, SpecDecodeDeployment},
    endpoint::SpeculationEndpoint,
    manifest::Manifest,
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
         spec.allowedNamespaces to {{from: All}}"
    )]
    Closed {
        /// Namespace of the endpoint.
        namespace: String,
        /// Name of the endpoint.
        name: String,
        /// Namespace of the deployment.
        user: String,
    },
}

/// The endpoints of `manifest` that `source` means by name or labels; none if it is a template.
pub fn resolve<'a>(
    manifest: &'a Manifest,
    deployment: &SpecDecodeDeployment,
    source: &EndpointSource,
) -> Result<Vec<&'a SpeculationEndpoint>, ReferenceError> {
    let EndpointSource {
        name,
        namespace,
        weight: _,
        selector,
        template,
    } = source;
    if template.is_some() {
        return Ok(Vec::new());
    }
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
    match found.iter().find(|endpoint| !endpoint.grants(user)) {
        None => Ok(found),
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
    for document in &manifest.deployments {
        let Some(speculation) = &document.object.spec.speculation else {
            continue;
        };
        if speculation.policy.kind == PolicyType::Autoregressive {
            continue;
        }
        for (index, source) in speculation.endpoints.iter().enumerate() {
            if let Err(error) = resolve(manifest, &document.object, source) {
                let field = format!("spec.speculation.endpoints[{index}]");
                problems.push(document.lines.problem(field, error.to_string()));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(endpoints: &str, kind: &str) -> Vec<String> {
        let text = format!(
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
        );
        let manifest = Manifest::parse(&text).unwrap();
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
                     namespace chat: set its spec.allowedNamespaces to {{from: All}}"
                ),
            ]
        );
    }

    #[test]
    fn a_deployment_that_does_not_speculate_needs_no_endpoint() {
        assert_eq!(said("    - {name: tiny}", "Autoregressive"), [""; 0]);
    }
}
