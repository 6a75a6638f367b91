//! Pods that are asked how they are doing.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;

use crate::{
    build::{DRAFT, METRICS, TARGET},
    figures::Named,
    object::{COMPONENT, OF_DEPLOYMENT, OF_ENDPOINT, REVISION},
    status::MODEL,
};

/// Whose pod it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Whose {
    /// A target of this deployment.
    Deployment(Named),
    /// A draft of this endpoint.
    Endpoint(Named),
}

/// A pod to be asked.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(super) uid: String,
    pub(super) whose: Whose,
    pub(super) address: IpAddr,
    /// Of a draft.
    pub(super) revision: Option<String>,
}

impl Candidate {
    /// A pod that serves as a target or a draft, or downloads a model to do so.
    pub(crate) fn of(pod: &Pod) -> Option<Self> {
        let labels = pod.labels();
        let namespace = pod.namespace()?;
        let named = |label: &str| Some((namespace.clone(), labels.get(label)?.clone()));
        let whose = match labels.get(COMPONENT)?.as_str() {
            TARGET => Whose::Deployment(named(OF_DEPLOYMENT)?),
            DRAFT => Whose::Endpoint(named(OF_ENDPOINT)?),
            _ => return None,
        };
        if !(is_ready(pod) || is_fetching(pod)) || pod.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let address = pod.status.as_ref()?.pod_ip.as_ref()?.parse().ok()?;
        Some(Self {
            uid: pod.uid()?,
            whose,
            address,
            revision: labels.get(REVISION).cloned(),
        })
    }

    pub(super) fn url(&self) -> String {
        match self.address {
            IpAddr::V4(address) => format!("http://{address}:{METRICS}/status"),
            IpAddr::V6(address) => format!("http://[{address}]:{METRICS}/status"),
        }
    }
}

/// Whether `pod` says that it can serve.
pub(crate) fn is_ready(pod: &Pod) -> bool {
    let conditions = pod
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_ref());
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether the container that brings the model runs.
fn is_fetching(pod: &Pod) -> bool {
    let init = pod
        .status
        .as_ref()
        .and_then(|status| status.init_container_statuses.as_ref());
    init.into_iter().flatten().any(|container| {
        let state = container.state.as_ref();
        container.name == MODEL && state.is_some_and(|state| state.running.is_some())
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(ready: &str, component: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "chat", "uid": "u", "labels": {
                COMPONENT: component, OF_DEPLOYMENT: "story", OF_ENDPOINT: "tiny",
            }},
            "status": {"podIP": "fd00::7", "conditions": [{"type": "Ready", "status": ready}]},
        }))
        .expect("a pod")
    }

    #[test]
    fn targets_and_drafts_that_serve_are_asked_and_nobody_else() {
        let candidate = Candidate::of(&pod("True", TARGET)).expect("it serves");
        assert_eq!(
            candidate.whose,
            Whose::Deployment(("chat".into(), "story".into()))
        );
        assert_eq!(candidate.url(), "http://[fd00::7]:9100/status");
        assert!(Candidate::of(&pod("True", DRAFT)).is_some());
        assert!(Candidate::of(&pod("False", DRAFT)).is_none());
        assert!(Candidate::of(&pod("True", "router")).is_none());
    }
}
