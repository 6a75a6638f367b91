//! Writes statuses, each once, and no more of them than say something.
//!
//! While a rollout settles, a status changes several times a second in ways that one word sums up in
//! the end. What is summed up is gathered for [`GATHER`]; all else is told at once, but not more often
//! than every [`PACE`].

use std::{
    borrow::Cow,
    collections::HashMap,
    fmt::Debug,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
};
use serde::Serialize;
use serde_json::json;

use crate::{failure::Failure, object::OPERATOR};

/// Least time between two writes of one status.
const PACE: Duration = Duration::from_secs(1);
/// How long what is not urgent waits for more.
const GATHER: Duration = Duration::from_secs(2);
/// How long what was written is remembered if it never comes back.
const REMEMBERED: Duration = Duration::from_secs(600);

/// What was told of objects, by their uids.
#[derive(Debug)]
pub(super) struct Told<S> {
    known: Mutex<HashMap<String, Last<S>>>,
}

/// What was told of one object last.
#[derive(Debug)]
struct Last<S> {
    /// When it was looked at last.
    at: Instant,
    /// When its status was written.
    written: Option<Instant>,
    /// Since when there is something to tell.
    news: Option<Instant>,
    /// The status that was written and may not have come back through the watch yet, with the version
    /// of the object that it was made from. Without it a second look at an old version would tell of
    /// the same change again.
    unseen: Option<(String, S)>,
}

impl<S> Default for Told<S> {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
        }
    }
}

impl<S: Clone + PartialEq + Serialize> Told<S> {
    /// The status of `object`: what was written after this version was read, else what was `seen`.
    pub(super) fn before<'a, K: Resource>(
        &self,
        object: &K,
        seen: Option<&'a S>,
    ) -> Option<Cow<'a, S>> {
        let mut known = self.lock();
        let last = object.uid().and_then(|uid| known.get_mut(&uid));
        let unseen = last.and_then(|last| {
            let version = object.resource_version();
            last.unseen = last
                .unseen
                .take()
                .filter(|(known, _)| Some(known) == version.as_ref());
            last.unseen.as_ref()
        });
        match unseen {
            Some((_, status)) => Some(Cow::Owned(status.clone())),
            None => seen.map(Cow::Borrowed),
        }
    }

    /// How long news of `object` wait at `now`, if they do.
    pub(super) fn wait<K: Resource>(
        &self,
        object: &K,
        is_urgent: bool,
        now: Instant,
    ) -> Option<Duration> {
        let mut known = self.lock();
        known.retain(|_, last| now.saturating_duration_since(last.at) < REMEMBERED);
        let last = known.entry(object.uid()?).or_insert_with(|| Last {
            at: now,
            written: None,
            news: None,
            unseen: None,
        });
        last.at = now;
        let since = *last.news.get_or_insert(now);
        let due = match last.written {
            _ if !is_urgent => since + GATHER,
            Some(written) => written + PACE,
            None => now,
        };
        let wait = due.saturating_duration_since(now);
        (!wait.is_zero()).then_some(wait)
    }

    /// There is nothing to tell of `object`.
    pub(super) fn is_told<K: Resource>(&self, object: &K) {
        let mut known = self.lock();
        if let Some(last) = object.uid().and_then(|uid| known.get_mut(&uid)) {
            last.news = None;
        }
    }

    /// Writes `status`.
    pub(super) async fn tell<K>(
        &self,
        client: &Client,
        object: &K,
        status: &S,
    ) -> Result<(), Failure>
    where
        K: Resource<DynamicType = ()>,
    {
        let name = object.name_any();
        let namespace = object.namespace().unwrap_or_default();
        let patch = json!({
            "apiVersion": K::api_version(&()),
            "kind": K::kind(&()),
            // It is about this object, not about another one that took its name.
            "metadata": {"uid": object.uid()},
            "status": status,
        });
        // The answer is of no use, and may be one that is not understood.
        let resource = ApiResource::erase::<K>(&());
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
        let params = PatchParams::apply(OPERATOR).force();
        let patched = api
            .patch_status(&name, &params, &Patch::Apply(&patch))
            .await;
        patched.map_err(|source| Failure::Api {
            what: format!("write the status of {namespace}/{name}"),
            source,
        })?;
        if let (Some(uid), Some(version)) = (object.uid(), object.resource_version()) {
            let now = Instant::now();
            let last = Last {
                at: now,
                written: Some(now),
                news: None,
                unseen: Some((version, status.clone())),
            };
            self.lock().insert(uid, last);
        }
        Ok(())
    }

    /// The object is gone.
    pub(super) fn forget<K: Resource>(&self, object: &K) {
        if let Some(uid) = object.uid() {
            self.lock().remove(&uid);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Last<S>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use foretoken_crds::{SpeculationEndpoint, status::EndpointStatus};

    use super::*;

    fn object(version: &str) -> SpeculationEndpoint {
        serde_json::from_value(json!({
            "metadata": {"name": "tiny", "uid": "u", "resourceVersion": version},
            "spec": {"model": {"uri": "hf://a/b"}},
        }))
        .expect("valid")
    }

    fn written(at: Instant) -> Told<EndpointStatus> {
        let last = Last {
            at,
            written: Some(at),
            news: None,
            unseen: Some(("1".to_owned(), EndpointStatus::default())),
        };
        Told {
            known: Mutex::new([("u".to_owned(), last)].into()),
        }
    }

    #[test]
    fn what_was_written_counts_until_a_newer_version_is_seen() {
        let told = written(Instant::now());
        assert!(told.before(&object("1"), None).is_some());
        let seen = EndpointStatus {
            slots: Some(3),
            ..EndpointStatus::default()
        };
        let before = told.before(&object("2"), Some(&seen));
        assert_eq!(before.as_deref(), Some(&seen));
        assert!(told.before(&object("1"), None).is_none(), "it is forgotten");
    }

    #[test]
    fn the_first_is_told_at_once_and_what_is_summed_up_later_is_gathered() {
        let (told, now) = (Told::<EndpointStatus>::default(), Instant::now());
        assert_eq!(told.wait(&object("1"), true, now), None);
        let told = written(now);
        let wait = |is_urgent, after| told.wait(&object("2"), is_urgent, now + after);
        let half = PACE / 2;
        assert_eq!(wait(true, half), Some(half));
        assert_eq!(wait(true, PACE), None);
        // Since the first of them, however many follow.
        assert_eq!(wait(false, PACE), GATHER.checked_sub(half));
        assert_eq!(wait(false, half + GATHER), None);
        told.is_told(&object("2"));
        assert_eq!(wait(false, half + GATHER), Some(GATHER));
        assert_eq!(wait(true, REMEMBERED * 2), None);
    }
}
