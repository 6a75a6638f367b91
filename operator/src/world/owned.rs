//! What belongs to whom.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{PoisonError, RwLock},
};

use kube::ResourceExt;

use crate::object::{Made, OF_DEPLOYMENT, OF_ENDPOINT, Owner};

/// Names of what was made, by whom it was made for: without, whoever looks for what is an object's
/// would look at what is all objects'.
#[derive(Default)]
pub(super) struct Owned(RwLock<HashMap<OwnerKey, BTreeSet<(Sort, String)>>>);

/// Label, namespace and name of an owner.
type OwnerKey = (&'static str, String, String);

/// What is owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sort {
    Made(Made),
    Pod,
}

impl Owned {
    /// Notes an object that came, changed or went.
    pub(super) fn note(&self, sort: Sort, object: &impl ResourceExt, gone: bool) {
        let Some(namespace) = object.namespace() else {
            return;
        };
        for label in [OF_DEPLOYMENT, OF_ENDPOINT] {
            let Some(owner) = object.labels().get(label) else {
                continue;
            };
            let key = (label, namespace.clone(), owner.clone());
            let item = (sort, object.name_any());
            let mut owned = self.0.write().unwrap_or_else(PoisonError::into_inner);
            if !gone {
                owned.entry(key).or_default().insert(item);
            } else if let Some(items) = owned.get_mut(&key) {
                items.remove(&item);
                if items.is_empty() {
                    owned.remove(&key);
                }
            }
        }
    }

    /// Names of what `owner` has; some of them may be gone.
    pub(super) fn of(&self, owner: &Owner, sort: Sort) -> Vec<String> {
        let key = (owner.label(), owner.namespace.clone(), owner.name.clone());
        let owned = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let items = owned.get(&key).into_iter().flatten();
        let same = items.filter(|(known, _)| *known == sort);
        same.map(|(_, name)| name.clone()).collect()
    }
}
