//! One look at a `SpeculationEndpoint`.
//!
//! An endpoint that is used has a finalizer. When it is deleted, deployments stop naming it to
//! their targets at once, and its pods go when no target is connected to them any more, or [`DRAIN`]
//! later: a time, so that nothing can keep it for ever.

use std::{
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use foretoken_crds::{Kind, SpeculationEndpoint};
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::controller::Action,
};
use serde_json::json;

use super::{
    Brought, Context, refused,
    rollout::{Drafts, Rolled},
    scale::{Advice, Pool},
};
use crate::{
    accept,
    apply::{self, Written},
    build::{self, Canary, DRAFT, GivenToEndpoint},
    failure::Failure,
    object::{FINALIZER, OPERATOR, Object, Owner},
    rollout::Course,
    scale,
    status::{self, ObservedEndpoint, Refused},
    world::Unclear,
};

/// How long targets may take to hear: nodes that were not told look at files of config maps once a
/// minute or so.
const DRAIN: Duration = Duration::from_secs(90);
/// How often it is looked whether they have.
const HEARD: Duration = Duration::from_secs(1);

/// How often two revisions that are compared are looked at.
const TRIAL: Duration = Duration::from_secs(5);

/// Brings a cluster to what `object` says, and tells what was observed.
pub(super) async fn reconcile(
    object: Arc<SpeculationEndpoint>,
    context: Arc<Context>,
) -> Result<Action, Failure> {
    if let Some(deleted) = &object.metadata.deletion_timestamp {
        return context.let_go(&object, deleted.0).await;
    }
    let held = context.hold(&object, context.has_consumers(&object)).await;
    let not_held = match held.err() {
        // There is another version of it to look at, or it is gone.
        Some(failure) if failure.is_of_another_time() => return Err(failure),
        not_held => not_held,
    };
    let owner = Owner::new(Kind::SpeculationEndpoint, &object.metadata);
    let told = &context.endpoints;
    let before = told.before(object.as_ref(), object.status.as_ref());
    let drafts = context.drafts(&owner);
    let unclear = Unclear::of(&object.metadata);
    // Of what is understood in parts alone, nothing that was made is changed.
    let is_in_parts = unclear.as_ref().filter(|unclear| unclear.is_in_parts);
    let accepted = match is_in_parts {
        Some(unclear) => Err(unclear.refused()),
        None => context.accepted(&object),
    };
    let advice = match is_in_parts {
        Some(_) => None,
        None => context.count_of(&object, &owner, &drafts),
    };
    let count = advice.as_ref().map(|advice| advice.replicas);
    let (wanted, decision) = match accepted {
        Ok(()) => {
            let rolled = context.roll(&object, before.as_deref(), (&owner, &drafts), count);
            (
                context.wanted_of_endpoint(&object, &rolled, count),
                Some(rolled.decision),
            )
        }
        Err(refused) => (Err(refused), None),
    };
    let services = &[DRAFT];
    let brought = context
        .bring(object.as_ref(), &owner, services, wanted)
        .await;
    context
        .announce_scaled(object.as_ref(), advice, &brought)
        .await;
    let draft = brought.known(DRAFT, context.drafts(&owner).all());
    let Brought {
        refused,
        mut failure,
        ..
    } = brought;
    if refused.is_some() && is_in_parts.is_none() {
        let granted = context.hold_to_grants(&object, &owner).await;
        failure = failure.or(granted.err());
    }
    let failure = failure.or(not_held);
    let refused = unclear.map(|unclear| unclear.refused()).or(refused);
    let course = decision.as_ref().map(|decision| decision.course);
    let observed = ObservedEndpoint {
        failing: context.failing(object.as_ref(), failure.as_ref(), refused.as_ref()),
        refused,
        draft,
        rollout: decision,
        selector: owner.selector_text(DRAFT),
        figures: context.hearsay.endpoint(&owner.named()),
        is_simulated: context.is_simulated(object.spec.accelerator.as_ref()),
    };
    let before = before.as_deref();
    let status = status::endpoint(&object, before, &observed, Timestamp::now());
    // What was decided is kept in the status, and is acted upon.
    let is_decided = before.and_then(|before| before.rollout.as_ref()) == status.rollout.as_ref();
    let may_wait = failure.is_none() && is_decided;
    let later = context
        .tell(told, object.as_ref(), (before, &status), may_wait)
        .await?;
    let next = match course {
        Some(Course::Try) => Some(TRIAL),
        _ => count.map(|_| scale::PERIOD),
    };
    let next = next.or_else(|| context.uncertified_in(&owner, services));
    context.ended(object.as_ref(), failure, later.or(next))
}

/// How long an endpoint stays that was `deleted` by the API server's clock, it being `now` by this
/// process's, and that this process has known to leave `for` so long. Clocks may differ by hours:
/// what this process has seen itself bounds it.
fn left(deleted: Timestamp, now: Timestamp, known_for: Duration) -> Duration {
    let gone_for = Duration::try_from(now.duration_since(deleted)).unwrap_or_default();
    DRAIN.saturating_sub(gone_for.max(known_for))
}

impl Context {
    /// One look at an endpoint that was `deleted` then: it goes as soon as it may.
    async fn let_go(
        &self,
        object: &SpeculationEndpoint,
        deleted: Timestamp,
    ) -> Result<Action, Failure> {
        let left = left(deleted, Timestamp::now(), self.leaving_for(object));
        if left.is_zero() || !self.is_named(object) || self.is_left(object) {
            self.endpoints.forget(object);
            self.forget(object);
            self.hold(object, false).await?;
            return Ok(Action::await_change());
        }
        Ok(Action::requeue(left.min(HEARD)))
    }

