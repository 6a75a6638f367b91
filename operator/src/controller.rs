//! Runs reconciliations: whoever is concerned by a change is brought to what it says, one at a time
//! each, several at once.

mod announce;
mod certified;
mod deployment;
mod endpoint;
mod failing;
mod rollout;
mod scale;
mod told;

use std::{
    collections::HashMap,
    fmt::Display,
    future::Future,
    sync::Arc,
    sync::Mutex,
    time::{Duration, Instant},
};

use foretoken_crds::{AcceleratorProfile, object::Accelerator};
use futures::{StreamExt as _, channel::mpsc, future::BoxFuture, stream};
use k8s_openapi::{NamespaceResourceScope, jiff::Timestamp};
use kube::{
    Client, Resource, ResourceExt as _,
    runtime::{
        Controller,
        controller::{Action, Config},
        events::{Recorder, Reporter},
        reflector::{ObjectRef, Store},
    },
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    Object, Owner,
    apply::{self, Written},
    build,
    certificates::{Certificates, Service},
    failure::{Failure, Retry},
    hearsay::{Hearsay, Whose},
    nudge,
    object::OPERATOR,
    scale::Scaler,
    settings::{self, Settings},
    status::{self, Failing, HasConditions, Refused, Workload},
    world::{Bells, Unclear, World},
};
use announce::Notes;
use failing::Failures;
use told::Told;

/// How often everything is looked at again though nothing told of a change.
const RESYNC: Duration = Duration::from_secs(600);
/// Most objects of a kind that are worked on at once.
const CONCURRENCY: u16 = 16;

/// What reconciliations share.
pub(crate) struct Context {
    client: Client,
    settings: Settings,
    world: World,
    hearsay: Hearsay,
    recorder: Recorder,
    notes: Mutex<Notes>,
    /// The operator's own authority; none if certificates come from elsewhere.
    certificates: Option<Certificates>,
    failures: Failures,
    /// What was advised of late for pools that follow the load, by object.
    scalers: Mutex<HashMap<String, Scaler>>,
    began: Instant,
    /// Since when endpoints are known to leave, by uid.
    leaving: Mutex<HashMap<String, Instant>>,
    deployments: Told<foretoken_crds::status::DeploymentStatus>,
    endpoints: Told<foretoken_crds::status::EndpointStatus>,
}

/// Runs until `stop`, and ends what is being done then.
/// Certificates are kept in `namespace`.
pub(crate) async fn run(
    client: Client,
    settings: Settings,
    namespace: &str,
    stop: CancellationToken,
) {
    let (deployments, deployment_bell) = mpsc::unbounded();
    let (endpoints, endpoint_bell) = mpsc::unbounded();
    let bells = Bells {
        deployments,
        endpoints,
    };
    let mut watches = JoinSet::new();
    let source = &settings.certificates;
    let with_cert_manager = matches!(source, settings::Certificates::CertManager(_));
    let is_own = *source == settings::Certificates::Own;
    let world = World::watch(&client, &bells, with_cert_manager, &mut watches);
    tokio::select! {
        seen = world.wait_until_seen() => if seen.is_err() { return },
        () = stop.cancelled() => return,
    }
    tracing::info!("all that exists has been seen");
    let hearsay = Hearsay::new();
    tokio::select! {
        () = hearsay.ask_first(&world, &bells) => {}
        () = stop.cancelled() => return,
    }
    let reporter = Reporter {
        controller: OPERATOR.to_owned(),
        instance: None,
    };
    let context = Arc::new(Context {
        certificates: is_own.then(|| Certificates::new(namespace)),
        recorder: Recorder::new(client.clone(), reporter),
        client,
        settings,
        notes: Mutex::default(),
        failures: Failures::default(),
        scalers: Mutex::default(),
        began: Instant::now(),
        leaving: Mutex::default(),
        deployments: Told::default(),
        endpoints: Told::default(),
        world: world.clone(),
        hearsay,
    });
    let controls = async {
        tokio::join!(
            control(
                world.endpoints,
                endpoint_bell,
                endpoint::reconcile,
                &context,
                &stop
            ),
            control(
                world.deployments,
                deployment_bell,
                deployment::reconcile,
                &context,
                &stop
            ),
        )
    };
    tokio::select! {
        _ = controls => {}
        () = context.hearsay.keep_asking(&context.world, &bells) => {}
    }
}

