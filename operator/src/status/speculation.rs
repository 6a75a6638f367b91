//! How a deployment speculates: by who is ready, and by what its targets say of their links.

use foretoken_crds::{
    SpecDecodeDeployment,
    status::{
        MOST_ENDPOINTS, SpeculationState, SpeculationStatus, UsedEndpoint,
        condition::{ENDPOINTS_COMPATIBLE, SPECULATION_ACTIVE},
    },
};

use super::{at_most, condition::Conditions, deployment::Observed};
use crate::{
    figures::{self, DeploymentFigures, Links},
    resolve,
};

/// Longest reason of an endpoint.
const MAX_REASON: usize = 1000;

/// How it speculates; what nobody says now stays as it was `before`.
pub(super) fn speculation(
    object: &SpecDecodeDeployment,
    observed: &Observed,
    before: Option<SpeculationStatus>,
) -> SpeculationStatus {
    let before = before.unwrap_or_default();
    let heard = observed.figures.as_ref();
    let endpoints: Vec<UsedEndpoint> = observed
        .endpoints
        .iter()
        .map(|endpoint| with_compatibility(endpoint, heard, &before.endpoints))
        .collect();
    let (state, reason) = state(object, observed, &endpoints);
    // Those that do not go together with the targets first of all.
    let endpoints = at_most(
        endpoints,
        MOST_ENDPOINTS,
        |endpoint| endpoint.compatible != Some(false),
        |endpoint| (&endpoint.namespace, &endpoint.name),
    );
    let rounds = heard.map(|figures| figures.rounds).unwrap_or_default();
    SpeculationStatus {
        state,
        reason: reason.map(str::to_owned),
        endpoints,
        acceptance_length: figures::told_length(before.acceptance_length, rounds),
        hit_rate: figures::told_hits(before.hit_rate, rounds),
    }
}

fn links<'a>(heard: Option<&'a DeploymentFigures>, endpoint: &UsedEndpoint) -> Option<&'a Links> {
    let named = (endpoint.namespace.clone(), endpoint.name.clone());
    heard?.links.get(&named)
}

fn with_compatibility(
    endpoint: &UsedEndpoint,
    heard: Option<&DeploymentFigures>,
    before: &[UsedEndpoint],
) -> UsedEndpoint {
    let is_same = |known: &&UsedEndpoint| {
        known.namespace == endpoint.namespace && known.name == endpoint.name
    };
    let before = before.iter().find(is_same);
    let (compatible, reason) = match links(heard, endpoint) {
        // Of a pool that comes to another revision some replicas may fit.
        Some(Links { up: 1.., .. }) => (Some(true), None),
        Some(Links {
            refused: Some(why), ..
        }) => (Some(false), Some(shortened(why))),
        Some(_) | None => (
            before.and_then(|known| known.compatible),
            before.and_then(|known| known.reason.clone()),
        ),
    };
    UsedEndpoint {
        compatible,
        reason,
        ..endpoint.clone()
    }
}

fn shortened(text: &str) -> String {
    let mut text = text.to_owned();
    while text.len() > MAX_REASON {
        text.pop();
    }
    text
}

/// Whether endpoints draft, and why not all of them, in one word.
fn state(
    object: &SpecDecodeDeployment,
    observed: &Observed,
    endpoints: &[UsedEndpoint],
) -> (SpeculationState, Option<&'static str>) {
    use SpeculationState::{Active, Degraded, Off};

    let is_linked = |endpoint: &UsedEndpoint| match &observed.figures {
        // Nobody has said anything: who is ready is believed to be used.
        None => true,
        heard => links(heard.as_ref(), endpoint).is_some_and(|links| links.up > 0),
    };
    let all = endpoints.len() + observed.resolved.problems.len();
    let ready: Vec<_> = endpoints.iter().filter(|one| one.ready).collect();
    let fitting: Vec<_> = ready
        .iter()
        .filter(|one| one.compatible != Some(false))
        .collect();
    let linked = fitting.iter().filter(|one| is_linked(one)).count();
    // The cluster says so, also to an operator that has heard nobody yet.
    let target = observed.target.as_ref();
    let is_target_ready = target.is_some_and(|target| target.ready > 0);
    match (ready.len(), fitting.len(), linked) {
        _ if !resolve::drafts(object) => (Off, Some("NotAskedFor")),
        (0, ..) if all == 0 => (Off, Some("NoEndpoints")),
        (0, ..) => (Off, Some("NoEndpointReady")),
        (_, 0, _) => (Off, Some("NoneCompatible")),
        _ if !is_target_ready => (Off, Some("NoTargetReady")),
        (_, _, 0) => (Off, Some("NotConnected")),
        (ready, ..) if ready < all => (Degraded, Some("SomeEndpointsMissing")),
        (ready, fitting, _) if fitting < ready => (Degraded, Some("SomeIncompatible")),
        (_, fitting, linked) if linked < fitting => (Degraded, Some("SomeNotConnected")),
        _ => (Active, None),
    }
}

