//! What the cluster has, as the operator sees it: kept up to date by watches, so that nothing is
//! asked for while nothing changes.

mod follow;
mod lenient;
mod live;
mod offered;
mod owned;
mod pod;
mod renewals;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use foretoken_crds::{
    AcceleratorProfile, SpecDecodeDeployment, SpeculationEndpoint,
    object::{Accelerator, name, namespace},
};
use foretoken_protocol::link::Grants;
use futures::{Stream, TryStreamExt as _, channel::mpsc::UnboundedSender};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::PartialObjectMeta,
    runtime::{
        WatchStreamExt as _,
        reflector::{ObjectRef, Store, store::Writer, store::WriterDropped},
        watcher::{self, Config, Event},
    },
};
use tokio::{sync::watch, task::JoinSet};

use crate::{
    figures::Named,
    object::{MANAGED_BY, Made, OF_DEPLOYMENT, OF_ENDPOINT, OPERATOR, Object, Owner},
    resolve,
};
use follow::{Touch, follow, unlisted};
pub(crate) use offered::Offer;
use owned::{Owned, Sort};

pub(crate) use lenient::Unclear;
pub(crate) use live::Live;
pub(crate) use pod::{KnownPod, trouble};
use renewals::Renewals;

/// Objects of a page of what exists: a page is in memory whole.
const PAGE: u32 = 100;
/// Longest wait for watches to show what was written; later than that it is written again. Two seconds were too
/// few on a machine with as much else to do as it has while a control plane starts on it.
const LATE: Duration = Duration::from_secs(10);
/// Annotation in which `kubectl apply` keeps a copy of what it was given.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Everything the operator watches.
#[derive(Clone)]
pub(crate) struct World {
    made: BTreeMap<Made, Store<Live>>,
    pub(crate) deployments: Store<SpecDecodeDeployment>,
    pub(crate) endpoints: Store<SpeculationEndpoint>,
    profiles: Store<AcceleratorProfile>,
    namespaces: Store<PartialObjectMeta<Namespace>>,
    pub(crate) pods: Store<KnownPod>,
    owned: Arc<Owned>,
    renewals: Arc<Mutex<Renewals>>,
    /// Whenever something that was made has come, changed or gone.
    touched: Arc<watch::Sender<()>>,
    /// Whether there are `LeaderWorkerSets`.
    groups: watch::Receiver<Offer>,
}

/// Where objects are told that they have something to do.
#[derive(Clone)]
pub(crate) struct Bells {
    pub(crate) deployments: UnboundedSender<ObjectRef<SpecDecodeDeployment>>,
    pub(crate) endpoints: UnboundedSender<ObjectRef<SpeculationEndpoint>>,
}

impl Bells {
    // Nobody is there to hear only when the operator is about to end.
    pub(crate) fn deployment(&self, name: &str, namespace: &str) {
        let _ = self
            .deployments
            .unbounded_send(ObjectRef::new(name).within(namespace));
    }

    pub(crate) fn endpoint(&self, name: &str, namespace: &str) {
        let _ = self
            .endpoints
            .unbounded_send(ObjectRef::new(name).within(namespace));
    }

    /// What was made for somebody concerns whom it was made for: the one of that name, by a label.
    fn owner(&self, label: &str, name: &str, namespace: &str) {
        match label {
            OF_DEPLOYMENT => self.deployment(name, namespace),
            OF_ENDPOINT => self.endpoint(name, namespace),
            _ => {}
        }
    }
}