    /// How long this process has known that an endpoint leaves.
    fn leaving_for(&self, object: &SpeculationEndpoint) -> Duration {
        let now = Instant::now();
        let mut leaving = self.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        leaving.retain(|_, since| now - *since < 40 * DRAIN);
        let since = leaving
            .entry(object.uid().unwrap_or_default())
            .or_insert(now);
        now - *since
    }

    /// Whether its replicas say that nobody is connected to them.
    fn is_left(&self, object: &SpeculationEndpoint) -> bool {
        let owner = Owner::new(Kind::SpeculationEndpoint, &object.metadata);
        let figures = self.hearsay.endpoint(&owner.named());
        figures.is_some_and(|told| told.heard > 0 && told.consumers.is_empty())
    }

    /// How many drafts there should be, if that follows the load.
    fn count_of(
        &self,
        object: &SpeculationEndpoint,
        owner: &Owner,
        drafts: &Drafts,
    ) -> Option<Advice> {
        let scaling = object.spec.scaling.as_ref()?;
        // Two revisions are compared under one load; it is followed again after that.
        if let Some(both) = drafts.while_compared(scaling.min) {
            return Some(Advice::of(both));
        }
        let figures = self.hearsay.endpoint(&owner.named());
        let pool = Pool {
            component: DRAFT,
            scaling,
            current: drafts.serving().map(|live| live.wanted),
            pressure: figures.and_then(|told| scale::of_drafts(scaling.metric, &told)),
        };
        Some(self.scaled(object, pool))
    }

    /// Whether this version serves it.
    fn accepted(&self, object: &SpeculationEndpoint) -> Result<(), Refused> {
        let profile = self.profile(object.spec.accelerator.as_ref())?;
        accept::endpoint(object, profile.as_deref())
            .map_err(|refusal| refused(refusal.reason, &refusal))
    }

    fn wanted_of_endpoint(
        &self,
        object: &SpeculationEndpoint,
        rolled: &Rolled,
        count: Option<u32>,
    ) -> Result<Vec<Object>, Refused> {
        let serving = rolled.serving(object);
        // What it serves with while another revision is tried may be gone meanwhile.
        self.accepted(&serving)?;
        let profile = self.profile(serving.spec.accelerator.as_ref())?;
        let tried = self.profile(object.spec.accelerator.as_ref())?;
        let split = rolled.split();
        let given = GivenToEndpoint {
            profile: profile.as_deref(),
            grants: self.world.granted(object),
            drafts: split.map(|split| split.old).or(count),
            canary: split.map(|split| Canary {
                spec: &object.spec,
                profile: tried.as_deref(),
                replicas: split.new,
            }),
        };
        build::endpoint(&serving, &given, &self.settings)
            .map_err(|error| refused("InvalidTemplate", format!("spec.{error}")))
    }

    /// Who may use an endpoint is carried out though nothing else of it is: what it was before serves
    /// on, and a grant that was revoked must not.
    async fn hold_to_grants(
        &self,
        object: &SpeculationEndpoint,
        owner: &Owner,
    ) -> Result<(), Failure> {
        if self.world.is_new(owner) {
            return Ok(());
        }
        let access = build::access(object, &self.world.granted(object));
        let mut written = Written::default();
        let (client, world) = (&self.client, &self.world);
        let applied = apply::apply_some(client, world, owner, &access, &mut written).await;
        self.announce_written(object, owner, written).await;
        applied
    }

    /// Whether a deployment names an endpoint that is being deleted, so that its targets may draft
    /// with it still.
    fn is_named(&self, object: &SpeculationEndpoint) -> bool {
        let deployments = self.world.deployments.state();
        deployments
            .iter()
            .any(|deployment| crate::resolve::names(deployment, object))
    }

    /// Sets or takes away the finalizer.
    async fn hold(&self, object: &SpeculationEndpoint, hold: bool) -> Result<(), Failure> {
        let held = object.finalizers();
        if held.iter().any(|known| known == FINALIZER) == hold {
            return Ok(());
        }
        let others = held.iter().filter(|known| *known != FINALIZER).cloned();
        let mut finalizers: Vec<String> = others.collect();
        finalizers.extend(hold.then(|| FINALIZER.to_owned()));
        let patch = json!({"metadata": {
            "finalizers": finalizers,
            // Somebody else's finalizers are not lost.
            "resourceVersion": object.resource_version(),
        }});
        let name = object.name_any();
        let namespace = object.namespace().unwrap_or_default();
        let api: Api<SpeculationEndpoint> = Api::namespaced(self.client.clone(), &namespace);
        let params = PatchParams {
            field_manager: Some(OPERATOR.to_owned()),
            ..PatchParams::default()
        };
        // The answer is of no use, and may be one that is not understood.
        let patch = Patch::Merge(&patch);
        match api.patch_metadata(&name, &params, &patch).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if !hold && status.is_not_found() => Ok(()),
            Err(source) => Err(Failure::Api {
                what: format!("change the finalizers of {namespace}/{name}"),
                source,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).expect("a time")
    }

    #[test]
    fn a_drain_ends_after_its_time_whatever_clocks_say() {
        let seconds = Duration::from_secs;
        assert_eq!(left(at(0), at(0), seconds(0)), DRAIN);
        assert_eq!(left(at(0), at(30), seconds(30)), seconds(60));
        assert_eq!(left(at(0), at(90), seconds(0)), Duration::ZERO);
        // The API server's clock is an hour ahead.
        assert_eq!(left(at(3600), at(0), seconds(89)), seconds(1));
        assert_eq!(left(at(3600), at(0), seconds(90)), Duration::ZERO);
        // An operator that was away finds that the time is over.
        assert_eq!(left(at(0), at(7200), seconds(0)), Duration::ZERO);
    }
}