/// `EndpointsCompatible`.
pub(super) fn endpoints_compatible(
    conditions: &mut Conditions<'_>,
    object: &SpecDecodeDeployment,
    endpoints: &[UsedEndpoint],
) {
    let kind = ENDPOINTS_COMPATIBLE;
    if !resolve::drafts(object) {
        return conditions.set(kind, true, "NotNeeded", "nothing is drafted");
    }
    if endpoints.is_empty() {
        return conditions.set(kind, true, "NoneToCompare", "no endpoint may be used");
    }
    let named = |endpoint: &&UsedEndpoint| format!("{}/{}", endpoint.namespace, endpoint.name);
    let others: Vec<String> = endpoints
        .iter()
        .filter(|endpoint| endpoint.compatible == Some(false))
        .map(|endpoint| {
            let why = endpoint
                .reason
                .as_deref()
                .unwrap_or("its tokens are others");
            format!("{}: {why}", named(&endpoint))
        })
        .collect();
    let unknown = endpoints.iter().filter(|one| one.compatible.is_none());
    let unknown: Vec<String> = unknown.map(|endpoint| named(&endpoint)).collect();
    if !others.is_empty() {
        let message = format!("{}; requests are served without it", others.join("; "));
        conditions.set(kind, false, "Incompatible", message);
    } else if unknown.is_empty() {
        let message = "all endpoints have the target's tokens";
        conditions.set(kind, true, "Compatible", message);
    } else {
        let message = format!("no target has been connected to {} yet", unknown.join(", "));
        let over = &["NotNeeded", "NoneToCompare"];
        conditions.set_unknown_after(kind, "NotKnownYet", message, over);
    }
}

/// `SpeculationActive`.
pub(super) fn speculation_active(conditions: &mut Conditions<'_>, told: &SpeculationStatus) {
    let kind = SPECULATION_ACTIVE;
    let Some(reason) = told.reason.as_deref() else {
        let message = "endpoints draft for its targets";
        return conditions.set(kind, true, "Drafting", message);
    };
    let (holds, message) = match reason {
        "NotAskedFor" => (false, "its policy drafts nothing"),
        "NoEndpoints" => (
            false,
            "no endpoint is named: targets propose from the text alone",
        ),
        "NoEndpointReady" => (
            false,
            "no endpoint that it may use has a ready pod: see EndpointsResolved and `kubectl get \
             spe -A`; requests are served without",
        ),
        "NoneCompatible" => (
            false,
            "no endpoint has the target's tokens: see EndpointsCompatible; requests are served \
             without",
        ),
        "NoTargetReady" => (
            false,
            "endpoints are ready and no target is that they could draft for: see TargetReady",
        ),
        "NotConnected" => (
            false,
            "endpoints are ready and no target is connected to them: it takes a minute after a \
             change; if it stays so, see the log of a target, and whether network policies let it \
             dial port 7100; requests are served without",
        ),
        "SomeEndpointsMissing" => (
            true,
            "some endpoints are missing or not ready: see EndpointsResolved and `kubectl get spe -A`",
        ),
        "SomeIncompatible" => (
            true,
            "some endpoints have other tokens: see EndpointsCompatible",
        ),
        _ => (true, "targets are not connected to all ready endpoints"),
    };
    conditions.set(kind, holds, reason, message);
}

#[cfg(test)]
mod tests;
