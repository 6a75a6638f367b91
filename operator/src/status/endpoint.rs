//! Status of a `SpeculationEndpoint`.

use std::cmp::Reverse;

use foretoken_crds::{
    SpeculationEndpoint,
    status::{Consumer, EndpointStatus, MOST_CONSUMERS, condition::READY},
};
use foretoken_draft::DraftConfig;
use k8s_openapi::jiff::Timestamp;

use super::{
    at_most,
    condition::{Conditions, Failing, Refused},
    workload::Workload,
};
use crate::{
    figures::{self, EndpointFigures},
    rollout::Decision,
};

/// What was observed of an endpoint.
#[derive(Clone, Debug, Default)]
pub struct ObservedEndpoint {
    /// Why it is not acted upon, if it is not.
    pub refused: Option<Refused>,
    /// What of it fails, if anything does.
    pub failing: Option<Failing>,
    /// Its pods; none if there is no Deployment yet.
    pub draft: Option<Workload>,
    /// Selector of its pods.
    pub selector: String,
    /// What they say, and targets of them; none: nothing has been heard.
    pub figures: Option<EndpointFigures>,
    /// Whether its drafts are only said to compute.
    pub is_simulated: bool,
    /// Which revisions they have; none: it is not acted upon.
    pub rollout: Option<Decision>,
}

/// What is told about `object`, whose status was `before`, whatever `object` itself says of that.
pub fn endpoint(
    object: &SpeculationEndpoint,
    before: Option<&EndpointStatus>,
    observed: &ObservedEndpoint,
    now: Timestamp,
) -> EndpointStatus {
    let before = before.cloned().unwrap_or_default();
    let generation = object.metadata.generation;
    let mut conditions = Conditions::new(&before.conditions, now, generation);
    conditions.accepted(observed.refused.as_ref(), observed.is_simulated);
    let draft = observed.draft.clone().unwrap_or_default();
    super::rollout::rolled_out(&mut conditions, object, observed.rollout.as_ref());
    let (refused, failing) = (observed.refused.as_ref(), observed.failing.as_ref());
    let fails = matches!(failing, Some(Failing::Lastingly(_)));
    let is_told = !fails && super::rollout::progressing(&mut conditions, observed.rollout.as_ref());
    if !is_told {
        conditions.progressing(&[("draft", &draft)], refused, failing);
    }
    if draft.ready > 0 {
        let message = format!("{} of {} drafts are ready", draft.ready, draft.wanted);
        conditions.set(READY, true, "DraftReady", message);
    } else {
        let message = draft.why_not_ready("draft", &observed.selector);
        let reason = draft
            .trouble
            .as_ref()
            .map_or("NoDraftReady", |it| it.reason);
        conditions.set(READY, false, reason, message);
    }
    let slots = object
        .spec
        .slots_per_replica
        .map_or(DraftConfig::default().max_sessions, |slots| slots as usize);
    let slots = u64::from(draft.ready) * slots as u64;
    let known = figures(&before, observed.figures.as_ref(), draft.ready);
    EndpointStatus {
        observed_generation: generation,
        replicas: Some(draft.exist),
        ready_replicas: Some(draft.ready),
        drafts: Some(draft.shown()),
        selector: Some(observed.selector.clone()),
        slots: Some(slots.try_into().unwrap_or(u32::MAX)),
        rollout: match &observed.rollout {
            Some(decision) => Some(decision.status.clone()),
            None => before.rollout,
        },
        conditions: conditions.finish(),
        ..known
    }
}

