//! Watches of our kinds in which an object that is not understood stays what it was.
//!
//! ```text
//! watched object ── understood ──────────────────────────────> it
//!        └──────── not understood ──┬─ known from before ─────> what it said then
//!                                   └─ never understood here ─> the parts that are understood
//! ```
//!
//! Definitions may be newer than this operator: an object may then say what it has no word for. It is
//! there all the same, for those who name it and for what was made for it; so it is handed on as it was
//! when it was last understood, with its present metadata and an [`Unclear`] on it. An operator that
//! never understood it has only those of its fields that it does understand: nothing is to be made or
//! removed by these, and whoever asks whether it is there, and for whom, is told.

use std::collections::BTreeMap;

use futures::{Stream, StreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::DynamicObject,
    core::ApiResource,
    runtime::{
        reflector::{ObjectRef, Store},
        watcher::{self, Config, Event},
    },
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::status::Refused;

/// Annotation, of objects as they are kept here and never of a cluster's: what is not understood.
const NOT_UNDERSTOOD: &str = "foretoken.io/not-understood";
/// The same of one that was never understood here.
const IN_PARTS: &str = "foretoken.io/understood-in-parts";

/// That an object is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unclear {
    /// What about it.
    error: String,
    /// Whether it was never understood here: it says no more than the parts that are.
    pub(crate) is_in_parts: bool,
}

impl Unclear {
    /// What is not understood of the object with this metadata.
    pub(crate) fn of(metadata: &ObjectMeta) -> Option<Self> {
        let annotations = metadata.annotations.as_ref()?;
        Some(Self {
            error: annotations.get(NOT_UNDERSTOOD)?.clone(),
            is_in_parts: annotations.contains_key(IN_PARTS),
        })
    }

    /// The same for people.
    pub(crate) fn refused(&self) -> Refused {
        let Self { error, is_in_parts } = self;
        let meanwhile = if *is_in_parts {
            "what ran before goes on as it is, and its certificates are renewed"
        } else {
            "what it said before goes on"
        };
        Refused {
            reason: "NotUnderstood".to_owned(),
            message: format!(
                "this operator does not understand it: {error}: correct it, or run the operator of \
                 the release that the definitions are of; {meanwhile}"
            ),
        }
    }

    /// The same of the profile `name`, for people who use it.
    pub(crate) fn profile_refused(&self, name: &str) -> Refused {
        Refused {
            reason: "ProfileNotUnderstood".to_owned(),
            message: format!(
                "this operator does not understand the AcceleratorProfile {name}: {}: correct it, or \
                 run the operator of the release that the definitions are of; what ran before goes on",
                self.error
            ),
        }
    }

    fn note(self, metadata: &mut ObjectMeta) {
        let notes = metadata.annotations.get_or_insert_with(BTreeMap::new);
        notes.insert(NOT_UNDERSTOOD.to_owned(), self.error);
        if self.is_in_parts {
            notes.insert(IN_PARTS.to_owned(), String::new());
        }
    }
}

/// The objects of a kind; `known` are those that were seen.
pub(super) fn watch<K>(
    client: &Client,
    known: Store<K>,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let resource = ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let events = watcher::watcher(api, Config::default());
    events.filter_map(move |event| {
        let read = match event {
            Ok(event) => read(event, &known).map(Ok),
            Err(error) => Some(Err(error)),
        };
        std::future::ready(read)
    })
}

/// The same event of the object as it is known here; none of one that is no object at all.
fn read<K>(event: Event<DynamicObject>, known: &Store<K>) -> Option<Event<K>>
where
    K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + 'static,
{
    let understood = |object: DynamicObject| {
        let mut reference = ObjectRef::new(&object.name_any());
        reference.namespace = object.namespace();
        let before = known.get(&reference);
        let before = before.filter(|before| before.uid() == object.uid());
        understand(object, before.as_deref())
    };
    match event {
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
        Event::InitApply(object) => understood(object).map(Event::InitApply),
        Event::Apply(object) => understood(object).map(Event::Apply),
        Event::Delete(object) => understood(object).map(Event::Delete),
    }
}

