//! What a user of a cluster does and sees, for tests.

use std::{collections::BTreeMap, convert, path::PathBuf, sync::Arc, time::Duration};

use foretoken_crds::{Kind, SpecDecodeDeployment, SpeculationEndpoint};
use foretoken_operator::{
    Election, Made, OperateError, Options, Settings,
    object::{MANAGED_BY, OPERATOR},
    operate_on,
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Namespace, ResourceQuota, Service},
    events::v1::Event,
};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::control_plane::ControlPlane;

mod late;
mod pods;
mod users;
mod writes;

/// How long something may take to become so.
const PATIENCE: Duration = Duration::from_secs(60);
/// Who writes in this test, where the operator does not.
const USER: &str = "user";

/// A cluster as a user has it.
pub(crate) struct Cluster {
    client: Client,
    audit_log: PathBuf,
    kubeconfig: PathBuf,
}

/// A running operator.
pub(crate) struct Operator {
    stop: CancellationToken,
    task: JoinHandle<Result<(), OperateError>>,
}

impl Operator {
    /// Starts one among several.
    pub(crate) fn start(cluster: &Cluster, identity: &str) -> Self {
        Self::begin(cluster, Some(identity), convert::identity)
    }

    /// The same, but that it sees late what becomes of Deployments.
    pub(crate) fn start_with_late_deployments(cluster: &Cluster, identity: &str) -> Self {
        Self::begin(cluster, Some(identity), late::with_late_deployments)
    }

    /// Starts the only one: it waits for nobody.
    pub(crate) fn start_alone(cluster: &Cluster) -> Self {
        Self::begin(cluster, None, convert::identity)
    }

    fn begin(cluster: &Cluster, identity: Option<&str>, sees: fn(Client) -> Client) -> Self {
        let election = identity.map(|identity| Election {
            namespace: Some("default".into()),
            identity: identity.into(),
        });
        let options = Options {
            settings: Settings {
                certificates: foretoken_operator::Certificates::Own,
                image: "foretoken:1".into(),
                image_pull_policy: None,
                hub_endpoint: None,
            },
            election,
            ready: Arc::default(),
        };
        let stop = CancellationToken::new();
        let kubeconfig = cluster.kubeconfig.clone();
        let token = stop.clone();
        let task = tokio::spawn(async move {
            // A client of its own, that its writes are told from the test's.
            let client = client(&kubeconfig, OPERATOR).await;
            operate_on(sees(client), options, token).await
        });
        Self { stop, task }
    }

    /// Tells it to stop, and waits until it has.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.ended().await.unwrap();
    }

    /// Ends it where it stands, as when its process is killed.
    pub(crate) async fn cut_off(self) {
        self.task.abort();
        let ended = self.task.await;
        assert!(
            ended.is_err_and(|error| error.is_cancelled()),
            "it ended by itself"
        );
    }

    /// How it ends.
    pub(crate) async fn ended(self) -> Result<(), OperateError> {
        tokio::time::timeout(PATIENCE, self.task)
            .await
            .unwrap()
            .unwrap()
    }
}

/// A client that calls itself `agent`.
async fn client(kubeconfig: &PathBuf, agent: &str) -> Client {
    let file = Kubeconfig::read_from(kubeconfig).unwrap();
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(file, &options)
        .await
        .unwrap();
    let header = ("user-agent".parse().unwrap(), agent.parse().unwrap());
    config.headers.push(header);
    Client::try_from(config).unwrap()
}

impl Cluster {
    /// The cluster of a control plane.
    pub(crate) async fn connect(plane: &ControlPlane) -> Self {
        Self {
            client: client(&plane.kubeconfig(), USER).await,
            audit_log: plane.audit_log(),
            kubeconfig: plane.kubeconfig(),
        }
    }

    /// Installs the definitions of our kinds, and waits until they are served.
    pub(crate) async fn install_kinds(&self) {
        for kind in Kind::ALL {
            self.apply(&kind.yaml()).await;
        }
        let list = ListParams::default();
        let endpoints: Api<SpeculationEndpoint> = Api::all(self.client.clone());
        let deployments: Api<SpecDecodeDeployment> = Api::all(self.client.clone());
        let profiles: Api<foretoken_crds::AcceleratorProfile> = Api::all(self.client.clone());
        wait_for("the kinds", async || {
            let served =
                endpoints.list(&list).await.is_ok() && deployments.list(&list).await.is_ok();
            served && profiles.list(&list).await.is_ok()
        })
        .await;
    }