impl World {
    /// Starts the watches as tasks of `tasks`. What changes rings the bells of whom it concerns.
    pub(crate) fn watch(
        client: &Client,
        bells: &Bells,
        with_cert_manager: bool,
        tasks: &mut JoinSet<()>,
    ) -> Self {
        let deployments = Writer::default();
        let endpoints = Writer::default();
        let profiles = Writer::default();
        let namespaces = Writer::default();
        let pods = Writer::default();
        let (offered, groups) = watch::channel(Offer::Unknown);
        let mut offered = Some(offered);
        let mut world = Self {
            groups,
            made: BTreeMap::new(),
            deployments: deployments.as_reader(),
            endpoints: endpoints.as_reader(),
            profiles: profiles.as_reader(),
            namespaces: namespaces.as_reader(),
            pods: pods.as_reader(),
            owned: Arc::default(),
            renewals: Arc::default(),
            touched: Arc::default(),
        };
        let kinds = Made::ALL.into_iter();
        for kind in kinds.filter(|kind| *kind != Made::Certificate || with_cert_manager) {
            let told = offered.take_if(|_| kind == Made::LeaderWorkerSet);
            world.follow_made(client, bells, kind, told, tasks);
        }
        let owned = Arc::clone(&world.owned);
        let events = watcher::watcher(Api::<Pod>::all(client.clone()), ours());
        let events = events.map_ok(|event| map(event, KnownPod::of));
        let rung = bells.clone();
        let mut news = HashMap::new();
        tasks.spawn(follow(events, pods, move |pod: &KnownPod, touch| {
            let KnownPod {
                namespace, name, ..
            } = pod;
            let gone = touch == Touch::Gone;
            for (label, owner) in pod.made_for.iter() {
                owned.note(label, (namespace, owner), (Sort::Pod, name), gone);
            }
            if touch == Touch::Listed {
                return;
            }
            let now = (pod.serves.clone(), pod.trouble.clone());
            let now = Some(now).filter(|now| !gone && *now != (None, None));
            let before = match now.clone() {
                Some(now) => news.insert(pod.uid.clone(), now),
                None => news.remove(&pod.uid),
            };
            if before != now {
                for (label, owner) in pod.made_for.iter() {
                    rung.owner(label, owner, namespace);
                }
            }
        }));
        let all = |bells: &Bells| (world.clone(), bells.clone());
        let (seen, rung) = all(bells);
        let events = lean(lenient::watch(client, deployments.as_reader()));
        let mut known = BTreeMap::new();
        let touched =
            move |object: &_, gone: bool| seen.touched_deployment(object, gone, &mut known, &rung);
        tasks.spawn(follow(events, deployments, unlisted(touched)));
        let (seen, rung) = all(bells);
        let events = lean(lenient::watch(client, endpoints.as_reader()));
        let touched = move |object: &_, _: bool| seen.touched_endpoint(object, &rung);
        tasks.spawn(follow(events, endpoints, unlisted(touched)));
        let (seen, rung) = all(bells);
        let events = lean(lenient::watch(client, profiles.as_reader()));
        let touched = move |object: &_, _: bool| seen.touched_profile(object, &rung);
        tasks.spawn(follow(events, profiles, unlisted(touched)));
        let (seen, rung) = all(bells);
        let names: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
        let events = lean(watcher::watcher(names, Config::default()));
        let touched = move |object: &PartialObjectMeta<Namespace>, _: bool| {
            seen.touched_namespace(&object.name_any(), &rung);
        };
        tasks.spawn(follow(events, namespaces, unlisted(touched)));
        world
    }

    /// Follows the objects of `kind` that were made; whether a cluster has a kind that it may not have
    /// is `told`.
    fn follow_made(
        &mut self,
        client: &Client,
        bells: &Bells,
        kind: Made,
        told: Option<watch::Sender<Offer>>,
        tasks: &mut JoinSet<()>,
    ) {
        let writer = Writer::new(kind);
        let seen = writer.as_reader();
        self.made.insert(kind, writer.as_reader());
        let api = Api::all_with(client.clone(), &kind.resource());
        let ring = self.ring_deployments(bells);
        let (bells, owned) = (bells.clone(), Arc::clone(&self.owned));
        let renewals = Arc::clone(&self.renewals);
        let told_of = Arc::clone(&self.touched);
        let touched = move |object: &Live, touch| {
            let gone = touch == Touch::Gone;
            let Live {
                namespace, name, ..
            } = object;
            if kind == Made::Certificate {
                let mut renewals = renewals.lock().unwrap_or_else(PoisonError::into_inner);
                renewals.note(object, gone);
            }
            for (label, owner) in object.made_for.iter() {
                owned.note(label, (namespace, owner), (Sort::Made(kind), name), gone);
                if touch != Touch::Listed {
                    bells.owner(label, owner, namespace);
                }
            }
            told_of.send_replace(());
        };
        let events = watcher::watcher(api.clone(), ours());
        let events = events.map_ok(move |event| map(event, |object| Live::of(kind, object)));
        let following = follow(events, writer, touched);
        match told {
            Some(told) => tasks.spawn(offered::follow(api, following, seen, told, ring)),
            None => tasks.spawn(following),
        };
    }

    /// Waits until all that exists has been seen once: before that, what is missing here may exist.
    pub(crate) async fn wait_until_seen(&self) -> Result<(), WriterDropped> {
        for (kind, store) in &self.made {
            if *kind != Made::LeaderWorkerSet {
                store.wait_until_ready().await?;
            }
        }
        // Whoever looks ends with the watches.
        let mut groups = self.groups.clone();
        let _ = groups.wait_for(|offer| *offer != Offer::Unknown).await;
        self.deployments.wait_until_ready().await?;
        self.endpoints.wait_until_ready().await?;
        self.profiles.wait_until_ready().await?;
        self.pods.wait_until_ready().await?;
        self.namespaces.wait_until_ready().await
    }

