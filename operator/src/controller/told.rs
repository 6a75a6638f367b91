//! Writes statuses, each once.

use std::{collections::HashMap, fmt::Debug, sync::Mutex, sync::PoisonError};

use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use crate::{failure::Failure, object::OPERATOR};

/// Statuses that were written and may not have come back through the watch yet, by the uid of the
/// object, with the version of it that they were made from. Without them a second look at an old
/// version would tell of the same change again.
#[derive(Debug)]
pub(super) struct Told<S> {
    written: Mutex<HashMap<String, (String, S)>>,
}

impl<S> Default for Told<S> {
    fn default() -> Self {
        Self {
            written: Mutex::default(),
        }
    }
}

impl<S: Clone + PartialEq + Serialize> Told<S> {
    /// The status of an object of this metadata: what was written after this version was read, else
    /// `seen`.
    pub(super) fn before<K: Resource>(&self, object: &K, seen: Option<S>) -> Option<S> {
        let mut written = self.lock();
        let uid = object.uid()?;
        match written.get(&uid) {
            Some((version, status)) if Some(version) == object.resource_version().as_ref() => {
                Some(status.clone())
            }
            Some(_) => {
                written.remove(&uid);
                seen
            }
            None => seen,
        }
    }

    /// Writes `status` if it is not what it was `before`.
    pub(super) async fn tell<K>(
        &self,
        client: &Client,
        object: &K,
        before: Option<&S>,
        status: &S,
    ) -> Result<bool, Failure>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
        K: Clone + Debug + DeserializeOwned,
    {
        if before == Some(status) {
            return Ok(false);
        }
        let name = object.name_any();
        let namespace = object.namespace().unwrap_or_default();
        let patch = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            // It is about this object, not about another one that took its name.
            "metadata": {"uid": object.uid()},
            "status": status,
        });
        let api: Api<K> = Api::namespaced(client.clone(), &namespace);
        let params = PatchParams::apply(OPERATOR).force();
        let patched = api
            .patch_status(&name, &params, &Patch::Apply(&patch))
            .await;
        patched.map_err(|source| Failure::Api {
            what: format!("write the status of {namespace}/{name}"),
            source,
        })?;
        if let (Some(uid), Some(version)) = (object.uid(), object.resource_version()) {
            self.lock().insert(uid, (version, status.clone()));
        }
        Ok(true)
    }

    /// The object is gone.
    pub(super) fn forget<K: Resource>(&self, object: &K) {
        if let Some(uid) = object.uid() {
            self.lock().remove(&uid);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, (String, S)>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