    /// What `kubectl apply --server-side -f` does.
    pub(crate) async fn apply(&self, text: &str) {
        self.try_apply(text).await.unwrap();
    }

    /// The same as soon as definitions allow it.
    pub(crate) async fn apply_when_valid(&self, text: &str) {
        wait_for("a newer definition", async || {
            self.try_apply(text).await.is_ok()
        })
        .await;
    }

    async fn try_apply(&self, text: &str) -> Result<(), kube::Error> {
        for document in text.split("---\n").filter(|text| text.contains("kind:")) {
            let value: Value = serde_saphyr::from_str(document).unwrap();
            let object: DynamicObject = serde_json::from_value(value).unwrap();
            let types = object.types.clone().unwrap();
            let (group, version) = types
                .api_version
                .split_once('/')
                .unwrap_or(("", &types.api_version));
            let resource = ApiResource {
                group: group.to_owned(),
                version: version.to_owned(),
                api_version: types.api_version.clone(),
                plural: format!("{}s", types.kind.to_lowercase()),
                kind: types.kind.clone(),
            };
            let api: Api<DynamicObject> = match object.namespace() {
                Some(namespace) => Api::namespaced_with(self.client.clone(), &namespace, &resource),
                None => Api::all_with(self.client.clone(), &resource),
            };
            let params = PatchParams::apply(USER).force();
            let applied = api
                .patch(&object.name_any(), &params, &Patch::Apply(&object))
                .await;
            applied?;
        }
        Ok(())
    }