/// What replicas say of themselves; what nobody says now stays as it was `before`.
fn figures(before: &EndpointStatus, heard: Option<&EndpointFigures>, ready: u32) -> EndpointStatus {
    let nobody = EndpointFigures::default();
    // Whoever is not there serves nobody.
    let Some(now) = heard.or_else(|| (ready == 0).then_some(&nobody)) else {
        return EndpointStatus {
            slots_in_use: before.slots_in_use,
            hit_rate: before.hit_rate,
            slack: before.slack,
            consumers: before.consumers.clone(),
            tokenizer_digest: before.tokenizer_digest.clone(),
            ..EndpointStatus::default()
        };
    };
    let known = before.consumers.iter();
    let known = known.map(|one| ((one.namespace.clone(), one.name.clone()), one.slots));
    let told = figures::told_consumers(Some(&known.collect()), &now.consumers);
    let consumer = |((namespace, name), slots)| Consumer {
        namespace,
        name,
        slots,
    };
    let consumers = at_most(
        told.into_iter().map(consumer).collect(),
        MOST_CONSUMERS,
        |consumer: &Consumer| Reverse(consumer.slots),
        |consumer| (&consumer.namespace, &consumer.name),
    );
    EndpointStatus {
        slots_in_use: Some(figures::told_count(before.slots_in_use, now.slots_in_use)),
        hit_rate: figures::told_hits(before.hit_rate, now.rounds),
        slack: figures::told_slack(before.slack, now.slack),
        consumers,
        tokenizer_digest: now
            .tokenizer
            .clone()
            .or_else(|| before.tokenizer_digest.clone()),
        ..EndpointStatus::default()
    }
}

#[cfg(test)]
mod tests {
    use foretoken_service::report::Rounds;
    use serde_json::json;

    use super::*;

    fn object() -> SpeculationEndpoint {
        let object = json!({
            "apiVersion": "foretoken.io/v1alpha1",
            "kind": "SpeculationEndpoint",
            "metadata": {"name": "tiny", "namespace": "drafts", "generation": 1},
            "spec": {"model": {"uri": "hf://a/b"}, "slotsPerReplica": 8},
        });
        serde_json::from_value(object).expect("valid")
    }

    fn observed(ready: u32, figures: Option<EndpointFigures>) -> ObservedEndpoint {
        ObservedEndpoint {
            draft: Some(Workload {
                wanted: 1,
                ready,
                ..Workload::default()
            }),
            figures,
            ..ObservedEndpoint::default()
        }
    }

    fn figures(slots: u32) -> EndpointFigures {
        EndpointFigures {
            slots_in_use: slots,
            consumers: [(("chat".into(), "story".into()), slots)].into(),
            slack: Some(0.5),
            tokenizer: Some("digest".into()),
            rounds: Rounds {
                hits: 30,
                misses: 10,
                ..Rounds::default()
            },
            ..EndpointFigures::default()
        }
    }

    fn told(before: Option<&EndpointStatus>, observed: &ObservedEndpoint) -> EndpointStatus {
        endpoint(&object(), before, observed, Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn what_replicas_say_is_told_and_kept_while_nobody_says_anything() {
        let first = told(None, &observed(1, Some(figures(3))));
        assert_eq!((first.slots, first.slots_in_use), (Some(8), Some(3)));
        assert_eq!((first.hit_rate, first.slack), (Some(0.75), Some(0.5)));
        assert_eq!(first.tokenizer_digest.as_deref(), Some("digest"));
        let consumer = Consumer {
            namespace: "chat".into(),
            name: "story".into(),
            slots: 3,
        };
        assert_eq!(first.consumers, [consumer]);
        let second = told(Some(&first), &observed(1, None));
        assert_eq!(second, first);
        let gone = told(Some(&first), &observed(0, None));
        assert_eq!((gone.slots_in_use, gone.consumers.len()), (Some(0), 0));
    }

    #[test]
    fn only_those_with_most_slots_are_listed_of_too_many() {
        let many = (0..2000u32).map(|n| (("chat".to_owned(), format!("d{n:04}")), n));
        let crowd = EndpointFigures {
            consumers: many.collect(),
            ..figures(1)
        };
        let consumers = told(None, &observed(1, Some(crowd))).consumers;
        assert_eq!(
            (consumers.len(), consumers[0].name.as_str()),
            (1024, "d0976")
        );
    }
}
