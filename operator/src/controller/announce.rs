//! Tells people of changes by Events. Nothing depends on it.

use std::{
    collections::HashMap,
    sync::PoisonError,
    time::{Duration, Instant},
};

use kube::{
    Resource,
    runtime::events::{Event, EventType},
};
use serde_json::json;

use super::{Context, key};
use crate::{Owner, apply::Written, nudge, object::digest, status::Change};

/// Longest note of an Event, in bytes, that API servers take.
const LONGEST: usize = 1000;
/// How long it is remembered that a note was given: for longer than the recorder does.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Most notes of one object and reason that are told apart in that time.
const MOST: usize = 10;
/// What is said instead of any more of them.
const MORE: &str = "this has happened again in other ways, too many to tell: see the conditions of this object, \
                    and the log of the operator";

/// Notes that were given of late. The recorder counts an Event that it has published again, whatever its
/// note says now, unless its action is another: so the action names the note.
#[derive(Debug, Default)]
pub(super) struct Notes {
    /// When each was given last, by object and reason.
    given: HashMap<(String, String), HashMap<String, Instant>>,
}

impl Notes {
    /// The action and the note that `change` of `object` is told with.
    fn told(&mut self, object: &str, change: &Change, now: Instant) -> (String, String) {
        self.given.retain(|_, notes| {
            notes.retain(|_, at| now.saturating_duration_since(*at) < REMEMBERED);
            !notes.is_empty()
        });
        let mut note = change.note.clone();
        while note.len() > LONGEST {
            note.pop();
        }
        let whose = (object.to_owned(), change.reason.clone());
        let notes = self.given.entry(whose).or_default();
        let mut name = digest(&json!(note));
        if notes.len() >= MOST && !notes.contains_key(&name) {
            MORE.clone_into(&mut note);
            name = digest(&json!(note));
        }
        notes.insert(name.clone(), now);
        (format!("Reconcile-{name}"), note)
    }
}

impl Context {
    /// Tells people of changes.
    pub(super) async fn announce<K: Resource<DynamicType = ()>>(
        &self,
        object: &K,
        changes: Vec<Change>,
    ) {
        for change in changes {
            let (action, note) = {
                let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
                notes.told(&key(object), &change, Instant::now())
            };
            let type_ = if change.is_warning {
                EventType::Warning
            } else {
                EventType::Normal
            };
            let event = Event {
                type_,
                reason: change.reason,
                note: Some(note),
                action,
                secondary: None,
            };
            let published = self.recorder.publish(&event, &object.object_ref(&())).await;
            if let Err(error) = published {
                tracing::debug!(%error, "an event was not published");
            }
        }
    }

    /// Tells pods of what they read again, and people what was written.
    pub(super) async fn announce_written<K>(&self, object: &K, owner: &Owner, written: Written)
    where
        K: Resource<DynamicType = ()>,
    {
        let Written {
            applied,
            pruned,
            undone,
            is_remounted,
            rolling: _,
        } = written;
        if is_remounted {
            nudge::nudge(&self.client, self.world.all_pods_of(owner)).await;
        }
        if applied + pruned > 0 {
            let Owner {
                namespace, name, ..
            } = owner;
            tracing::info!(namespace, name, applied, pruned, "brought to what it says");
        }
        self.announce_undone(object, undone).await;
    }

    /// Tells people that what they changed was put back.
    async fn announce_undone<K>(&self, object: &K, undone: Vec<String>)
    where
        K: Resource<DynamicType = ()>,
    {
        let change = |what: String| Change {
            is_warning: true,
            reason: "EditUndone".to_owned(),
            note: format!(
                "{what} was changed by somebody else and is put back: edit this object, or its \
                 template, instead"
            ),
        };
        let changes = undone.into_iter().map(change).collect();
        self.announce(object, changes).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(note: &str) -> Change {
        Change {
            is_warning: false,
            reason: "Scaled".into(),
            note: note.into(),
        }
    }

    #[test]
    fn notes_that_differ_are_events_of_their_own_and_one_that_is_given_again_is_the_same() {
        let (mut notes, now) = (Notes::default(), Instant::now());
        let mut told = |note: &str| notes.told("o", &change(note), now);
        let first = told("from 2 to 4 targets");
        let second = told("from 4 to 8 targets");
        assert_eq!(second.1, "from 4 to 8 targets");
        assert_ne!(first.0, second.0);
        assert_eq!(told("from 2 to 4 targets"), first);
        let long = told(&"ä".repeat(2000));
        assert!(first.0.len() <= 128 && long.1.len() <= LONGEST);
    }

    #[test]
    fn however_many_notes_there_are_events_do_not_multiply() {
        let (mut notes, now) = (Notes::default(), Instant::now());
        let mut actions = std::collections::BTreeSet::new();
        for number in 0..1000u32 {
            let (action, _) = notes.told("o", &change(&format!("crash {number}")), now);
            actions.insert(action);
        }
        assert_eq!(actions.len(), MOST + 1);
        let (_, note) = notes.told("o", &change("crash 1000"), now);
        assert_eq!(note, MORE);
        let (_, note) = notes.told("other", &change("crash 1000"), now);
        assert_eq!(note, "crash 1000");
        let (_, note) = notes.told("o", &change("crash 1000"), now + REMEMBERED);
        assert_eq!(note, "crash 1000", "it is another time");
    }
}
