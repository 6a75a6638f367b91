//! What is kept of a pod: whose it is, where it is asked how it is doing, and what troubles it.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{ResourceExt as _, runtime::reflector::Lookup};

use crate::{
    hearsay::{self, Candidate},
    object::{COMPONENT, REVISION, TRACK},
    status::{self, Trouble},
};

use super::owned::MadeFor;

/// A pod that was made for somebody.
#[derive(Clone, Debug)]
pub(crate) struct KnownPod {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(super) uid: String,
    /// `target`, `router` or `draft`.
    pub(super) component: Option<String>,
    /// Whether a revision is tried with it.
    pub(crate) is_canary: bool,
    /// Whom it was made for.
    pub(super) made_for: MadeFor,
    /// The revision that it serves, while it does.
    pub(crate) serves: Option<String>,
    /// How it is asked, if it can be.
    pub(crate) candidate: Option<Candidate>,
    /// What keeps it from serving, and how early in its life.
    pub(super) trouble: Option<(u32, Trouble)>,
    /// When it was made.
    made: Option<Timestamp>,
    /// Whether it has ended for good, such as one that was evicted: it stays as a note of that, for as
    /// long as the cluster keeps such notes.
    is_over: bool,
}

impl KnownPod {
    pub(super) fn of(pod: Pod) -> Self {
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        let revision = pod.labels().get(REVISION);
        let serves = revision.filter(|_| hearsay::is_ready(&pod) && !is_leaving);
        let phase = pod
            .status
            .as_ref()
            .and_then(|status| status.phase.as_deref());
        Self {
            is_over: matches!(phase, Some("Failed" | "Succeeded")),
            made: pod.metadata.creation_timestamp.as_ref().map(|made| made.0),
            serves: serves.cloned(),
            component: pod.labels().get(COMPONENT).cloned(),
            is_canary: pod.labels().contains_key(TRACK),
            made_for: MadeFor::of(&pod),
            candidate: Candidate::of(&pod),
            trouble: status::of_pod(&pod),
            name: pod.metadata.name.unwrap_or_default(),
            namespace: pod.metadata.namespace.unwrap_or_default(),
            uid: pod.metadata.uid.unwrap_or_default(),
        }
    }
}

/// What keeps the pods of a component from serving, if anything does: of several troubles the one that
/// comes first in the life of a pod. What became of pods that are over says nothing once others have
/// taken their places.
pub(crate) fn trouble<'a>(pods: impl IntoIterator<Item = &'a Arc<KnownPod>>) -> Option<Trouble> {
    let pods: Vec<&Arc<KnownPod>> = pods.into_iter().collect();
    let others = pods.iter().filter(|pod| !pod.is_over);
    let newest = others.filter_map(|pod| pod.made).max();
    let counts = |pod: &&&Arc<KnownPod>| !pod.is_over || pod.made >= newest;
    let troubled = pods.iter().filter(counts).filter_map(|pod| {
        let (rank, trouble) = pod.trouble.as_ref()?;
        Some(((pod.is_over, rank, &pod.name), trouble))
    });
    let first = troubled.min_by_key(|(order, _)| *order);
    first.map(|(_, trouble)| trouble.clone())
}

impl Lookup for KnownPod {
    type DynamicType = ();

    fn kind((): &()) -> Cow<'_, str> {
        Pod::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Pod::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Pod::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Pod::plural(&())
    }

    fn name(&self) -> Option<Cow<'_, str>> {
        Some(self.name.as_str().into())
    }

    fn namespace(&self) -> Option<Cow<'_, str>> {
        Some(self.namespace.as_str().into())
    }

    fn resource_version(&self) -> Option<Cow<'_, str>> {
        None
    }

    fn uid(&self) -> Option<Cow<'_, str>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, second: u32, status: &Value) -> Arc<KnownPod> {
        let made = format!("2026-01-01T00:00:{second:02}Z");
        let pod = json!({"metadata": {"name": name, "creationTimestamp": made}, "status": status});
        Arc::new(KnownPod::of(serde_json::from_value(pod).expect("a pod")))
    }

    fn reason(pods: &[Arc<KnownPod>]) -> Option<&'static str> {
        trouble(pods).map(|trouble| trouble.reason)
    }

    #[test]
    fn what_became_of_pods_that_others_replace_hides_nothing() {
        let evicted = json!({"phase": "Failed", "reason": "Evicted", "message": "memory"});
        let state = json!({"waiting": {"reason": "ErrImagePull", "message": "no such image"}});
        let unpulled = json!({"phase": "Pending", "containerStatuses": [{
            "name": "target", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
            "state": state,
        }]});
        let starts = json!({"phase": "Pending"});
        let old = pod("a", 1, &evicted);
        assert_eq!(reason(std::slice::from_ref(&old)), Some("Evicted"));
        let replaced = [old.clone(), pod("b", 2, &unpulled)];
        assert_eq!(reason(&replaced), Some("ImagePullFailed"));
        assert_eq!(reason(&[old.clone(), pod("b", 2, &starts)]), None);
        // The place of one that was there before is empty still, whatever else troubles others.
        let kept = pod("b", 0, &starts);
        assert_eq!(reason(&[old.clone(), kept]), Some("Evicted"));
        let kept = pod("b", 1, &unpulled);
        assert_eq!(reason(&[old, kept]), Some("ImagePullFailed"));
    }
}
