//! What is kept of a pod: whose it is, where it is asked how it is doing, and what troubles it.

use std::{borrow::Cow, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
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
}

impl KnownPod {
    pub(super) fn of(pod: Pod) -> Self {
        let is_leaving = pod.metadata.deletion_timestamp.is_some();
        let revision = pod.labels().get(REVISION);
        let serves = revision.filter(|_| hearsay::is_ready(&pod) && !is_leaving);
        Self {
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
/// comes first in the life of a pod.
pub(crate) fn trouble<'a>(pods: impl IntoIterator<Item = &'a Arc<KnownPod>>) -> Option<Trouble> {
    let troubled = pods.into_iter().filter_map(|pod| {
        let (rank, trouble) = pod.trouble.as_ref()?;
        Some((rank, &pod.name, trouble))
    });
    let first = troubled.min_by_key(|(rank, name, _)| (*rank, *name));
    first.map(|(_, _, trouble)| trouble.clone())
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
