//! Pods of a cluster that has no nodes: what these would say of them.

use std::net::IpAddr;

use foretoken_operator::object::COMPONENT;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{Cluster, wait_for};

impl Cluster {
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

    /// Waits until the nodes of the pods of a component were told to look at what these mount.
    pub(crate) async fn pods_are_looked_at(&self, namespace: &str, component: &str) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        let ours = ListParams::default().labels(&format!("{COMPONENT}={component}"));
        let is_told = |pod: &Pod| {
            pod.annotations()
                .contains_key("foretoken.io/mounts-changed")
        };
        wait_for(&format!("nodes of {namespace} are told"), async || {
            let pods = api.list(&ours).await.unwrap().items;
            !pods.is_empty() && pods.iter().all(is_told)
        })
        .await;
    }
}
