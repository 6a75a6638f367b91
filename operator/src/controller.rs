//! Runs reconciliations: whoever is concerned by a change is brought to what it says, one at a time
//! each, several at once.

mod certified;
mod deployment;
mod endpoint;
mod rollout;
mod scale;
mod told;

use std::{
    collections::HashMap,
    fmt::Display,
    future::Future,
    sync::Arc,
    sync::Mutex,
    sync::PoisonError,
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
        events::{Event, EventType, Recorder, Reporter},
        reflector::{ObjectRef, Store},
    },
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    Object, Owner, apply,
    apply::Written,
    build,
    certificates::{Certificates, Service},
    failure::{Failure, Retry},
    hearsay::{Hearsay, Whose},
    nudge,
    object::OPERATOR,
    scale::Scaler,
    settings::{self, Settings},
    status::{self, Change, HasConditions, Refused, Workload},
    world::{Bells, Unclear, World},
};
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
    /// The operator's own authority; none if certificates come from elsewhere.
    certificates: Option<Certificates>,
    /// Failures in a row, by object.
    failures: Mutex<HashMap<String, u32>>,
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
        failures: Mutex::default(),
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
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count = failures.entry(key.clone()).or_insert(0);
        *count = count.saturating_add(1);
        let pause = failure.retry().pause(*count);
        if failure.retry() != Retry::Conflict || *count > 3 {
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
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.remove(&key(object));
        Ok(Action::requeue(again.unwrap_or(RESYNC)))
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

    /// Tells people of changes. Nothing depends on it.
    async fn announce<K: Resource<DynamicType = ()>>(&self, object: &K, changes: Vec<Change>) {
        for change in changes {
            let Change {
                is_warning,
                reason,
                mut note,
            } = change;
            while note.len() > 1000 {
                note.pop();
            }
            let event = Event {
                type_: if is_warning {
                    EventType::Warning
                } else {
                    EventType::Normal
                },
                reason,
                note: Some(note),
                action: "Reconcile".to_owned(),
                secondary: None,
            };
            let published = self.recorder.publish(&event, &object.object_ref(&())).await;
            if let Err(error) = published {
                tracing::debug!(%error, "an event was not published");
            }
        }
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
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(refused) => {
                return Brought {
                    refused: Some(refused),
                    failure: uncertified,
                };
            }
        };
        match apply::apply(&self.client, &self.world, owner, &wanted).await {
            Ok(Written {
                applied,
                pruned,
                undone,
                is_remounted,
            }) => {
                if is_remounted {
                    nudge::nudge(&self.client, self.world.all_pods_of(owner)).await;
                }
                if applied + pruned > 0 {
                    let Owner {
                        namespace, name, ..
                    } = owner;
                    tracing::info!(namespace, name, applied, pruned, "brought to what it says");
                }
                self.announce_undone(object, undone).await;
                Brought {
                    failure: uncertified,
                    ..Brought::default()
                }
            }
            Err(failure) => {
                let blamed = failure.is_refusal();
                let refused = blamed.then(|| refused(failure.reason(), &failure));
                Brought {
                    refused,
                    failure: Some(failure),
                }
            }
        }
    }

    /// Sees to it that the components of `owner` have certificates, and that pods soon have new ones.
    async fn certify(&self, owner: &Owner, components: &[&'static str]) -> Result<(), Failure> {
        let mut is_written = self.world.take_renewal(owner);
        let (now, is_new) = (Timestamp::now(), self.world.is_new(owner));
        if let Some(certificates) = &self.certificates {
            for component in components {
                let service = Service { owner, component };
                let ensured = certificates.ensure(&self.client, &service, now, is_new);
                is_written |= ensured.await?;
            }
        }
        if is_written {
            nudge::nudge(&self.client, self.world.all_pods_of(owner)).await;
        }
        Ok(())
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

    /// Tells people that what they changed was put back.
    async fn announce_undone<K>(&self, object: &K, undone: Vec<String>)
    where
        K: Resource<DynamicType = ()>,
    {
        let change = |what: String| Change {
            is_warning: true,
            reason: "EditUndone".to_owned(),
            note: format!(
                "{what} was changed by somebody else and is put back: edit this object, or its \
                 template, instead"
            ),
        };
        let changes = undone.into_iter().map(change).collect();
        self.announce(object, changes).await;
    }
}

/// What became of what is wanted.
#[derive(Default)]
struct Brought {
    /// Why it is not acted upon.
    refused: Option<Refused>,
    /// What failed.
    failure: Option<Failure>,
}

/// The same for people.
fn refused(reason: &str, message: impl Display) -> Refused {
    Refused {
        reason: reason.to_owned(),
        message: message.to_string(),
    }
}
