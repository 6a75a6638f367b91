//! What belongs to whom.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{PoisonError, RwLock},
};

use kube::ResourceExt;

use crate::object::{Made, OF_DEPLOYMENT, OF_ENDPOINT, Owner};

/// Whom an object was made for: the values of the labels [`OF_DEPLOYMENT`] and [`OF_ENDPOINT`].
#[derive(Clone, Debug)]
pub(crate) struct MadeFor([Option<String>; 2]);

impl MadeFor {
    /// What the labels of `object` say.
    pub(super) fn of(object: &impl ResourceExt) -> Self {
        Self([OF_DEPLOYMENT, OF_ENDPOINT].map(|label| object.labels().get(label).cloned()))
    }

    /// Labels that say so, with their values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let labels = [OF_DEPLOYMENT, OF_ENDPOINT].into_iter();
        let pairs = labels.zip(&self.0);
        pairs.filter_map(|(label, owner)| Some((label, owner.as_deref()?)))
    }
}

/// Names of what was made, by whom it was made for: without, whoever looks for what is an object's
/// would look at what is all objects'.
#[derive(Default)]
pub(super) struct Owned(RwLock<HashMap<OwnerKey, BTreeSet<(Sort, String)>>>);

/// Label, namespace and name of an owner.
pub(super) type OwnerKey = (&'static str, String, String);

/// What is owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sort {
    Made(Made),
    Pod,
}

impl Owned {
    /// Notes an object that came, changed or went; its `owner` by label, namespace and name.
    pub(super) fn note(
        &self,
        label: &'static str,
        (namespace, owner): (&str, &str),
        (sort, name): (Sort, &str),
        gone: bool,
    ) {
        let key = (label, namespace.to_owned(), owner.to_owned());
        let item = (sort, name.to_owned());
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

    /// Whether `owner` has nothing.
    pub(super) fn is_empty(&self, owner: &Owner) -> bool {
        let owned = self.0.read().unwrap_or_else(PoisonError::into_inner);
        !owned.contains_key(&key(owner))
    }

    /// Names of what `owner` has; some of them may be gone.
    pub(super) fn of(&self, owner: &Owner, sort: Sort) -> Vec<String> {
        let owned = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let items = owned.get(&key(owner)).into_iter().flatten();
        let same = items.filter(|(known, _)| *known == sort);
        same.map(|(_, name)| name.clone()).collect()
    }
}

pub(super) fn key(owner: &Owner) -> OwnerKey {
    (owner.label(), owner.namespace.clone(), owner.name.clone())
}