/// Reconciles the objects of one kind when their bell rings.
fn control<K, F>(
    store: Store<K>,
    bell: mpsc::UnboundedReceiver<ObjectRef<K>>,
    reconcile: fn(Arc<K>, Arc<Context>) -> F,
    context: &Arc<Context>,
    stop: &CancellationToken,
) -> BoxFuture<'static, ()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + Sync + 'static,
    K: DeserializeOwned,
    F: Future<Output = Result<Action, Failure>> + Send + 'static,
{
    let config = Config::default().concurrency(CONCURRENCY);
    let on_failure = |object: Arc<K>, failure: &Failure, context: Arc<Context>| {
        context.failed(object.as_ref(), failure)
    };
    // Watches are followed elsewhere, since one change concerns several kinds.
    let results = Controller::for_stream(stream::pending(), store)
        .with_config(config)
        .reconcile_on(bell)
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(reconcile, on_failure, context.clone());
    Box::pin(results.for_each(|_| std::future::ready(())))
}

/// Name of an object among all, for logs and counts.
fn key<K: Resource<DynamicType = ()>>(object: &K) -> String {
    ObjectRef::from(object).to_string()
}

impl Context {
    /// When an object that failed is tried again.
    fn failed<K: Resource<DynamicType = ()>>(&self, object: &K, failure: &Failure) -> Action {
        let key = key(object);
        let count = self.failures.count(&key, Instant::now());
        let pause = failure.retry().pause(count);
        if failure.retry() != Retry::Conflict || count > 3 {
            tracing::warn!(object = key, error = %failure, ?pause, "not done; tried again");
        }
        Action::requeue(pause)
    }

    /// An object was looked at: with this failure, or it is what it should be, and is looked at `again`
    /// so much later.
    fn ended<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        failure: Option<Failure>,
        again: Option<Duration>,
    ) -> Result<Action, Failure> {
        if let Some(failure) = failure {
            return Err(failure);
        }
        self.failures.end(&key(object));
        Ok(Action::requeue(again.unwrap_or(RESYNC)))
    }

    /// Forgets what failed of an object that goes, and what was advised for it.
    fn forget<K: Resource<DynamicType = ()>>(&self, object: &K) {
        self.failures.end(&key(object));
        self.forget_advice(object);
    }

    /// Writes a status if it is news, and tells people which conditions changed; or says how long it
    /// should wait for more, if it `may_wait`.
    async fn tell<K, S>(
        &self,
        told: &Told<S>,
        object: &K,
        (before, status): (Option<&S>, &S),
        may_wait: bool,
    ) -> Result<Option<Duration>, Failure>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + DeserializeOwned,
        S: HasConditions + Clone + PartialEq + Serialize,
    {
        if before == Some(status) {
            told.is_told(object);
            return Ok(None);
        }
        let known = before.map_or(&[][..], HasConditions::conditions);
        let is_urgent = status::is_urgent(known, status.conditions());
        let wait = told.wait(object, is_urgent, Instant::now());
        if let Some(wait) = wait.filter(|_| may_wait) {
            return Ok(Some(wait));
        }
        told.tell(&self.client, object, status).await?;
        let changes = status::changes(known, status.conditions());
        self.announce(object, changes).await;
        Ok(None)
    }

    /// Brings what was made for `object` to what is wanted, `services` having certificates before
    /// their pods start, and tells people what they had changed.
    async fn bring<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        owner: &Owner,
        services: &[&'static str],
        wanted: Result<Vec<Object>, Refused>,
    ) -> Brought {
        // Of what is not acted upon, what ran before goes on: for longer than its certificates last.
        let uncertified = if wanted.is_ok() || !self.world.is_new(owner) {
            self.certify(owner, services).await.err()
        } else {
            None
        };
        let (wanted, failure) = match (wanted, uncertified) {
            (Ok(_), Some(failure)) if failure.is_refusal() => return Brought::failed(failure),
            (Ok(wanted), failure) => (wanted, failure),
            (Err(refused), failure) => {
                return Brought {
                    refused: Some(refused),
                    failure,
                    ..Brought::default()
                };
            }
        };
        let mut written = Written::default();
        let applied = apply::apply(&self.client, &self.world, owner, &wanted, &mut written).await;
        let rolling = std::mem::take(&mut written.rolling);
        self.announce_written(object, owner, written).await;
        let brought = match applied {
            Ok(()) => Brought {
                failure,
                ..Brought::default()
            },
            Err(failure) => Brought::failed(failure),
        };
        Brought { rolling, ..brought }
    }

    /// What people are told of what failed of `object`, if that is not why it is `refused`.
    fn failing<K>(
        &self,
        object: &K,
        failure: Option<&Failure>,
        refused: Option<&Refused>,
    ) -> Option<Failing>
    where
        K: Resource<DynamicType = ()>,
    {
        let failure = failure.filter(|failure| refused.is_none() || !failure.is_refusal());
        let whose = (&*key(object), object.meta().generation);
        Some(self.failures.told(whose, failure?, Instant::now()))
    }

    /// Sees to it that the components of `owner` have certificates, and that pods soon have new ones.
    async fn certify(&self, owner: &Owner, components: &[&'static str]) -> Result<(), Failure> {
        let mut is_written = self.world.take_renewal(owner);
        let (now, is_new) = (Timestamp::now(), self.world.is_new(owner));
        let mut done = Ok(());
        if let Some(certificates) = &self.certificates {
            for component in components {
                let service = Service { owner, component };
                let ensured = certificates.ensure(&self.client, &service, now, is_new);
                match ensured.await {
                    Ok(written) => is_written |= written,
                    // The others have theirs all the same.
                    Err(failure) => done = done.and(Err(failure)),
                }
            }
        }
        if is_written {
            nudge::nudge(&self.client, self.world.all_pods_of(owner)).await;
        }
        done
    }

    /// The profile that is asked for, if it exists.
    fn profile(
        &self,
        asked: Option<&Accelerator>,
    ) -> Result<Option<Arc<AcceleratorProfile>>, Refused> {
        let found = self.world.profile(asked);
        let Some(profile) = &found else {
            return Ok(None);
        };
        match Unclear::of(&profile.metadata) {
            Some(unclear) if unclear.is_in_parts => {
                Err(unclear.profile_refused(&profile.name_any()))
            }
            _ => Ok(found),
        }
    }

    /// Whether what is asked for is only said to compute.
    fn is_simulated(&self, asked: Option<&Accelerator>) -> bool {
        let profile = self.world.profile(asked);
        profile.is_some_and(|profile| profile.is_simulated())
    }

    /// What the Deployment of that name says of its pods, if it exists.
    fn workload(&self, namespace: &str, name: &str) -> Option<Workload> {
        let live = self
            .world
            .made_called(crate::Made::Deployment, namespace, name)?;
        live.workload.as_deref().cloned()
    }

    /// The same of the `LeaderWorkerSet` of `owner`, if its targets span pods.
    fn groups(&self, owner: &Owner) -> Option<Workload> {
        let name = build::group_name(owner);
        let live = self
            .world
            .made_called(crate::Made::LeaderWorkerSet, &owner.namespace, &name)?;
        live.workload.as_deref().cloned()
    }

    /// The same of a component of `owner`, with what its pods say.
    fn component(&self, owner: &Owner, component: &str) -> Option<Workload> {
        let name = format!("{}-{component}", owner.name);
        let is_target = component == build::TARGET;
        let groups = is_target.then(|| self.groups(owner)).flatten();
        let mut workload = groups.or_else(|| self.workload(&owner.namespace, &name))?;
        let mut pods = self.world.pods_of(owner, component);
        if is_target {
            pods.extend(self.world.pods_of(owner, build::WORKER));
        }
        self.troubled(&mut workload, (owner, component), &pods);
        let whose = match component {
            build::TARGET => Whose::Deployment(owner.named()),
            build::DRAFT => Whose::Endpoint(owner.named()),
            _ => return Some(workload),
        };
        workload.fetching = self.hearsay.fetching(&whose);
        Some(workload)
    }
}

