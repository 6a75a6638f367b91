//! What a user of a cluster does and sees, for tests.

use std::{fs, net::IpAddr, path::PathBuf, sync::Arc, time::Duration};

use foretoken_crds::{
    Kind, SpecDecodeDeployment, SpeculationEndpoint,
    status::{DeploymentStatus, EndpointStatus, condition},
};
use foretoken_operator::{
    Election, Made, OperateError, Options, Settings,
    object::{COMPONENT, MANAGED_BY, OPERATOR},
    operate_on,
};
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Namespace, Pod},
        events::v1::Event,
    },
    apimachinery::pkg::apis::meta::v1::Condition,
};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::control_plane::ControlPlane;

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
    /// Starts one.
    pub(crate) fn start(cluster: &Cluster, identity: &str) -> Self {
        let options = Options {
            settings: Settings {
                certificates: foretoken_operator::Certificates::Own,
                image: "foretoken:1".into(),
                image_pull_policy: None,
            },
            election: Some(Election {
                namespace: Some("default".into()),
                identity: identity.into(),
            }),
            ready: Arc::default(),
        };
        let stop = CancellationToken::new();
        let kubeconfig = cluster.kubeconfig.clone();
        let token = stop.clone();
        let task = tokio::spawn(async move {
            // A client of its own, that its writes are told from the test's.
            let client = client(&kubeconfig, OPERATOR).await;
            operate_on(client, options, token).await
        });
        Self { stop, task }
    }

    /// Tells it to stop, and waits until it has.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.ended().await.unwrap();
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
            applied.unwrap();
        }
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
        let ours = ListParams::default().labels(&format!("{MANAGED_BY}={OPERATOR}"));
        let mut count = 0;
        let kinds = Made::ALL.into_iter();
        let optional = [Made::Certificate, Made::LeaderWorkerSet];
        for kind in kinds.filter(|kind| !optional.contains(kind)) {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind.resource());
            count += api.list(&ours).await.unwrap().items.len();
        }
        count
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

    fn deployments(&self, namespace: &str) -> Api<SpecDecodeDeployment> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn endpoints(&self, namespace: &str) -> Api<SpeculationEndpoint> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// The deployment `story`.
    pub(crate) async fn deployment(&self, namespace: &str) -> SpecDecodeDeployment {
        self.deployments(namespace).get("story").await.unwrap()
    }

    /// The endpoint `story`.
    pub(crate) async fn endpoint(&self, namespace: &str) -> SpeculationEndpoint {
        self.endpoints(namespace).get("story").await.unwrap()
    }

    /// Changes the deployment `story`.
    pub(crate) async fn patch_deployment(&self, namespace: &str, change: &Value) {
        let params = PatchParams::default();
        let patched = self
            .deployments(namespace)
            .patch("story", &params, &Patch::Merge(change))
            .await;
        patched.unwrap();
    }

    /// Changes the deployment `story` as soon as its definition allows that.
    pub(crate) async fn patch_deployment_when_valid(&self, namespace: &str, change: &Value) {
        let params = PatchParams::default();
        let api = self.deployments(namespace);
        wait_for("a newer definition", async || {
            // The answer may be one that this release does not understand either.
            let answer = api.patch("story", &params, &Patch::Merge(change)).await;
            !matches!(answer, Err(kube::Error::Api(_)))
        })
        .await;
    }

    /// Waits until a condition of the deployment `story` has this reason; its message. The object
    /// may be one that this release does not understand.
    pub(crate) async fn message_unread(&self, namespace: &str, reason: &str) -> String {
        let resource = ApiResource::erase::<SpecDecodeDeployment>(&());
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), namespace, &resource);
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(Instant::now() < until, "{namespace}/story: no {reason}");
            let object = api.get("story").await.unwrap();
            let conditions = object.data["status"]["conditions"].as_array();
            let mut conditions = conditions.into_iter().flatten();
            if let Some(found) = conditions.find(|condition| condition["reason"] == reason) {
                return found["message"].as_str().unwrap_or_default().to_owned();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What `kubectl scale` does with the object `story`.
    pub(crate) async fn scale(&self, plural: &str, namespace: &str, replicas: u32) {
        let change = json!({"spec": {"replicas": replicas}});
        let params = PatchParams::default();
        let patch = Patch::Merge(&change);
        let scaled = if plural == "specdecodedeployments" {
            let api = self.deployments(namespace);
            api.patch_scale("story", &params, &patch).await
        } else {
            let api = self.endpoints(namespace);
            api.patch_scale("story", &params, &patch).await
        };
        scaled.unwrap();
    }

    /// Changes the endpoint `story`.
    pub(crate) async fn patch_endpoint(&self, namespace: &str, change: &Value) {
        let params = PatchParams::default();
        let patched = self
            .endpoints(namespace)
            .patch("story", &params, &Patch::Merge(change))
            .await;
        patched.unwrap();
    }

    /// Deletes a deployment.
    pub(crate) async fn delete_deployment(&self, namespace: &str, name: &str) {
        self.deployments(namespace)
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Deletes the endpoint `story`.
    pub(crate) async fn delete_endpoint(&self, namespace: &str) {
        self.endpoints(namespace)
            .delete("story", &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Waits until the status of the deployment `story` is `so`.
    pub(crate) async fn status_of(&self, namespace: &str, so: impl Fn(&DeploymentStatus) -> bool) {
        wait_for(&format!("status of {namespace}/story"), async || {
            self.deployment(namespace)
                .await
                .status
                .is_some_and(|status| so(&status))
        })
        .await;
    }

    /// Waits until a condition of the deployment `story` has this status and reason.
    pub(crate) async fn deployment_is(&self, namespace: &str, kind: &str, expected: &str) {
        self.condition_is(namespace, "story", kind, expected).await;
    }

    /// Waits until a condition of a deployment has this status and reason, and its spec was seen.
    pub(crate) async fn condition_is(
        &self,
        namespace: &str,
        name: &str,
        kind: &str,
        expected: &str,
    ) {
        assert!(condition::OF_DEPLOYMENTS.contains(&kind));
        let mut said = String::new();
        let until = Instant::now() + PATIENCE;
        while said != expected {
            assert!(
                Instant::now() < until,
                "{namespace}/{name} {kind}: {said}, not {expected}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
            let object = self.deployments(namespace).get(name).await.unwrap();
            let status = object.status.unwrap_or_default();
            if status.observed_generation == object.metadata.generation {
                said = shown(&status.conditions, kind);
            }
        }
    }

    /// Waits until a condition of the endpoint `story` has this status and reason.
    pub(crate) async fn endpoint_is(&self, namespace: &str, kind: &str, expected: &str) {
        wait_for(
            &format!("endpoint {namespace}/story {kind} {expected}"),
            async || {
                let status = self.endpoint(namespace).await.status.unwrap_or_default();
                shown(&status.conditions, kind) == expected
            },
        )
        .await;
    }

    /// Waits until a namespace has so many pods, and says that they are ready, as a node would.
    pub(crate) async fn make_pods_ready(&self, namespace: &str, count: usize) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        wait_for("pods", async || {
            api.list(&ListParams::default()).await.unwrap().items.len() == count
        })
        .await;
        let status = json!({"status": {"phase": "Running", "conditions": [{
            "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z",
        }]}});
        for pod in api.list(&ListParams::default()).await.unwrap() {
            let params = PatchParams::default();
            let patched = api
                .patch_status(&pod.name_any(), &params, &Patch::Merge(&status))
                .await;
            patched.unwrap();
        }
    }

    /// Gives the pods of a component an address, as a node would.
    pub(crate) async fn give_address(&self, namespace: &str, component: &str, address: IpAddr) {
        let change = json!({"status": {"podIP": address, "podIPs": [{"ip": address}]}});
        self.set_pods(namespace, component, &change).await;
    }

    /// Changes the statuses of the pods of a component.
    pub(crate) async fn set_pods(&self, namespace: &str, component: &str, change: &Value) {
        let selector = format!("{COMPONENT}={component}");
        self.set_selected_pods(namespace, &selector, change).await;
    }

    /// The same of those with these labels.
    pub(crate) async fn set_selected_pods(&self, namespace: &str, selector: &str, change: &Value) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let ours = ListParams::default().labels(selector);
        for pod in api.list(&ours).await.unwrap() {
            let params = PatchParams::default();
            let patched = api
                .patch_status(&pod.name_any(), &params, &Patch::Merge(change))
                .await;
            // One that is being replaced may have gone meanwhile.
            let is_gone =
                matches!(&patched, Err(kube::Error::Api(status)) if status.is_not_found());
            assert!(is_gone || patched.is_ok(), "{patched:?}");
        }
    }

    /// Message of a condition of the deployment `story`.
    pub(crate) async fn message(&self, namespace: &str, kind: &str) -> String {
        let status = self.deployment(namespace).await.status.unwrap_or_default();
        let mut conditions = status.conditions.into_iter();
        let found = conditions.find(|condition| condition.type_ == kind);
        found.map(|condition| condition.message).unwrap_or_default()
    }

    /// Waits until the status of the endpoint `story` is `so`.
    pub(crate) async fn endpoint_status(
        &self,
        namespace: &str,
        so: impl Fn(&EndpointStatus) -> bool,
    ) {
        wait_for(
            &format!("status of endpoint {namespace}/story"),
            async || {
                let status = self.endpoint(namespace).await.status;
                status.is_some_and(|status| so(&status))
            },
        )
        .await;
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

    /// How much was written so far, to ask later what came after.
    pub(crate) fn writes(&self) -> usize {
        self.all_writes().len()
    }

    /// What operators have written since: verb, namespace, kind and name. Leases left aside.
    pub(crate) fn writes_since(&self, before: usize) -> Vec<String> {
        let mut written = self.all_writes().split_off(before);
        written.sort();
        written
    }

    /// The same without statuses and events.
    pub(crate) fn objects_written_since(&self, before: usize) -> Vec<String> {
        let mut written = self.writes_since(before);
        written.retain(|write| !write.ends_with("/status") && !write.contains("/events/"));
        written
    }

    /// Waits until operators have written nothing for a while.
    pub(crate) async fn settles(&self, silence: Duration) {
        let until = Instant::now() + PATIENCE;
        loop {
            let before = self.writes();
            tokio::time::sleep(silence).await;
            let written = self.writes_since(before);
            if written.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "no end of writes: {written:?}");
        }
    }

    fn all_writes(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.audit_log).unwrap_or_default();
        let events = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let ours = events.filter(|event| {
            event["userAgent"] == OPERATOR && event["objectRef"]["resource"] != "leases"
        });
        let shown = ours.map(|event| {
            let of = |name: &str| {
                event["objectRef"][name]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            let mut place = format!("{}/{}/{}", of("namespace"), of("resource"), of("name"));
            if event["objectRef"]["subresource"].is_string() {
                place = format!("{place}/{}", of("subresource"));
            }
            format!("{} {place}", event["verb"].as_str().unwrap_or_default())
        });
        shown.collect()
    }
}

/// Status and reason of a condition.
fn shown(conditions: &[Condition], kind: &str) -> String {
    let found = conditions.iter().find(|condition| condition.type_ == kind);
    found.map_or_else(String::new, |found| {
        format!("{} {}", found.status, found.reason)
    })
}

/// Waits until something is `so`.
async fn wait_for(what: &str, so: impl AsyncFn() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !so().await {
        assert!(Instant::now() < until, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
