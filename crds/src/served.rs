//! What is valid and not served yet by this version, on one machine.

use crate::{
    deployment::SpecDecodeDeployment,
    endpoint::EndpointSpec,
    manifest::{Document, Manifest},
    object::{Accelerator, ModelSource},
    problem::{Lines, Problem},
    profile::{AcceleratorProfile, Device},
};

/// Everything in `manifest` that this version does not serve, with a message that says so.
pub fn gaps(manifest: &Manifest) -> Vec<Problem> {
    let mut problems = Vec::new();
    for document in &manifest.deployments {
        deployment(manifest, document, &mut problems);
    }
    for document in &manifest.endpoints {
        let spec = &document.object.spec;
        problems.extend(endpoint(manifest, "spec", spec, &document.lines));
    }
    problems.sort_by_key(|problem| problem.line);
    problems
}

fn deployment(
    manifest: &Manifest,
    document: &Document<SpecDecodeDeployment>,
    problems: &mut Vec<Problem>,
) {
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
    let asked = spec.target.accelerator.as_ref();
    for (field, count) in [
        ("spec.target.parallelism.tensor", parallelism.tensor),
        ("spec.target.parallelism.pipeline", parallelism.pipeline),
    ] {
        if count > 1 {
            say(field, spread(manifest.profile(asked)));
        }
    }
    if let Some(message) = device(manifest, asked) {
        say("spec.target.accelerator", &message);
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
    problems.extend(model("spec.model", &spec.model, lines));
    let sources = spec
        .speculation
        .iter()
        .flat_map(|speculation| &speculation.endpoints);
    for (index, source) in sources.enumerate() {
        if let Some(template) = &source.template {
            let path = format!("spec.speculation.endpoints[{index}].template");
            problems.extend(endpoint(manifest, &path, template, lines));
        }
    }
}

fn endpoint(manifest: &Manifest, path: &str, spec: &EndpointSpec, lines: &Lines) -> Vec<Problem> {
    let mut problems = Vec::new();
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
    if let Some(message) = device(manifest, spec.accelerator.as_ref()) {
        say("accelerator", &message);
    }
    problems.extend(model(&format!("{path}.model"), &spec.model, lines));
    problems
}

/// Why one machine does not spread targets over devices; `profile` is theirs, if it is known.
fn spread(profile: Option<&AcceleratorProfile>) -> &'static str {
    if profile.is_some_and(AcceleratorProfile::is_simulated) {
        "needs a cluster: give 1 to run on one machine"
    } else {
        "more than 1 is served in a cluster only, and of a simulated model only (an \
         AcceleratorProfile with device: sim)"
    }
}

/// Why one machine does not have what is `asked` for; nothing asked for is CPU cores.
fn device(manifest: &Manifest, asked: Option<&Accelerator>) -> Option<String> {
    let Some(name) = asked?.profile.as_deref() else {
        return Some("asks for devices by a claim, which needs a cluster".to_owned());
    };
    let Some(profile) = manifest.profile(asked) else {
        return Some(format!(
            "names the AcceleratorProfile {name}, which is not in this file: one machine knows no \
             others"
        ));
    };
    match profile.spec.device {
        Device::Cpu | Device::Sim => None,
        Device::Cuda | Device::Npu => Some(format!(
            "names the AcceleratorProfile {name}, whose device is not served by this version: it \
             runs on CPU cores, or simulates (device: sim)"
        )),
    }
}

fn model(path: &str, model: &ModelSource, lines: &Lines) -> Option<Problem> {
    let uri = &model.uri;
    let needs_cluster = uri.starts_with("pvc://") || uri.starts_with("oci://");
    let message = || format!("{uri:?} needs a cluster: on one machine use hf:// or file:///");
    needs_cluster.then(|| lines.problem(format!("{path}.uri"), message()))
}
