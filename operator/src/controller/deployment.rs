//! One look at a `SpecDecodeDeployment`.

use std::{collections::BTreeSet, sync::Arc};

use foretoken_crds::{
    Kind, SpecDecodeDeployment,
    object::{name, namespace},
    status::UsedEndpoint,
};
use k8s_openapi::jiff::Timestamp;
use kube::runtime::controller::Action;

use super::{
    Brought, Context, refused,
    scale::{Advice, Pool},
};
use crate::{
    accept,
    build::{self, DRAFT, Given, ROUTER, TARGET},
    failure::Failure,
    object::{Object, Owner},
    resolve::{self, Found, Known, Resolved},
    scale,
    status::{self, Observed, Refused},
    world::Unclear,
};

/// Brings a cluster to what `object` says, and tells what was observed.
pub(super) async fn reconcile(
    object: Arc<SpecDecodeDeployment>,
    context: Arc<Context>,
) -> Result<Action, Failure> {
    if object.metadata.deletion_timestamp.is_some() {
        // Its objects go with it: it owns them.
        context.deployments.forget(object.as_ref());
        context.forget(object.as_ref());
        return Ok(Action::await_change());
    }
    let owner = Owner::new(Kind::SpecDecodeDeployment, &object.metadata);
    let resolved = context.resolve(&object);
    let unclear = Unclear::of(&object.metadata);
    let (targets, wanted) = match &unclear {
        // What else it says nobody here knows: all that was made for it stays as it is.
        Some(unclear) if unclear.is_in_parts => (None, Err(unclear.refused())),
        _ => {
            let targets = context.targets_of(&object, &owner);
            let count = targets.as_ref().map(|advice| advice.replicas);
            let wanted = context.wanted_of_deployment(&object, &resolved, count);
            (targets, wanted)
        }
    };
    let services = &[TARGET, ROUTER];
    let brought = context
        .bring(object.as_ref(), &owner, services, wanted)
        .await;
    let scaling = targets.is_some();
    context
        .announce_scaled(object.as_ref(), targets, &brought)
        .await;
    let [target, router] = [TARGET, ROUTER]
        .map(|component| brought.known(component, context.component(&owner, component)));
    let Brought {
        refused, failure, ..
    } = brought;
    let refused = unclear.map(|unclear| unclear.refused()).or(refused);
    let used = resolved.found.iter().map(|found| context.used(found));
    let observed = Observed {
        endpoints: used.collect(),
        target,
        revisions: context.served_by(&owner),
        router,
        namesakes: context.world.namesakes(&object),
        figures: context.hearsay.deployment(&owner.named()),
        selectors: [owner.selector_text(TARGET), owner.selector_text(ROUTER)],
        is_simulated: context.is_simulated(object.spec.target.accelerator.as_ref()),
        failing: context.failing(object.as_ref(), failure.as_ref(), refused.as_ref()),
        resolved,
        refused,
    };
    let told = &context.deployments;
    let before = told.before(object.as_ref(), object.status.as_ref());
    let before = before.as_deref();
    let status = status::deployment(&object, before, &observed, Timestamp::now());
    let may_wait = failure.is_none();
    let later = context
        .tell(told, object.as_ref(), (before, &status), may_wait)
        .await?;
    let again = later.or(scaling.then_some(scale::PERIOD));
    let again = again.or_else(|| context.uncertified_in(&owner, services));
    context.ended(object.as_ref(), failure, again)
}

impl Context {
    /// What the sources of `object` mean now.
    pub(super) fn resolve(&self, object: &SpecDecodeDeployment) -> Resolved {
        let labels = self.world.namespace_labels(namespace(&object.metadata));
        let labels = labels.unwrap_or_default();
        let known = Known {
            endpoints: &self.world.endpoints.state(),
            labels: &labels,
        };
        resolve::resolve(object, &known)
    }

    /// How many targets there should be, if that follows the load.
    fn targets_of(&self, object: &SpecDecodeDeployment, owner: &Owner) -> Option<Advice> {
        let scaling = object.spec.target.scaling.as_ref()?;
        let figures = self.hearsay.deployment(&owner.named());
        let pool = Pool {
            component: TARGET,
            scaling,
            current: self.component(owner, TARGET).map(|live| live.wanted),
            pressure: figures.and_then(|told| scale::of_targets(scaling.metric, &told.load)),
        };
        Some(self.scaled(object, pool))
    }

    fn wanted_of_deployment(
        &self,
        object: &SpecDecodeDeployment,
        resolved: &Resolved,
        targets: Option<u32>,
    ) -> Result<Vec<Object>, Refused> {
        let profile = self.profile(object.spec.target.accelerator.as_ref())?;
        let groups = self.world.groups();
        accept::deployment(object, profile.as_deref())
            .and_then(|()| accept::group(object, profile.as_deref(), groups))
            .map_err(|refusal| refused(refusal.reason, &refusal))?;
        let given = Given {
            profile: profile.as_deref(),
            endpoints: &resolved.found,
            targets,
        };
        build::deployment(object, given, &self.settings)
            .map_err(|error| refused("InvalidTemplate", format!("spec.{error}")))
    }

    /// Revisions that targets which are ready have.
    fn served_by(&self, owner: &Owner) -> BTreeSet<String> {
        let targets = self.world.pods_of(owner, TARGET);
        targets
            .iter()
            .filter_map(|pod| pod.serves.clone())
            .collect()
    }

    fn used(&self, found: &Found) -> UsedEndpoint {
        let Found {
            namespace, name, ..
        } = found;
        let draft = self.workload(namespace, &format!("{name}-{DRAFT}"));
        UsedEndpoint {
            namespace: namespace.clone(),
            name: name.clone(),
            ready: draft.is_some_and(|draft| draft.ready > 0),
            ..UsedEndpoint::default()
        }
    }

    /// Deployments that may use the endpoint of that name now.
    pub(super) fn has_consumers(&self, endpoint: &foretoken_crds::SpeculationEndpoint) -> bool {
        let (place, called) = (namespace(&endpoint.metadata), name(&endpoint.metadata));
        self.world.deployments.state().iter().any(|deployment| {
            deployment.metadata.deletion_timestamp.is_none()
                && resolve::names(deployment, endpoint)
                && (self.resolve(deployment).found.iter())
                    .any(|found| found.namespace == place && found.name == called)
        })
    }
}
