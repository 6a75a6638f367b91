//! What users change of their own objects, and what these say of themselves.

use std::{pin::pin, sync::Mutex, time::Duration};

use foretoken_crds::{
    SpecDecodeDeployment, SpeculationEndpoint,
    status::{DeploymentStatus, EndpointStatus, condition},
};
use futures::TryStreamExt as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, ResourceExt as _,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, TypeMeta,
        WatchEvent, WatchParams,
    },
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Cluster, PATIENCE, wait_for};

impl Cluster {
    /// All deployments and endpoints.
    pub(crate) async fn users_objects(&self) -> Vec<DynamicObject> {
        let mut all = Vec::new();
        for resource in [
            ApiResource::erase::<SpecDecodeDeployment>(&()),
            ApiResource::erase::<SpeculationEndpoint>(&()),
        ] {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &resource);
            let found = api.list(&ListParams::default()).await.unwrap();
            let named = found.items.into_iter().map(|mut object| {
                // Lists leave out what all of their items are.
                object.types = Some(TypeMeta {
                    api_version: resource.api_version.clone(),
                    kind: resource.kind.clone(),
                });
                object
            });
            all.extend(named);
        }
        all
    }

    /// Deletes all deployments, then all endpoints.
    pub(crate) async fn delete_all(&self) {
        for object in self.users_objects().await {
            let kind = object.types.as_ref().map_or("", |types| &types.kind);
            let kind = if kind == "SpecDecodeDeployment" {
                "deployment"
            } else {
                "endpoint"
            };
            let api = self.unread(kind, &object.namespace().unwrap_or_default());
            let deleted = api
                .delete(&object.name_any(), &DeleteParams::default())
                .await;
            let is_gone =
                matches!(&deleted, Err(kube::Error::Api(status)) if status.is_not_found());
            assert!(is_gone || deleted.is_ok(), "{deleted:?}");
        }
    }

    /// Whether a deployment exists.
    pub(crate) async fn has_deployment(&self, namespace: &str, name: &str) -> bool {
        self.deployments(namespace)
            .get_opt(name)
            .await
            .unwrap()
            .is_some()
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
        self.patch_when_valid("deployment", namespace, change).await;
    }

    /// Changes the endpoint `story` as soon as its definition allows that.
    pub(crate) async fn patch_endpoint_when_valid(&self, namespace: &str, change: &Value) {
        self.patch_when_valid("endpoint", namespace, change).await;
    }

    async fn patch_when_valid(&self, kind: &str, namespace: &str, change: &Value) {
        let params = PatchParams::default();
        let api = self.unread(kind, namespace);
        wait_for("a newer definition", async || {
            let answer = api.patch("story", &params, &Patch::Merge(change)).await;
            answer.is_ok()
        })
        .await;
    }

    /// Deployments or endpoints that this release need not understand.
    fn unread(&self, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let resource = match kind {
            "deployment" => ApiResource::erase::<SpecDecodeDeployment>(&()),
            _ => ApiResource::erase::<SpeculationEndpoint>(&()),
        };
        Api::namespaced_with(self.client.clone(), namespace, &resource)
    }

    /// Waits until a condition of the deployment or endpoint `story` has this reason; its message. The
    /// object may be one that this release does not understand.
    pub(crate) async fn message_unread(&self, kind: &str, namespace: &str, reason: &str) -> String {
        let api = self.unread(kind, namespace);
        let until = Instant::now() + PATIENCE;
        loop {
            assert!(
                Instant::now() < until,
                "{kind} {namespace}/story: no {reason}"
            );
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

    /// What the deployment `story` says of its progress while something is `done`: status and reason of
    /// each status that is written, with the generation that it is of.
    pub(crate) async fn progress_while(
        &self,
        namespace: &str,
        done: impl Future<Output = ()>,
    ) -> Vec<(i64, String)> {
        let told = Mutex::new(Vec::new());
        let params = WatchParams::default().fields("metadata.name=story");
        let api = self.deployments(namespace);
        let watched = async {
            let events = api.watch(&params, "0").await.unwrap();
            let mut events = pin!(events);
            while let Some(event) = events.try_next().await.unwrap() {
                if let WatchEvent::Added(object) | WatchEvent::Modified(object) = event {
                    let status = object.status.unwrap_or_default();
                    let said = shown(&status.conditions, condition::PROGRESSING);
                    let generation = status.observed_generation.unwrap_or_default();
                    told.lock().unwrap().push((generation, said));
                }
            }
        };
        tokio::select! {
            () = watched => panic!("the watch ended"),
            () = done => {}
        }
        told.into_inner().unwrap()
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
}

/// Status and reason of a condition.
fn shown(conditions: &[Condition], kind: &str) -> String {
    let found = conditions.iter().find(|condition| condition.type_ == kind);
    found.map_or_else(String::new, |found| {
        format!("{} {}", found.status, found.reason)
    })
}