    /// Waits until what was made is seen so, as long as that makes sense.
    pub(crate) async fn wait_for(&self, is_seen: impl Fn() -> bool) {
        let mut touched = self.touched.subscribe();
        let seen = touched.wait_for(|()| is_seen());
        if tokio::time::timeout(LATE, seen).await.is_err() {
            tracing::debug!("watches are late");
        }
    }

    /// Whether there are `LeaderWorkerSets`.
    pub(crate) fn groups(&self) -> Offer {
        *self.groups.borrow()
    }

    /// What lets all deployments be looked at.
    fn ring_deployments(&self, bells: &Bells) -> impl Fn() + Send + Sync + use<> {
        let (deployments, bells) = (self.deployments.clone(), bells.clone());
        move || {
            for found in deployments.state() {
                bells.deployment(&found.name_any(), namespace(&found.metadata));
            }
        }
    }

    /// The object that is called as `wanted` is, if the operator made it.
    pub(crate) fn made(&self, wanted: &Object) -> Option<Arc<Live>> {
        self.made_called(wanted.kind, &wanted.namespace, &wanted.name)
    }

    /// The object of that name, if the operator made it.
    pub(crate) fn made_called(&self, kind: Made, namespace: &str, name: &str) -> Option<Arc<Live>> {
        let reference = ObjectRef::new_with(name, kind).within(namespace);
        self.made.get(&kind)?.get(&reference)
    }

    /// All objects of `kind` that were made for `owner`.
    pub(crate) fn made_for(&self, kind: Made, owner: &Owner) -> Vec<Arc<Live>> {
        let names = self.owned.of(owner, Sort::Made(kind)).into_iter();
        names
            .filter_map(|name| self.made_called(kind, &owner.namespace, &name))
            .filter(|live| live.is_for(owner))
            .collect()
    }

    /// Whether nothing was made for `owner` yet, as far as it is seen.
    pub(crate) fn is_new(&self, owner: &Owner) -> bool {
        self.owned.is_empty(owner)
    }

    /// Whether cert-manager has issued a certificate of `owner` anew since this was asked last.
    pub(crate) fn take_renewal(&self, owner: &Owner) -> bool {
        let mut renewals = self.renewals.lock().unwrap_or_else(PoisonError::into_inner);
        renewals.take(owner)
    }

    /// The pods of a component that were made for `owner`.
    pub(crate) fn pods_of(&self, owner: &Owner, component: &str) -> Vec<Arc<KnownPod>> {
        let mut pods = self.all_pods_of(owner);
        pods.retain(|pod| pod.component.as_deref() == Some(component));
        pods
    }

    /// All pods that were made for `owner`.
    pub(crate) fn all_pods_of(&self, owner: &Owner) -> Vec<Arc<KnownPod>> {
        let names = self.owned.of(owner, Sort::Pod).into_iter();
        names
            .filter_map(|name| {
                self.pods
                    .get(&ObjectRef::new(&name).within(&owner.namespace))
            })
            .collect()
    }

    /// Other deployments of its namespace that serve a model of the same name.
    pub(crate) fn namesakes(&self, object: &SpecDecodeDeployment) -> Vec<String> {
        let (own, place) = (name(&object.metadata), namespace(&object.metadata));
        let is_namesake = |other: &SpecDecodeDeployment| {
            namespace(&other.metadata) == place
                && name(&other.metadata) != own
                && other.served_name() == object.served_name()
                && other.metadata.deletion_timestamp.is_none()
        };
        let found = self.deployments.state_filter(is_namesake);
        let mut names: Vec<String> = found.iter().map(|other| other.name_any()).collect();
        names.sort();
        names
    }

    /// The profile that is asked for, if it exists.
    pub(crate) fn profile(&self, asked: Option<&Accelerator>) -> Option<Arc<AcceleratorProfile>> {
        let name = asked?.profile.as_deref()?;
        self.profiles.get(&ObjectRef::new(name))
    }

    /// Labels of a namespace, if it exists.
    pub(crate) fn namespace_labels(&self, name: &str) -> Option<BTreeMap<String, String>> {
        let found = self.namespaces.get(&ObjectRef::new(name))?;
        Some(found.labels().clone())
    }

    /// Whether a deployment means an endpoint, and may use it, as namespaces are now.
    pub(crate) fn uses(&self, deployment: &Named, endpoint: &Named) -> bool {
        let (user, name) = deployment;
        let deployment = self.deployments.get(&ObjectRef::new(name).within(user));
        let (namespace, name) = endpoint;
        let endpoint = self.endpoints.get(&ObjectRef::new(name).within(namespace));
        let (Some(deployment), Some(endpoint)) = (deployment, endpoint) else {
            return false;
        };
        let labels = self.namespace_labels(user).unwrap_or_default();
        resolve::names(&deployment, &endpoint) && endpoint.grants(user, &labels)
    }

