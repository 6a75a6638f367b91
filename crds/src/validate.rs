//! The rules that types cannot say: those of the API's schema, checked without a cluster.

use std::collections::BTreeMap;

use crate::{
    deployment::{
        EndpointSource, OnLoss, SpecDecodeDeployment, SpeculationSpec, TargetParallelism,
    },
    endpoint::{AllowedNamespaces, EndpointSpec, NamespacesFrom, Quota, SpeculationEndpoint},
    object::{Accelerator, Metadata, ModelSource, Scaling, Selector},
    policy::{MirrorSdSpec, PolicySpec, PolicyType},
    problem::{Lines, Problem},
};

/// Most tokens a window may have.
const MAX_LOOKAHEAD: u32 = 32;
/// Most replicas of anything.
const MAX_REPLICAS: u32 = 1000;
/// Most entries of any list.
const MAX_ITEMS: usize = 64;
/// Longest URI and revision, in bytes.
const MAX_TEXT: usize = 1024;

/// What is wrong with a deployment.
pub(crate) fn deployment(object: &SpecDecodeDeployment, lines: &Lines) -> Vec<Problem> {
    let mut check = Check {
        lines,
        problems: Vec::new(),
    };
    let spec = &object.spec;
    check.metadata(&object.metadata);
    check.model("spec.model", &spec.model);
    let target = &spec.target;
    check.replicas("spec.target", target.replicas, target.scaling.as_ref());
    check.accelerator("spec.target.accelerator", target.accelerator.as_ref());
    let parallelism = target.parallelism.unwrap_or_default();
    check.range("spec.target.parallelism.tensor", parallelism.tensor, 1, 64);
    check.range(
        "spec.target.parallelism.pipeline",
        parallelism.pipeline,
        1,
        64,
    );
    if let Some(speculation) = &spec.speculation {
        check.speculation(speculation, parallelism);
    }
    if let Some(router) = &spec.router {
        check.optional("spec.router.replicas", router.replicas, 0, MAX_REPLICAS);
        if router.exposure.is_some() && router.gateway.is_some() {
            check.say(
                "spec.router.gateway",
                "is not allowed beside exposure: choose one",
            );
        }
    }
    check.problems
}

/// What is wrong with an endpoint.
pub(crate) fn endpoint(object: &SpeculationEndpoint, lines: &Lines) -> Vec<Problem> {
    let mut check = Check {
        lines,
        problems: Vec::new(),
    };
    check.metadata(&object.metadata);
    check.endpoint_spec("spec", &object.spec);
    check.problems
}

struct Check<'a> {
    lines: &'a Lines,
    problems: Vec<Problem>,
}