    fn made(&self, kind: Made, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &kind.resource())
    }

    /// An object, if it exists.
    pub(crate) async fn get(
        &self,
        kind: Made,
        namespace: &str,
        name: &str,
    ) -> Option<DynamicObject> {
        match self.made(kind, namespace).get(name).await {
            // Its kind may not exist either.
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            found => Some(found.unwrap()),
        }
    }

    /// Waits until an object exists.
    pub(crate) async fn exists(&self, kind: Made, namespace: &str, name: &str) {
        self.becomes(kind, namespace, name, |_| true).await;
    }

    /// Waits until an object exists and is `so`.
    pub(crate) async fn becomes(
        &self,
        kind: Made,
        namespace: &str,
        name: &str,
        so: impl Fn(&DynamicObject) -> bool,
    ) {
        wait_for(&format!("{kind:?} {namespace}/{name}"), async || {
            self.get(kind, namespace, name)
                .await
                .is_some_and(|object| so(&object))
        })
        .await;
    }

    /// Waits until something is so.
    pub(crate) async fn wait(&self, what: &str, so: impl AsyncFn() -> bool) {
        wait_for(what, so).await;
    }

    /// Waits until an object does not exist.
    pub(crate) async fn is_gone(&self, kind: Made, namespace: &str, name: &str) {
        wait_for(&format!("no {kind:?} {namespace}/{name}"), async || {
            self.get(kind, namespace, name).await.is_none()
        })
        .await;
    }

    /// How many objects the operator has made.
    pub(crate) async fn count_made(&self) -> usize {
        let made = self.all_made().await;
        made.iter()
            .filter(|(kind, _)| *kind != Made::Secret)
            .count()
    }

    /// All that the operator has made, of kinds that this cluster has.
    pub(crate) async fn all_made(&self) -> Vec<(Made, DynamicObject)> {
        let ours = ListParams::default().labels(&format!("{MANAGED_BY}={OPERATOR}"));
        let mut all = Vec::new();
        let kinds = Made::ALL.into_iter().chain([Made::Secret]);
        let optional = [Made::Certificate, Made::LeaderWorkerSet];
        for kind in kinds.filter(|kind| !optional.contains(kind)) {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind.resource());
            let found = api.list(&ours).await.unwrap();
            all.extend(found.items.into_iter().map(|object| (kind, object)));
        }
        all
    }

    /// Changes an object that the operator made.
    pub(crate) async fn edit(&self, kind: Made, namespace: &str, name: &str, change: &Value) {
        let params = PatchParams::default();
        let edited = self
            .made(kind, namespace)
            .patch(name, &params, &Patch::Merge(change))
            .await;
        edited.unwrap();
    }

    /// Changes the status of an object that the operator made, as its controller would.
    pub(crate) async fn set_status(&self, kind: Made, namespace: &str, name: &str, status: &Value) {
        let params = PatchParams::default();
        let change = json!({"status": status});
        let api = self.made(kind, namespace);
        let changed = api
            .patch_status(name, &params, &Patch::Merge(&change))
            .await;
        changed.unwrap();
    }

    /// Deletes an object that the operator made.
    pub(crate) async fn delete_made(&self, kind: Made, namespace: &str, name: &str) {
        self.made(kind, namespace)
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Labels a namespace that shares drafts, or takes the label away.
    pub(crate) async fn label_namespace(&self, name: &str, drafts: &Value) {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let change = json!({"metadata": {"labels": {"drafts": drafts}}});
        let params = PatchParams::default();
        api.patch(name, &params, &Patch::Merge(&change))
            .await
            .unwrap();
    }

    /// Waits until people were told of this reason.
    pub(crate) async fn has_event(&self, namespace: &str, reason: &str) {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        wait_for(&format!("event {reason}"), async || {
            let events = api.list(&ListParams::default()).await.unwrap();
            events
                .iter()
                .any(|event| event.reason.as_deref() == Some(reason))
        })
        .await;
    }

    /// What people were told of this reason.
    pub(crate) async fn notes(&self, namespace: &str, reason: &str) -> Vec<String> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let events = api.list(&ListParams::default()).await.unwrap();
        let its = events.into_iter().filter(|event| {
            let is_ours = event.reporting_controller.as_deref() == Some(OPERATOR);
            is_ours && event.reason.as_deref() == Some(reason)
        });
        its.filter_map(|event| event.note).collect()
    }

    /// Waits until people were told of this reason with a note that has this part.
    pub(crate) async fn has_note(&self, namespace: &str, reason: &str, part: &str) {
        wait_for(&format!("event {reason}: {part}"), async || {
            let notes = self.notes(namespace, reason).await;
            notes.iter().any(|note| note.contains(part))
        })
        .await;
    }

    /// Allows no Services in a namespace beside those that there are, or any again.
    pub(crate) async fn allow_services(&self, namespace: &str, allowed: bool) {
        const NAME: &str = "no-services";
        let api: Api<ResourceQuota> = Api::namespaced(self.client.clone(), namespace);
        if allowed {
            api.delete(NAME, &DeleteParams::default()).await.unwrap();
            return;
        }
        let quota = json!({"metadata": {"name": NAME}, "spec": {"hard": {"services": "0"}}});
        let quota = serde_json::from_value(quota).unwrap();
        api.create(&PostParams::default(), &quota).await.unwrap();
        // As its controller would.
        let none = json!({"status": {"hard": {"services": "0"}, "used": {"services": "0"}}});
        let params = PatchParams::default();
        api.patch_status(NAME, &params, &Patch::Merge(&none))
            .await
            .unwrap();
        let service = json!({
            "metadata": {"name": "probe"},
            "spec": {"ports": [{"port": 1}], "clusterIP": "None"},
        });
        let service = serde_json::from_value(service).unwrap();
        let tried = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let api: Api<Service> = Api::namespaced(self.client.clone(), namespace);
        wait_for("a quota", async || {
            api.create(&tried, &service).await.is_err()
        })
        .await;
    }

    /// How often people were told, by reason, of each Event.
    pub(crate) async fn events(&self, namespace: &str) -> BTreeMap<String, Vec<i32>> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let mut counts = BTreeMap::<String, Vec<i32>>::new();
        for event in api.list(&ListParams::default()).await.unwrap() {
            if event.reporting_controller.as_deref() == Some(OPERATOR) {
                let count = event.series.map_or(1, |series| series.count);
                let reason = event.reason.unwrap_or_default();
                counts.entry(reason).or_default().push(count);
            }
        }
        counts
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), "default")
    }

    /// Waits until the operator of this identity works.
    pub(crate) async fn has_lease(&self, identity: &str) {
        wait_for(&format!("lease of {identity}"), async || {
            let lease = self.leases().get_opt(OPERATOR).await.unwrap();
            let holder = lease.and_then(|lease| lease.spec?.holder_identity);
            holder.as_deref() == Some(identity)
        })
        .await;
    }

    /// Writes another holder into the lease.
    pub(crate) async fn steal_lease(&self, identity: &str) {
        let change = json!({"spec": {"holderIdentity": identity}});
        let params = PatchParams::default();
        self.leases()
            .patch(OPERATOR, &params, &Patch::Merge(&change))
            .await
            .unwrap();
    }
}

/// Waits until something is `so`.
async fn wait_for(what: &str, so: impl AsyncFn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !so().await {
        assert!(Instant::now() < until, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
