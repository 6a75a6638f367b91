//! What is kept of an object that was made. A cluster has many, and little of them is ever looked at.

use std::{
    borrow::Cow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use kube::{
    ResourceExt as _,
    api::{DynamicObject, ObjectMeta},
    runtime::reflector::Lookup,
};
use serde_json::{Value, json};

use crate::{
    object::{APPLIED, MADE_OF, Made, Owner},
    status::{self, Trouble, Workload},
};

use super::owned::MadeFor;

/// An object that was made, as the cluster has it.
#[derive(Clone, Debug)]
pub(crate) struct Live {
    pub(crate) name: String,
    pub(crate) namespace: String,
    /// What tells it from an earlier one of the same name.
    pub(crate) uid: Option<String>,
    /// Whether it is being deleted.
    pub(crate) is_leaving: bool,
    /// What its pods are like, if it has pods.
    pub(crate) workload: Option<Box<Workload>>,
    /// The revision that its pods have, if it is of drafts.
    pub(crate) made_of: Option<Box<str>>,
    /// Since when it was seen so, and what that keeps from serving, if it is a certificate that is not
    /// issued.
    pub(crate) unissued: Option<Box<(Instant, Trouble)>>,
    /// How often it was issued, if it is a certificate that was.
    pub(super) issue: Option<i64>,
    /// Digest of what was applied last.
    applied: Option<String>,
    /// Whom it was made for.
    pub(super) made_for: MadeFor,
    /// Kind and name of the object that controls it.
    owner: Option<Box<(String, String)>>,
    /// All that comparing needs, as JSON, until it was compared: the digest says the rest from then
    /// on. Parsed it would take ten times as much memory.
    unread: Arc<Mutex<Option<Box<str>>>>,
}

impl Live {
    /// Whether it is of `owner`, of an earlier object of its name, or of nobody: somebody may have edited
    /// its labels, and who owns it too.
    pub(crate) fn is_for(&self, owner: &Owner) -> bool {
        let of = self.owner.as_deref();
        of.is_none_or(|(kind, name)| kind == owner.kind.name() && *name == owner.name)
    }

    /// What is kept of `object`.
    pub(super) fn of(kind: Made, object: DynamicObject) -> Self {
        let made_for = MadeFor::of(&object);
        let applied = object.annotations().get(APPLIED).cloned();
        let made_of = object.annotations().get(MADE_OF);
        let made_of = made_of.map(|made_of| made_of.as_str().into());
        let DynamicObject {
            metadata, mut data, ..
        } = object;
        let workload = match kind {
            Made::Deployment => Some(Workload::read(&data, metadata.generation)),
            Made::LeaderWorkerSet => Some(Workload::of_groups(&data)),
            _ => None,
        };
        let unissued = match (kind, &metadata.name) {
            (Made::Certificate, Some(name)) => status::of_certificate(name, &data),
            _ => None,
        };
        let unissued = unissued.map(|trouble| Box::new((Instant::now(), trouble)));
        let issue = match kind {
            Made::Certificate => data.pointer("/status/revision").and_then(Value::as_i64),
            _ => None,
        };
        let mut owners = metadata.owner_references.iter().flatten();
        let owner = owners.find(|owner| owner.controller == Some(true));
        let owner = owner.map(|owner| Box::new((owner.kind.clone(), owner.name.clone())));
        let compared = json!({
            "name": metadata.name,
            "namespace": metadata.namespace,
            "labels": metadata.labels,
            "annotations": metadata.annotations,
            "ownerReferences": metadata.owner_references,
        });
        if let Some(fields) = data.as_object_mut() {
            fields.remove("status");
            fields.insert("metadata".to_owned(), compared);
        }
        let ObjectMeta {
            name,
            namespace,
            uid,
            deletion_timestamp,
            ..
        } = metadata;
        Self {
            name: name.unwrap_or_default(),
            namespace: namespace.unwrap_or_default(),
            uid,
            is_leaving: deletion_timestamp.is_some(),
            workload: workload.map(Box::new),
            made_of,
            unissued,
            issue,
            applied,
            made_for,
            owner,
            unread: Arc::new(Mutex::new(Some(data.to_string().into_boxed_str()))),
        }
    }

    /// Digest of what was applied last.
    pub(crate) fn applied(&self) -> Option<&str> {
        self.applied.as_deref()
    }

    /// All that it says beside its status, unless that was found to be what was applied.
    pub(crate) fn unread(&self) -> Option<Value> {
        let text = self.text();
        text.as_deref()
            .map(|text| serde_json::from_str(text).unwrap_or_default())
    }

    /// It says what was applied.
    pub(crate) fn is_as_applied(&self) {
        *self.text() = None;
    }

    fn text(&self) -> MutexGuard<'_, Option<Box<str>>> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lookup for Live {
    type DynamicType = Made;

    fn kind(made: &Made) -> Cow<'_, str> {
        made.resource().kind.into()
    }

    fn group(made: &Made) -> Cow<'_, str> {
        made.resource().group.into()
    }

    fn version(made: &Made) -> Cow<'_, str> {
        made.resource().version.into()
    }

    fn plural(made: &Made) -> Cow<'_, str> {
        made.resource().plural.into()
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
    use foretoken_crds::Kind;

    use super::*;
    use crate::object::OF_DEPLOYMENT;

    #[test]
    fn what_was_found_as_applied_takes_no_room_any_more_and_its_pods_are_known_still() {
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {
                "name": "story-target", "namespace": "chat", "uid": "u", "generation": 2,
                "labels": {OF_DEPLOYMENT: "story"}, "annotations": {APPLIED: "d"},
                "managedFields": [{"manager": "somebody"}],
            },
            "spec": {"replicas": 2},
            "status": {"observedGeneration": 2, "replicas": 2, "readyReplicas": 1},
        });
        let object = serde_json::from_value(object).expect("an object");
        let live = Live::of(Made::Deployment, object);
        assert_eq!(live.applied(), Some("d"));
        assert_eq!(
            live.made_for.iter().collect::<Vec<_>>(),
            [(OF_DEPLOYMENT, "story")]
        );
        let said = live.unread().expect("nobody has compared it");
        assert_eq!(said["spec"], json!({"replicas": 2}));
        assert_eq!(said["metadata"]["labels"][OF_DEPLOYMENT], "story");
        assert_eq!(
            (said.get("status"), said["metadata"].get("managedFields")),
            (None, None)
        );
        // Clones are the same object.
        live.clone().is_as_applied();
        assert_eq!(live.unread(), None);
        let workload = live.workload.as_ref().expect("it has pods");
        assert_eq!((workload.ready, workload.is_seen), (1, true));
    }

    #[test]
    fn what_somebody_elses_object_controls_is_not_taken_and_what_lost_its_labels_is() {
        let owner = Owner {
            kind: Kind::SpecDecodeDeployment,
            namespace: "chat".into(),
            name: "story".into(),
            uid: "1".into(),
        };
        let made = |owners: Value| {
            let object = json!({
                "apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": "a", "namespace": "chat", "ownerReferences": owners},
            });
            Live::of(
                Made::ConfigMap,
                serde_json::from_value(object).expect("an object"),
            )
        };
        let by = |kind: &str, name: &str| {
            made(
                json!([{"apiVersion": "v1", "kind": kind, "name": name, "uid": "2", "controller": true}]),
            )
        };
        assert!(
            by("SpecDecodeDeployment", "story").is_for(&owner),
            "made again"
        );
        assert!(made(json!([])).is_for(&owner));
        assert!(!by("SpecDecodeDeployment", "other").is_for(&owner));
        assert!(!by("SpeculationEndpoint", "story").is_for(&owner));
    }
}