impl Check<'_> {
    fn say(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.problems.push(self.lines.problem(field, message));
    }

    /// A problem between `field` of `path` and one of its neighbours: it is reported of `path`, so
    /// that it goes unsaid if the neighbour could not be read.
    fn say_of(&mut self, path: &str, field: &str, message: String) {
        let line = self.lines.of(&format!("{path}.{field}"));
        self.problems.push(Problem {
            line,
            field: path.to_owned(),
            message,
        });
    }

    fn range(&mut self, field: &str, value: u32, low: u32, high: u32) {
        if !(low..=high).contains(&value) {
            self.say(
                field,
                format!("{value} is not allowed: must be from {low} to {high}"),
            );
        }
    }

    fn optional(&mut self, field: &str, value: Option<u32>, low: u32, high: u32) {
        if let Some(value) = value {
            self.range(field, value, low, high);
        }
    }

    fn items(&mut self, field: &str, count: usize) {
        if count > MAX_ITEMS {
            self.say(
                field,
                format!("{count} entries are not allowed: at most {MAX_ITEMS}"),
            );
        }
    }

    fn label(&mut self, field: &str, text: &str) {
        if !is_label(text) {
            let rule = "lower case letters, digits and '-', at most 63, \
                        starting and ending with a letter or digit";
            self.say(field, format!("{text:?} is not allowed: must be {rule}"));
        }
    }

    fn text(&mut self, field: &str, text: &str) {
        if text.is_empty() || text.len() > MAX_TEXT {
            let size = text.len();
            self.say(
                field,
                format!("{size} bytes are not allowed: must have 1 to {MAX_TEXT}"),
            );
        }
    }

    fn metadata(&mut self, metadata: &Metadata) {
        self.label("metadata.name", &metadata.name);
        if let Some(namespace) = &metadata.namespace {
            self.label("metadata.namespace", namespace);
        }
        self.labels("metadata.labels", &metadata.labels);
    }

    fn labels(&mut self, field: &str, labels: &BTreeMap<String, String>) {
        self.items(field, labels.len());
        for (key, value) in labels {
            if value.len() > 63 {
                let size = value.len();
                self.say(
                    format!("{field}.{key}"),
                    format!("{size} bytes are too long: at most 63"),
                );
            }
        }
    }

    fn model(&mut self, path: &str, model: &ModelSource) {
        let ModelSource {
            uri,
            revision,
            served_name,
        } = model;
        let field = format!("{path}.uri");
        self.text(&field, uri);
        if let Err(reason) = check_uri(uri) {
            self.say(&field, format!("{uri:?} is not allowed: {reason}"));
        }
        if let Some(revision) = revision {
            let field = format!("{path}.revision");
            self.text(&field, revision);
            if !uri.starts_with("hf://") {
                self.say_of(
                    path,
                    "revision",
                    "revision is only allowed with a hf:// URI".into(),
                );
            } else if uri.contains('@') {
                self.say_of(
                    path,
                    "revision",
                    format!("revision is given twice: also in {uri:?}"),
                );
            }
        }
        if let Some(name) = served_name {
            self.text(&format!("{path}.servedName"), name);
        }
    }

    fn replicas(&mut self, path: &str, replicas: Option<u32>, scaling: Option<&Scaling>) {
        self.optional(&format!("{path}.replicas"), replicas, 0, MAX_REPLICAS);
        let Some(Scaling {
            min,
            max,
            metric: _,
        }) = scaling
        else {
            return;
        };
        let field = format!("{path}.scaling");
        if replicas.is_some() {
            self.say(&field, "is not allowed beside replicas: choose one");
        }
        self.range(&format!("{field}.max"), *max, 1, MAX_REPLICAS);
        if min > max {
            self.say_of(
                &field,
                "min",
                format!("min {min} is not allowed: must be at most max, {max}"),
            );
        }
    }

    fn accelerator(&mut self, path: &str, accelerator: Option<&Accelerator>) {
        if let Some(Accelerator { profile }) = accelerator {
            self.label(&format!("{path}.profile"), profile);
        }
    }

    fn speculation(&mut self, speculation: &SpeculationSpec, parallelism: TargetParallelism) {
        let SpeculationSpec {
            policy,
            verification: _,
            endpoints,
            on_loss,
            trees: _,
        } = speculation;
        self.policy(policy, parallelism);
        let field = "spec.speculation.endpoints";
        self.items(field, endpoints.len());
        // Local proposals are all that is left without endpoints, from the start if need be.
        let alone = *on_loss == OnLoss::Local;
        if endpoints.is_empty() && policy.kind.needs_endpoints() && !alone {
            let name = policy.kind.name();
            self.say(
                field,
                format!("must name at least one endpoint: policy {name} drafts"),
            );
        }
        for (index, source) in endpoints.iter().enumerate() {
            self.source(&format!("{field}[{index}]"), source);
        }
    }

    fn policy(&mut self, policy: &PolicySpec, parallelism: TargetParallelism) {
        const PATH: &str = "spec.speculation.policy";
        for block in policy.blocks() {
            if Some(block) != policy.own_block() {
                let allowed = policy.own_block().unwrap_or("no block of parameters");
                let name = policy.kind.name();
                let message =
                    format!("{block} does not belong to type {name}, which takes {allowed}");
                self.say_of(PATH, block, message);
            }
        }
        if let Some(block) = policy.speculative {
            self.range(
                &format!("{PATH}.speculative.lookahead"),
                block.lookahead,
                1,
                MAX_LOOKAHEAD,
            );
        }
        if let Some(block) = policy.ssd {
            self.range(
                &format!("{PATH}.ssd.lookahead"),
                block.lookahead,
                1,
                MAX_LOOKAHEAD,
            );
            self.optional(&format!("{PATH}.ssd.budget"), block.budget, 1, 1024);
        }
        if let Some(block) = &policy.mirror_sd {
            self.mirror_sd(&format!("{PATH}.mirrorSD"), block);
        }
        if let Some(block) = policy.spec_pipe {
            self.optional(&format!("{PATH}.specPipe.width"), block.width, 1, 1024);
            self.optional(
                &format!("{PATH}.specPipe.candidates"),
                block.candidates,
                1,
                256,
            );
        }
        if policy.kind == PolicyType::SpecPipe && parallelism.pipeline < 2 {
            let stages = parallelism.pipeline;
            self.say(
                "spec.target.parallelism.pipeline",
                format!("{stages} is not allowed: policy SpecPipe needs at least 2"),
            );
        }
    }

    fn mirror_sd(&mut self, path: &str, block: &MirrorSdSpec) {
        let MirrorSdSpec {
            early_exit,
            top_k,
            window,
            streams,
        } = block;
        if let Some(fraction) = early_exit
            && !is_proper_fraction(fraction)
        {
            self.say(
                format!("{path}.earlyExit"),
                format!("{fraction:?} is not allowed: must be a fraction between 0 and 1, such as \"1/2\""),
            );
        }
        self.optional(&format!("{path}.topK"), *top_k, 1, 256);
        self.optional(&format!("{path}.window"), *window, 1, MAX_LOOKAHEAD);
        self.optional(&format!("{path}.streams"), *streams, 1, 16);
    }

    fn source(&mut self, path: &str, source: &EndpointSource) {
        let EndpointSource {
            name,
            namespace,
            weight,
            selector,
            template,
        } = source;
        let kinds = usize::from(name.is_some())
            + usize::from(selector.is_some())
            + usize::from(template.is_some());
        if kinds != 1 {
            self.say(path, "must have exactly one of name, selector, template");
        }
        if let Some(name) = name {
            self.label(&format!("{path}.name"), name);
        }
        if let Some(namespace) = namespace {
            self.label(&format!("{path}.namespace"), namespace);
            if template.is_some() {
                self.say(
                    format!("{path}.namespace"),
                    "is not allowed beside template: it runs in the deployment's own",
                );
            }
        }
        self.optional(&format!("{path}.weight"), *weight, 1, 1000);
        if let Some(selector) = selector {
            self.selector(&format!("{path}.selector"), selector);
        }
        if let Some(template) = template {
            self.endpoint_spec(&format!("{path}.template"), template);
        }
    }

    fn selector(&mut self, path: &str, selector: &Selector) {
        let field = format!("{path}.matchLabels");
        if selector.match_labels.is_empty() {
            self.say(&field, "must have at least one label");
        }
        self.labels(&field, &selector.match_labels);
    }

    fn endpoint_spec(&mut self, path: &str, spec: &EndpointSpec) {
        self.model(&format!("{path}.model"), &spec.model);
        self.replicas(path, spec.replicas, spec.scaling.as_ref());
        self.accelerator(&format!("{path}.accelerator"), spec.accelerator.as_ref());
        let tracks = spec.parallelism.map(|parallelism| parallelism.tracks);
        self.optional(&format!("{path}.parallelism.tracks"), tracks, 1, 64);
        self.optional(
            &format!("{path}.slotsPerReplica"),
            spec.slots_per_replica,
            1,
            4096,
        );
        if let Some(AllowedNamespaces { from, selector }) = &spec.allowed_namespaces {
            let field = format!("{path}.allowedNamespaces.selector");
            match (from, selector) {
                (NamespacesFrom::Selector, None) => {
                    self.say(field, "is required with from: Selector");
                }
                (NamespacesFrom::Selector, Some(selector)) => self.selector(&field, selector),
                (NamespacesFrom::Same | NamespacesFrom::All, Some(_)) => {
                    self.say(field, "is only allowed with from: Selector");
                }
                (NamespacesFrom::Same | NamespacesFrom::All, None) => {}
            }
        }
        self.items(&format!("{path}.quotas"), spec.quotas.len());
        for (index, quota) in spec.quotas.iter().enumerate() {
            let field = format!("{path}.quotas[{index}]");
            self.label(&format!("{field}.namespace"), &quota.namespace);
            let same = |other: &Quota| other.namespace == quota.namespace;
            if spec.quotas[..index].iter().any(same) {
                let message = format!("{} has a quota already", quota.namespace);
                self.say(format!("{field}.namespace"), message);
            }
            self.optional(&format!("{field}.maxSlots"), quota.max_slots, 1, 1_000_000);
            self.optional(&format!("{field}.weight"), quota.weight, 1, 1000);
        }
    }
}