/// What is known of `object`, which was as `before` when it was seen last.
fn understand<K>(mut object: DynamicObject, before: Option<&K>) -> Option<K>
where
    K: Resource<DynamicType = ()> + Serialize + DeserializeOwned,
{
    if let Some(annotations) = &mut object.metadata.annotations {
        // Nobody else says so.
        annotations.retain(|name, _| name != NOT_UNDERSTOOD && name != IN_PARTS);
    }
    let mut whole = serde_json::to_value(&object).ok()?;
    if let Ok(read) = parse(&whole) {
        return Some(read);
    }
    // A status is written anew in any case.
    let status = whole["status"].take();
    if let Some(fields) = whole.as_object_mut() {
        fields.remove("status");
    }
    let error = match parse::<K>(&whole) {
        Ok(_) => return with_status(whole, &status),
        Err(error) => error.to_string(),
    };
    let said = whole["spec"].take();
    let known = before.filter(|before| {
        let unclear = Unclear::of(before.meta());
        unclear.is_none_or(|unclear| !unclear.is_in_parts)
    });
    let known = known.and_then(|known| serde_json::to_value(known).ok());
    let is_in_parts = known.is_none();
    match known {
        Some(mut known) => whole["spec"] = known["spec"].take(),
        None => parts::<K>(&mut whole, &said),
    }
    let kind = K::kind(&());
    let (name, namespace) = (object.name_any(), object.namespace());
    tracing::warn!(%kind, namespace, name, error, is_in_parts, "not understood");
    let mut read: K = with_status(whole, &status)?;
    Unclear { error, is_in_parts }.note(read.meta_mut());
    Some(read)
}

fn parse<K: DeserializeOwned>(whole: &Value) -> Result<K, serde_json::Error> {
    // Not by value: this is tried often, and fails as a rule.
    K::deserialize(whole)
}

/// `whole` with as much of its `status` as is understood.
fn with_status<K: DeserializeOwned>(mut whole: Value, status: &Value) -> Option<K> {
    if status.is_object() {
        whole["status"] = json!({});
        put::<K>(&mut whole, "/status", status);
        if parse::<K>(&whole).is_err() {
            whole["status"] = Value::Null;
        }
    }
    parse(&whole).ok()
}

/// Gives `whole` a spec of the parts of `said` that are understood.
fn parts<K: DeserializeOwned>(whole: &mut Value, said: &Value) {
    // As little as any of our kinds may say.
    whole["spec"] = json!({"model": {"uri": "file:///unknown"}, "device": "cpu"});
    put::<K>(whole, "/spec", said);
    let is_lost = |whole: &Value, name| !said[name].is_null() && whole["spec"][name].is_null();
    if is_lost(whole, "allowedNamespaces") {
        // Its own drafts hold namespaces to the grants that they were given, which stay.
        whole["spec"]["allowedNamespaces"] = json!({"from": "All"});
    }
    if is_lost(whole, "speculation") {
        // That it drafts, and where from: endpoints ask who uses them.
        whole["spec"]["speculation"] = json!({"policy": {"type": "SSD"}});
        let said = &said["speculation"];
        put::<K>(whole, "/spec/speculation", said);
        let is_read = whole["spec"]["speculation"]["endpoints"].is_array();
        let sources = said["endpoints"].as_array().filter(|_| !is_read);
        if let Some(sources) = sources {
            let sources = sources.iter().map(|said| source::<K>(whole, said));
            whole["spec"]["speculation"]["endpoints"] = sources.collect();
        }
    }
}

/// What is understood of a source of drafts of the deployment `whole`.
fn source<K: DeserializeOwned>(whole: &Value, said: &Value) -> Value {
    let mut whole = whole.clone();
    whole["spec"]["speculation"]["endpoints"] = json!([{}]);
    put::<K>(&mut whole, "/spec/speculation/endpoints/0", said);
    let mut source = whole["spec"]["speculation"]["endpoints"][0].take();
    if !said["template"].is_null() && source["template"].is_null() {
        // Which one it is, its place among them tells.
        source["template"] = json!({"model": {"uri": "file:///unknown"}});
    }
    source
}

/// Puts into the object at `path` of `whole` those fields of `said` with which it is understood.
fn put<K: DeserializeOwned>(whole: &mut Value, path: &str, said: &Value) {
    for (name, value) in said.as_object().into_iter().flatten() {
        let mut tried = whole.clone();
        if let Some(place) = tried.pointer_mut(path) {
            place[name] = value.clone();
        }
        if parse::<K>(&tried).is_ok() {
            *whole = tried;
        }
    }
}

#[cfg(test)]
mod tests;
