//! The revisions of an endpoint, as a cluster has them.

use std::sync::Arc;

use foretoken_crds::{SpeculationEndpoint, status::EndpointStatus};
use k8s_openapi::jiff::Timestamp;

use super::Context;
use crate::{
    Owner,
    build::DRAFT,
    figures::Trial,
    hearsay::Whose,
    object::{CANARY, Made},
    revision::Revision,
    rollout::{self, CanaryPods, Course, Decision, Given, Heard, Split},
    status::Workload,
    world::{KnownPod, Live},
};

/// The pods of an endpoint.
#[derive(Default)]
pub(super) struct Drafts {
    /// Those that serve.
    serving: Option<Workload>,
    /// What those are made of.
    revision: Option<Revision>,
    /// Those of a revision that is tried, and its digest.
    canary: Option<(Workload, Option<String>)>,
}

/// What is done about the revisions of an endpoint.
pub(super) struct Rolled {
    pub(super) decision: Decision,
    /// What serves.
    running: Option<Revision>,
    split: Split,
}

impl Drafts {
    /// All pods together.
    pub(super) fn all(&self) -> Option<Workload> {
        let serving = self.serving.clone();
        let Some((canary, _)) = &self.canary else {
            return serving;
        };
        let serving = serving.unwrap_or_default();
        Some(Workload {
            wanted: serving.wanted + canary.wanted,
            exist: serving.exist + canary.exist,
            updated: serving.updated + canary.updated,
            ready: serving.ready + canary.ready,
            is_seen: serving.is_seen && canary.is_seen,
            trouble: serving.trouble.or_else(|| canary.trouble.clone()),
            fetching: serving.fetching,
        })
    }

    /// Those that serve, if there are any.
    pub(super) fn serving(&self) -> Option<&Workload> {
        self.serving.as_ref()
    }

    /// How many there were to be, `least` at least, when a revision was begun to be tried, while it is:
    /// of two, one may be there for that alone, and one alone is divided as two are.
    pub(super) fn while_compared(&self, least: u32) -> Option<u32> {
        let (canary, _) = self.canary.as_ref()?;
        let both = canary.wanted + self.serving.as_ref()?.wanted;
        Some(if both > 2 { both } else { least.clamp(1, 2) })
    }

    /// The pods that try the revision of that digest; of another one's none is ready for this.
    fn trying(&self, wanted: &str) -> Option<CanaryPods> {
        let (workload, revision) = self.canary.as_ref()?;
        let is_its = revision.as_deref() == Some(wanted) && workload.is_seen;
        let ready = workload.ready.min(workload.updated);
        Some(CanaryPods {
            ready: if is_its { ready } else { 0 },
            trouble: workload.trouble.as_ref().map(|it| it.message.clone()),
        })
    }
}

impl Rolled {
    /// `object` with what its pods have.
    pub(super) fn serving(&self, object: &SpeculationEndpoint) -> SpeculationEndpoint {
        let mut object = object.clone();
        let is_kept = matches!(self.decision.course, Course::Try | Course::Keep);
        if let Some(running) = self.running.as_ref().filter(|_| is_kept) {
            object.spec = running.instead_in(&object.spec);
        }
        object
    }

    /// How many pods each revision has, where there are two.
    pub(super) fn split(&self) -> Option<Split> {
        match self.decision.course {
            Course::Try | Course::Promote => Some(self.split),
            Course::All | Course::Keep => None,
        }
    }
}

impl Context {
    /// The pods of the endpoint that `owner` is.
    pub(super) fn drafts(&self, owner: &Owner) -> Drafts {
        let name = format!("{}-{DRAFT}", owner.name);
        let live = |name: &str| {
            self.world
                .made_called(Made::Deployment, &owner.namespace, name)
        };
        let pods = self.world.pods_of(owner, DRAFT);
        let fetching = self.hearsay.fetching(&Whose::Endpoint(owner.named()));
        let workload = |live: &Live, is_canary: bool| {
            let its = |pod: &&Arc<KnownPod>| pod.is_canary == is_canary;
            let mut workload = live.workload.as_deref().cloned().unwrap_or_default();
            self.troubled(&mut workload, (owner, DRAFT), pods.iter().filter(its));
            workload.fetching = fetching;
            workload
        };
        let made_of = |live: &Live| live.made_of.as_deref().map(str::to_owned);
        let serving = live(&name);
        let canary = live(&format!("{name}-{CANARY}"));
        Drafts {
            revision: serving
                .as_ref()
                .and_then(|live| Revision::read(&made_of(live)?)),
            serving: serving.map(|live| workload(&live, false)),
            canary: canary.map(|live| (workload(&live, true), made_of(&live))),
        }
    }

    /// What is done about the revisions of `object`, of which `before` was told.
    /// There are to be `count` drafts, if that is not what the spec says.
    pub(super) fn roll(
        &self,
        object: &SpeculationEndpoint,
        before: Option<&EndpointStatus>,
        (owner, drafts): (&Owner, &Drafts),
        count: Option<u32>,
    ) -> Rolled {
        let spec = &object.spec;
        let wanted = Revision::of(spec).digest();
        let running = drafts.revision.as_ref().map(Revision::digest);
        let rollout = spec.rollout.unwrap_or_default();
        let share = rollout.canary.unwrap_or_default().share;
        let split = Split::of(count.or(spec.replicas).unwrap_or(1), share);
        let before = before.and_then(|status| status.rollout.clone());
        let before = before.unwrap_or_default();
        let canary = drafts.trying(&wanted);
        let begun = before.canary.as_ref();
        let begun = begun.filter(|begun| begun.revision == wanted && begun.ready_at.is_some());
        let heard = if let (Some(old), Some(begun)) = (&running, begun) {
            let trial = Trial {
                old: old.clone(),
                new: wanted.clone(),
                begun: begun.started_at.0.as_second(),
            };
            let before = [begun.old, begun.new].map(rollout::rounds);
            self.hearsay.heard(&owner.named(), &trial, before)
        } else {
            self.hearsay.compare_none(&owner.named());
            Heard::default()
        };
        let now = Timestamp::now();
        let decision = rollout::decide(&Given {
            wanted: &wanted,
            running: running.as_deref(),
            rollout,
            before: &before,
            split,
            is_settled: drafts.serving.as_ref().is_some_and(Workload::is_settled),
            canary,
            heard,
            is_used: self.has_consumers(object),
            // As statuses tell times.
            now: Timestamp::from_second(now.as_second()).unwrap_or(now),
        });
        Rolled {
            decision,
            running: drafts.revision.clone(),
            split,
        }
    }
}
