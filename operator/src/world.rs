//! What the cluster has, as the operator sees it: kept up to date by watches, so that nothing is
//! asked for while nothing changes.

mod lenient;
mod offered;
mod owned;

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Debug,
    hash::Hash,
    sync::Arc,
};

use foretoken_crds::{
    AcceleratorProfile, SpecDecodeDeployment, SpeculationEndpoint,
    object::{Accelerator, name, namespace},
};
use foretoken_protocol::link::Grants;
use futures::{
    StreamExt as _,
    channel::mpsc::{self, UnboundedSender},
};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DynamicObject, PartialObjectMeta},
    runtime::{
        WatchStreamExt as _,
        reflector::{ObjectRef, Store, store::Writer, store::WriterDropped},
        watcher::{self, Config, Event},
    },
};
use serde::de::DeserializeOwned;
use tokio::{sync::watch, task::JoinSet};

use crate::{
    object::{
        APPLIED, COMPONENT, MANAGED_BY, Made, OF_DEPLOYMENT, OF_ENDPOINT, OPERATOR, Object, Owner,
    },
    resolve, status,
};
pub(crate) use offered::Offer;
use owned::{Owned, Sort};

/// Everything the operator watches.
#[derive(Clone)]
pub(crate) struct World {
    made: BTreeMap<Made, Store<DynamicObject>>,
    pub(crate) deployments: Store<SpecDecodeDeployment>,
    pub(crate) endpoints: Store<SpeculationEndpoint>,
    profiles: Store<AcceleratorProfile>,
    namespaces: Store<PartialObjectMeta<Namespace>>,
    pub(crate) pods: Store<Pod>,
    owned: Arc<Owned>,
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
        };
        let kinds = Made::ALL.into_iter();
        for kind in kinds.filter(|kind| *kind != Made::Certificate || with_cert_manager) {
            let told = offered.take_if(|_| kind == Made::LeaderWorkerSet);
            world.follow_made(client, bells, kind, told, tasks);
        }
        let owned = Arc::clone(&world.owned);
        let events = watcher::watcher(Api::all(client.clone()), ours()).modify(lean);
        let rung = bells.clone();
        let mut troubles = HashMap::new();
        tasks.spawn(follow(events, pods, move |object: &Pod, gone| {
            owned.note(Sort::Pod, object, gone);
            let trouble = status::of_pods([object]).filter(|_| !gone);
            let uid = object.uid().unwrap_or_default();
            let before = match trouble.clone() {
                Some(trouble) => troubles.insert(uid, trouble),
                None => troubles.remove(&uid),
            };
            if before != trouble {
                ring_owner(&rung, object);
            }
        }));
        let (misread, mut complaints) = mpsc::unbounded();
        let speaker = client.clone();
        tasks.spawn(async move {
            while let Some(misread) = complaints.next().await {
                lenient::complain(&speaker, misread).await;
            }
        });
        let all = |bells: &Bells| (world.clone(), bells.clone());
        let (seen, rung) = all(bells);
        let events = lenient::watch(client, misread.clone());
        let mut known = BTreeMap::new();
        tasks.spawn(follow(events, deployments, move |object, gone| {
            seen.touched_deployment(object, gone, &mut known, &rung);
        }));
        let (seen, rung) = all(bells);
        let events = lenient::watch(client, misread.clone());
        tasks.spawn(follow(events, endpoints, move |object, _| {
            seen.touched_endpoint(object, &rung);
        }));
        let (seen, rung) = all(bells);
        let events = lenient::watch(client, misread);
        tasks.spawn(follow(events, profiles, move |object, _| {
            seen.touched_profile(object, &rung);
        }));
        let (seen, rung) = all(bells);
        let names: Api<PartialObjectMeta<Namespace>> = Api::all(client.clone());
        let events = watcher::watcher(names, Config::default());
        tasks.spawn(follow(events, namespaces, move |object, _| {
            seen.touched_namespace(&object.name_any(), &rung);
        }));
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
        let resource = kind.resource();
        let writer = Writer::new(resource.clone());
        let seen = writer.as_reader();
        self.made.insert(kind, writer.as_reader());
        let api = Api::all_with(client.clone(), &resource);
        let ring = self.ring_deployments(bells);
        let (bells, owned) = (bells.clone(), Arc::clone(&self.owned));
        let touched = move |object: &DynamicObject, gone| {
            owned.note(Sort::Made(kind), object, gone);
            ring_owner(&bells, object);
        };
        let following = follow(watcher::watcher(api.clone(), ours()), writer, touched);
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
    pub(crate) fn made(&self, wanted: &Object) -> Option<Arc<DynamicObject>> {
        self.made_called(wanted.kind, &wanted.namespace, &wanted.name)
    }

    /// The object of that name, if the operator made it.
    pub(crate) fn made_called(
        &self,
        kind: Made,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<DynamicObject>> {
        let reference = ObjectRef::new_with(name, kind.resource()).within(namespace);
        self.made.get(&kind)?.get(&reference)
    }

    /// All objects of `kind` that were made for `owner`.
    pub(crate) fn made_for(&self, kind: Made, owner: &Owner) -> Vec<Arc<DynamicObject>> {
        let names = self.owned.of(owner, Sort::Made(kind)).into_iter();
        names
            .filter_map(|name| self.made_called(kind, &owner.namespace, &name))
            .collect()
    }

    /// The pods of a component that were made for `owner`.
    pub(crate) fn pods_of(&self, owner: &Owner, component: &str) -> Vec<Arc<Pod>> {
        let names = self.owned.of(owner, Sort::Pod).into_iter();
        let is_its = |pod: &Arc<Pod>| {
            pod.labels()
                .get(COMPONENT)
                .is_some_and(|it| it == component)
        };
        names
            .filter_map(|name| {
                self.pods
                    .get(&ObjectRef::new(&name).within(&owner.namespace))
            })
            .filter(is_its)
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
            if resolve::grants_by_labels(&found) {
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
    Config::default().labels(&format!("{MANAGED_BY}={OPERATOR}"))
}

/// What was made for somebody concerns whom it was made for.
fn ring_owner(bells: &Bells, object: &impl kube::ResourceExt) {
    let namespace = object.meta().namespace.as_deref().unwrap_or_default();
    if let Some(name) = object.labels().get(OF_DEPLOYMENT) {
        bells.deployment(name, namespace);
    }
    if let Some(name) = object.labels().get(OF_ENDPOINT) {
        bells.endpoint(name, namespace);
    }
}

/// Leaves of a pod what is looked at: whose it is, and how it is doing.
fn lean(pod: &mut Pod) {
    pod.spec = None;
    pod.metadata.annotations = None;
}

/// Keeps a store up to date, for ever, and tells of what was touched, and whether it is gone.
async fn follow<K>(
    events: impl futures::Stream<Item = watcher::Result<Event<K>>> + Send,
    mut writer: Writer<K>,
    mut touched: impl FnMut(&K, bool) + Send,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Clone + Eq + Hash,
{
    let lean = |object: &mut K| {
        // Half of an object's bytes, and nothing here reads it.
        object.meta_mut().managed_fields = None;
    };
    let mut events = Box::pin(events.default_backoff().modify(lean));
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                writer.apply_watcher_event(&event);
                match &event {
                    Event::Apply(object) | Event::InitApply(object) => touched(object, false),
                    Event::Delete(object) => touched(object, true),
                    Event::Init | Event::InitDone => {}
                }
            }
            Err(error) => tracing::warn!(%error, "a watch broke off and is started again"),
        }
    }
}

/// Digest of what was applied last.
pub(crate) fn applied(object: &DynamicObject) -> Option<&str> {
    object.annotations().get(APPLIED).map(String::as_str)
}
