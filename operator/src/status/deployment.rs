//! Status of a `SpecDecodeDeployment`.

use std::collections::BTreeSet;

use foretoken_crds::{
    SpecDecodeDeployment,
    status::{
        DeploymentStatus, UsedEndpoint,
        condition::{ACCEPTED, ENDPOINTS_RESOLVED, READY, ROUTER_READY, TARGET_READY},
    },
};
use k8s_openapi::jiff::Timestamp;

use super::{
    condition::{Conditions, Failing, Refused},
    speculation,
    workload::Workload,
};
use crate::{
    build,
    figures::DeploymentFigures,
    resolve::{self, Resolved},
    revision,
};

/// What was observed of a deployment.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Why it is not acted upon, if it is not.
    pub refused: Option<Refused>,
    /// What of it fails, if anything does.
    pub failing: Option<Failing>,
    /// What its sources of drafts mean.
    pub resolved: Resolved,
    /// The same with whether each serves sessions.
    pub endpoints: Vec<UsedEndpoint>,
    /// What its targets say of them; none: nothing has been heard.
    pub figures: Option<DeploymentFigures>,
    /// Its targets; none if there is no Deployment yet.
    pub target: Option<Workload>,
    /// Revisions that those of them which are ready have.
    pub revisions: BTreeSet<String>,
    /// Its routers; the same.
    pub router: Option<Workload>,
    /// Selectors of the pods of both.
    pub selectors: [String; 2],
    /// Other deployments of its namespace that serve a model of the same name.
    pub namesakes: Vec<String>,
    /// Whether its targets are only said to compute.
    pub is_simulated: bool,
}

/// What is told about `object`, whose status was `before`, whatever `object` itself says of that.
pub fn deployment(
    object: &SpecDecodeDeployment,
    before: Option<&DeploymentStatus>,
    observed: &Observed,
    now: Timestamp,
) -> DeploymentStatus {
    let before = before.cloned().unwrap_or_default();
    let generation = object.metadata.generation;
    let target = observed.target.clone().unwrap_or_default();
    let router = observed.router.clone().unwrap_or_default();
    let refused = observed.refused.as_ref();
    let mut conditions = Conditions::new(&before.conditions, now, generation);
    match (refused, observed.namesakes.as_slice()) {
        (None, [_, ..]) => {
            let message = format!(
                "{} of this namespace serves a model of the same name, {}, at another address: \
                 give one of them another spec.model.servedName",
                observed.namesakes.join(", "),
                object.served_name()
            );
            conditions.set(ACCEPTED, true, "ServedNameShared", message);
        }
        _ => conditions.accepted(refused, observed.is_simulated),
    }
    endpoints_resolved(&mut conditions, object, &observed.resolved);
    let told = speculation::speculation(object, observed, before.speculation);
    speculation::endpoints_compatible(&mut conditions, object, &told.endpoints);
    let [targets, routers] = &observed.selectors;
    ready(&mut conditions, TARGET_READY, "target", &target, targets);
    ready(&mut conditions, ROUTER_READY, "router", &router, routers);
    speculation::speculation_active(&mut conditions, &told);
    let workloads = [("target", &target), ("router", &router)];
    conditions.progressing(&workloads, refused, observed.failing.as_ref());
    match (target.ready, router.ready) {
        (0, _) => {
            let why = target.why_not_ready("target", targets);
            conditions.set(
                READY,
                false,
                "NoTargetReady",
                format!("{why} (see TargetReady)"),
            );
        }
        (_, 0) => {
            let message = "no router is ready: see RouterReady";
            conditions.set(READY, false, "NoRouterReady", message);
        }
        _ => conditions.set(READY, true, "Serving", "a target and a router are ready"),
    }
    DeploymentStatus {
        observed_generation: generation,
        url: Some(build::url(object)),
        revision: revision(object, &observed.revisions),
        replicas: Some(target.exist),
        ready_replicas: Some(target.ready),
        targets: Some(target.shown()),
        selector: Some(targets.clone()),
        speculation: Some(told),
        conditions: conditions.finish(),
    }
}

/// The revision that is `served`: of several the one that is being replaced, so that the one which is
/// asked for is told when all have it.
fn revision(object: &SpecDecodeDeployment, served: &BTreeSet<String>) -> Option<String> {
    let wanted = revision::of_targets(object);
    let mut others = served.iter().filter(|one| **one != wanted);
    others.next().or_else(|| served.first()).cloned()
}

fn endpoints_resolved(
    conditions: &mut Conditions<'_>,
    object: &SpecDecodeDeployment,
    resolved: &Resolved,
) {
    let Resolved { found, problems } = resolved;
    if let Some(first) = problems.first() {
        let all: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let message = format!(
            "{}; requests are served without it meanwhile",
            all.join("; ")
        );
        return conditions.set(ENDPOINTS_RESOLVED, false, first.reason(), message);
    }
    let (reason, message) = match found.len() {
        _ if !resolve::drafts(object) => ("NotNeeded", "nothing is drafted".to_owned()),
        0 => (
            "NoneNamed",
            "no endpoint is named: targets draft by themselves".to_owned(),
        ),
        1 => ("Resolved", "1 endpoint may be used".to_owned()),
        number => ("Resolved", format!("{number} endpoints may be used")),
    };
    conditions.set(ENDPOINTS_RESOLVED, true, reason, message);
}

/// `TargetReady` and `RouterReady`.
fn ready(
    conditions: &mut Conditions<'_>,
    kind: &str,
    component: &str,
    workload: &Workload,
    selector: &str,
) {
    if workload.ready > 0 {
        let message = format!("{} of {} are ready", workload.ready, workload.wanted);
        conditions.set(kind, true, "PodsReady", message);
    } else {
        let message = workload.why_not_ready(component, selector);
        let reason = workload
            .trouble
            .as_ref()
            .map_or("NoPodReady", |it| it.reason);
        conditions.set(kind, false, reason, message);
    }
}

#[cfg(test)]
mod tests;