    /// Who may use `endpoint`, as namespaces are now.
    pub(crate) fn granted(&self, endpoint: &SpeculationEndpoint) -> Grants {
        let all = self.namespaces.state();
        let all = all.iter().map(|found| (found.name_any(), found.labels()));
        resolve::granted(endpoint, all)
    }

    /// An edited deployment concerns the endpoints it means now, and those it meant before.
    fn touched_deployment(
        &self,
        object: &SpecDecodeDeployment,
        gone: bool,
        known: &mut BTreeMap<String, (Option<i64>, String)>,
        bells: &Bells,
    ) {
        let (name, namespace) = (name(&object.metadata), namespace(&object.metadata));
        bells.deployment(name, namespace);
        let key = format!("{namespace}/{name}");
        let leaving = gone || object.metadata.deletion_timestamp.is_some();
        let generation = object.metadata.generation.filter(|_| !leaving);
        let now = (generation, object.served_name().to_owned());
        let before = known.insert(key.clone(), now.clone());
        if !gone && before.as_ref() == Some(&now) {
            return;
        }
        if gone {
            known.remove(&key);
        }
        let before = before.map(|(_, served)| served);
        for other in self.deployments.state() {
            let served = other.served_name();
            let is_namesake = served == now.1 || Some(served) == before.as_deref();
            if is_namesake && foretoken_crds::object::namespace(&other.metadata) == namespace {
                bells.deployment(&other.name_any(), namespace);
            }
        }
        for endpoint in self.endpoints.state() {
            let held = !endpoint.finalizers().is_empty();
            if held || resolve::names(object, &endpoint) {
                bells.endpoint(
                    &endpoint.name_any(),
                    foretoken_crds::object::namespace(&endpoint.metadata),
                );
            }
        }
    }

    /// A namespace concerns its deployments, and the endpoints that its labels may grant it, or not any
    /// more.
    fn touched_namespace(&self, name: &str, bells: &Bells) {
        for found in self.deployments.state() {
            if namespace(&found.metadata) == name {
                bells.deployment(&found.name_any(), name);
            }
        }
        for found in self.endpoints.state() {
            if found.grants_by_labels() {
                bells.endpoint(&found.name_any(), namespace(&found.metadata));
            }
        }
    }

    /// An endpoint concerns itself and the deployments that name it.
    fn touched_endpoint(&self, object: &SpeculationEndpoint, bells: &Bells) {
        bells.endpoint(name(&object.metadata), namespace(&object.metadata));
        for deployment in self.deployments.state() {
            if resolve::names(&deployment, object) {
                bells.deployment(&deployment.name_any(), namespace(&deployment.metadata));
            }
        }
    }

    /// A profile concerns whoever asks for it.
    fn touched_profile(&self, object: &AcceleratorProfile, bells: &Bells) {
        let asks = |asked: Option<&Accelerator>| {
            let named = asked.and_then(|asked| asked.profile.as_deref());
            named.is_some() && named == object.metadata.name.as_deref()
        };
        for found in self.deployments.state() {
            if asks(found.spec.target.accelerator.as_ref()) {
                bells.deployment(&found.name_any(), namespace(&found.metadata));
            }
        }
        for found in self.endpoints.state() {
            if asks(found.spec.accelerator.as_ref()) {
                bells.endpoint(&found.name_any(), namespace(&found.metadata));
            }
        }
    }
}

/// What the operator makes, and their pods.
fn ours() -> Config {
    Config::default()
        .labels(&format!("{MANAGED_BY}={OPERATOR}"))
        .page_size(PAGE)
}

/// The same without half of the bytes of its objects, which nothing here reads.
fn lean<K: Resource>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send {
    events.modify(|object| {
        let metadata = object.meta_mut();
        metadata.managed_fields = None;
        if let Some(annotations) = &mut metadata.annotations {
            annotations.remove(LAST_APPLIED);
        }
    })
}

/// The same event of what is kept of its object.
fn map<K, L>(event: Event<K>, kept: impl FnOnce(K) -> L) -> Event<L> {
    match event {
        Event::Apply(object) => Event::Apply(kept(object)),
        Event::Delete(object) => Event::Delete(kept(object)),
        Event::InitApply(object) => Event::InitApply(kept(object)),
        Event::Init => Event::Init,
        Event::InitDone => Event::InitDone,
    }
}
