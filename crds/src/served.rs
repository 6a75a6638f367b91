//! What is valid and not served yet by this version, on one machine.

use crate::{
    deployment::SpecDecodeDeployment,
    endpoint::EndpointSpec,
    manifest::{Document, Manifest},
    object::ModelSource,
    problem::{Lines, Problem},
};

/// Everything in `manifest` that this version does not serve, with a message that says so.
pub fn gaps(manifest: &Manifest) -> Vec<Problem> {
    let mut problems = Vec::new();
    for document in &manifest.deployments {
        deployment(document, &mut problems);
    }
    for document in &manifest.endpoints {
        endpoint(
            "spec",
            &document.object.spec,
            &document.lines,
            &mut problems,
        );
    }
    problems.sort_by_key(|problem| problem.line);
    problems
}

fn deployment(document: &Document<SpecDecodeDeployment>, problems: &mut Vec<Problem>) {
    let Document { object, lines } = document;
    let spec = &object.spec;
    let mut say = |field: &str, message: &str| problems.push(lines.problem(field, message));
    if spec.target.scaling.is_some() {
        say(
            "spec.target.scaling",
            "needs a cluster: give replicas to run on one machine",
        );
    }
    let parallelism = spec.target.parallelism.unwrap_or_default();
    if parallelism.tensor > 1 {
        say(
            "spec.target.parallelism.tensor",
            "only 1 is served by this version",
        );
    }
    if parallelism.pipeline > 1 {
        say(
            "spec.target.parallelism.pipeline",
            "only 1 is served by this version",
        );
    }
    if spec.target.accelerator.is_some() {
        say(
            "spec.target.accelerator",
            "is not served by this version: it runs on CPU cores",
        );
    }
    if let Some(speculation) = &spec.speculation
        && speculation.policy.policy().is_none()
    {
        let name = speculation.policy.kind.name();
        say(
            "spec.speculation.policy.type",
            &format!(
                "{name} is not served by this version, which has Autoregressive, Speculative and SSD"
            ),
        );
    }
    model("spec.model", &spec.model, lines, problems);
    let sources = spec
        .speculation
        .iter()
        .flat_map(|speculation| &speculation.endpoints);
    for (index, source) in sources.enumerate() {
        if let Some(template) = &source.template {
            let path = format!("spec.speculation.endpoints[{index}].template");
            endpoint(&path, template, lines, problems);
        }
    }
}

fn endpoint(path: &str, spec: &EndpointSpec, lines: &Lines, problems: &mut Vec<Problem>) {
    let mut say = |field: &str, message: &str| {
        problems.push(lines.problem(format!("{path}.{field}"), message));
    };
    if spec.scaling.is_some() {
        say(
            "scaling",
            "needs a cluster: give replicas to run on one machine",
        );
    }
    if spec
        .parallelism
        .is_some_and(|parallelism| parallelism.tracks > 1)
    {
        say("parallelism.tracks", "only 1 is served by this version");
    }
    if spec.accelerator.is_some() {
        say(
            "accelerator",
            "is not served by this version: it runs on CPU cores",
        );
    }
    model(&format!("{path}.model"), &spec.model, lines, problems);
}

fn model(path: &str, model: &ModelSource, lines: &Lines, problems: &mut Vec<Problem>) {
    let uri = &model.uri;
    if uri.starts_with("pvc://") || uri.starts_with("oci://") {
        problems.push(lines.problem(
            format!("{path}.uri"),
            format!("{uri:?} needs a cluster: on one machine use hf:// or file:///"),
        ));
    }
}
