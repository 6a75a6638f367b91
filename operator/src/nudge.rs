//! Has nodes pass on at once what pods mount.
//!
//! A node looks at the `ConfigMaps` and Secrets that its pods mount once a minute or so, and whenever one
//! of these pods changes: an annotation is a change. Nothing depends on it but how soon it is.

use std::sync::Arc;

use futures::{StreamExt as _, stream};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use crate::world::KnownPod;

/// Annotation of pods: when something that they mount was changed last.
const CHANGED: &str = "foretoken.io/mounts-changed";
/// Most pods that are told at once.
const AT_ONCE: usize = 6;

/// Tells the nodes of `pods` to look.
pub(crate) async fn nudge(client: &Client, pods: Vec<Arc<KnownPod>>) {
    let change = json!({"metadata": {"annotations": {CHANGED: Timestamp::now().to_string()}}});
    stream::iter(pods)
        .for_each_concurrent(AT_ONCE, |pod| {
            let change = &change;
            async move {
                let api = Api::<Pod>::namespaced(client.clone(), &pod.namespace);
                let params = PatchParams::default();
                let told = api
                    .patch_metadata(&pod.name, &params, &Patch::Merge(change))
                    .await;
                if let Err(error) = told {
                    // It may be gone; else its node finds out by itself.
                    tracing::debug!(%error, pod = pod.name, "its node was not told");
                }
            }
        })
        .await;
}