/// What became of what is wanted.
#[derive(Default)]
struct Brought {
    /// Why it is not acted upon.
    refused: Option<Refused>,
    /// What failed.
    failure: Option<Failure>,
    /// Components of which something that makes pods was written.
    rolling: Vec<String>,
}

impl Brought {
    fn failed(failure: Failure) -> Self {
        let blamed = failure.is_refusal();
        Self {
            refused: blamed.then(|| refused(failure.reason(), &failure)),
            failure: Some(failure),
            rolling: Vec::new(),
        }
    }

    fn rolls(&self, component: &str) -> bool {
        self.rolling.iter().any(|one| one == component)
    }

    /// What is known of the pods of `component`: of what was written a moment ago the cluster has seen
    /// nothing, whatever it said before.
    fn known(&self, component: &str, workload: Option<Workload>) -> Option<Workload> {
        let mut workload = workload?;
        workload.is_seen &= !self.rolls(component);
        Some(workload)
    }
}

/// The same for people.
fn refused(reason: &str, message: impl Display) -> Refused {
    Refused {
        reason: reason.to_owned(),
        message: message.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_a_moment_ago_is_not_settled_whatever_was_seen() {
        let settled = Workload {
            is_seen: true,
            ..Workload::default()
        };
        let brought = Brought {
            rolling: vec![build::TARGET.to_owned()],
            ..Brought::default()
        };
        let is_settled = |component| {
            let known = brought.known(component, Some(settled.clone()));
            known.map(|workload| workload.is_settled())
        };
        assert_eq!(is_settled(build::TARGET), Some(false));
        assert_eq!(is_settled(build::ROUTER), Some(true));
    }
}
