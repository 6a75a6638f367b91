//! What is left to do when the operator is taken out of a cluster: endpoints have a finalizer of its
//! own, and without it nobody would take that away.

use foretoken_crds::{Kind, SpeculationEndpoint};
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    object::{FINALIZER, OPERATOR},
    operate::{OperateError, connect},
};

/// How often endpoints are looked at again that somebody else changed meanwhile.
const ROUNDS: u32 = 20;

/// Takes the operator's finalizer off all endpoints of the cluster that the environment names; answers
/// how many had it. An operator that still works sets it again.
///
/// # Errors
/// The cluster cannot be asked, or does not let the finalizer be taken away.
pub async fn retire() -> Result<usize, OperateError> {
    retire_from(&connect().await?).await
}

/// The same in the cluster of `client`.
///
/// # Errors
/// As of [`retire`].
pub async fn retire_from(client: &Client) -> Result<usize, OperateError> {
    // Names and versions are enough, so that what an endpoint says need not be understood.
    let all: Api<SpeculationEndpoint> = Api::all(client.clone());
    let mut released = 0;
    for _ in 0..ROUNDS {
        let found = match all.list_metadata(&ListParams::default()).await {
            Ok(found) => found,
            // The definitions are gone too, and with them all endpoints.
            Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(released),
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                return Err(OperateError::Forbidden(Kind::SpeculationEndpoint.name()));
            }
            Err(error) => return Err(OperateError::Unreachable(error)),
        };
        let mut held = found.items;
        held.retain(|object| object.finalizers().iter().any(is_ours));
        if held.is_empty() {
            return Ok(released);
        }
        for object in held {
            let name = object.name_any();
            let namespace = object.namespace().unwrap_or_default();
            let api: Api<SpeculationEndpoint> = Api::namespaced(client.clone(), &namespace);
            let version = object.resource_version();
            let patch = Patch::Merge(without(object.finalizers(), version.as_deref()));
            let params = PatchParams {
                field_manager: Some(OPERATOR.to_owned()),
                ..PatchParams::default()
            };
            match api.patch_metadata(&name, &params, &patch).await {
                Ok(_) => released += 1,
                // It is gone, or is looked at again.
                Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => {}
                Err(source) => {
                    return Err(OperateError::NotReleased {
                        endpoint: format!("{namespace}/{name}"),
                        source,
                    });
                }
            }
        }
    }
    Err(OperateError::HeldAgain)
}

fn is_ours(finalizer: &String) -> bool {
    finalizer == FINALIZER
}

/// What takes the operator's finalizer from among `finalizers` of an object of this `version`.
fn without(finalizers: &[String], version: Option<&str>) -> Value {
    let others: Vec<&String> = finalizers.iter().filter(|one| !is_ours(one)).collect();
    // Somebody else's finalizers are not lost.
    json!({"metadata": {"finalizers": others, "resourceVersion": version}})
}