/// DNS-1123 label.
fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// `a/b` with 0 < a < b.
fn is_proper_fraction(text: &str) -> bool {
    let Some((above, below)) = text.split_once('/') else {
        return false;
    };
    match (above.trim().parse::<u32>(), below.trim().parse::<u32>()) {
        (Ok(above), Ok(below)) => above > 0 && above < below,
        _ => false,
    }
}

/// What is wrong with a model's URI.
fn check_uri(uri: &str) -> Result<(), &'static str> {
    let Some((scheme, rest)) = uri.split_once("://") else {
        // A path, for one machine; `text` has seen that it is not empty.
        return Ok(());
    };
    match scheme {
        "hf" => match rest
            .split('@')
            .next()
            .map(|name| name.split('/').collect::<Vec<_>>())
        {
            Some(parts) if parts.len() == 2 && parts.iter().all(|part| !part.is_empty()) => Ok(()),
            _ => Err("must be hf://owner/name"),
        },
        "file" if rest.starts_with('/') && rest.len() > 1 => Ok(()),
        "file" => Err("must be file:///absolute/path"),
        "pvc"
            if rest
                .split_once('/')
                .is_some_and(|(claim, _)| is_label(claim)) =>
        {
            Ok(())
        }
        "pvc" => Err("must be pvc://claim/path"),
        "oci" if !rest.is_empty() => Ok(()),
        "oci" => Err("must be oci://image"),
        _ => Err("must start with hf://, file:///, pvc:// or oci://"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_those_of_dns() {
        assert!(is_label("qwen3-32b"));
        for bad in ["", "-a", "a-", "A", "a_b", "a.b", &"a".repeat(64)] {
            assert!(!is_label(bad), "{bad:?}");
        }
    }

    #[test]
    fn an_early_exit_lies_strictly_inside() {
        assert!(is_proper_fraction("1/2"));
        for bad in ["0/2", "2/2", "3/2", "1", "a/b", "-1/2", "1/0"] {
            assert!(!is_proper_fraction(bad), "{bad:?}");
        }
    }

    #[test]
    fn uris_say_which_form_is_meant() {
        for good in [
            "hf://a/b",
            "hf://a/b@main",
            "file:///m",
            "pvc://c/p",
            "oci://r/i",
            "../m",
        ] {
            assert_eq!(check_uri(good), Ok(()), "{good}");
        }
        for bad in [
            "hf://a",
            "hf:///b",
            "file://m",
            "pvc://C/p",
            "oci://",
            "s3://b/k",
        ] {
            assert!(check_uri(bad).is_err(), "{bad}");
        }
    }
}
