//! Status of a `SpeculationEndpoint`.

use foretoken_crds::{
    SpeculationEndpoint,
    status::{EndpointStatus, condition::READY},
};
use foretoken_draft::DraftConfig;
use k8s_openapi::jiff::Timestamp;

use super::{
    condition::{Conditions, Refused},
    workload::Workload,
};

/// What was observed of an endpoint.
#[derive(Clone, Debug, Default)]
pub struct ObservedEndpoint {
    /// Why it is not acted upon, if it is not.
    pub refused: Option<Refused>,
    /// Its pods; none if there is no Deployment yet.
    pub draft: Option<Workload>,
    /// Selector of its pods.
    pub selector: String,
}

/// What is told about `object`.
pub fn endpoint(
    object: &SpeculationEndpoint,
    observed: &ObservedEndpoint,
    now: Timestamp,
) -> EndpointStatus {
    let before = object.status.clone().unwrap_or_default();
    let generation = object.metadata.generation;
    let mut conditions = Conditions::new(&before.conditions, now, generation);
    conditions.accepted(observed.refused.as_ref());
    let draft = observed.draft.clone().unwrap_or_default();
    conditions.progressing(&[("draft", &draft)], observed.refused.as_ref());
    if draft.ready > 0 {
        let message = format!("{} of {} drafts are ready", draft.ready, draft.wanted);
        conditions.set(READY, true, "DraftReady", message);
    } else {
        let message = draft.why_not_ready("draft", &observed.selector);
        conditions.set(READY, false, "NoDraftReady", message);
    }
    let slots = object
        .spec
        .slots_per_replica
        .map_or(DraftConfig::default().max_sessions, |slots| slots as usize);
    let slots = u64::from(draft.ready) * slots as u64;
    EndpointStatus {
        observed_generation: generation,
        replicas: Some(draft.exist),
        ready_replicas: Some(draft.ready),
        drafts: Some(draft.shown()),
        selector: Some(observed.selector.clone()),
        slots: Some(slots.try_into().unwrap_or(u32::MAX)),
        conditions: conditions.finish(),
        // What only the services know stays as it was.
        slots_in_use: before.slots_in_use,
        hit_rate: before.hit_rate,
        slack: before.slack,
        consumers: before.consumers,
        tokenizer_digest: before.tokenizer_digest,
    }
}
