//! Watches of our kinds that one object which is not understood does not end.
//!
//! Definitions may be newer than this operator: an object may then say what it has no word for. Such
//! an object stays what it was when it was last understood, and is told so; all others go on.

use foretoken_crds::status::condition::ACCEPTED;
use futures::{Stream, StreamExt as _, channel::mpsc::UnboundedSender};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource,
    api::{DynamicObject, Patch, PatchParams},
    core::ApiResource,
    runtime::watcher::{self, Config, Event},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Reason of the condition.
const NOT_UNDERSTOOD: &str = "NotUnderstood";

/// An object that is not understood.
#[derive(Debug)]
pub(crate) struct Misread {
    resource: ApiResource,
    object: DynamicObject,
    error: String,
}

/// The objects of a kind, but for those that are not understood, which go to `misread`.
pub(super) fn watch<K>(
    client: &Client,
    misread: UnboundedSender<Misread>,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send + use<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    let resource = ApiResource::erase::<K>(&());
    let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
    let events = watcher::watcher(api, Config::default());
    events.filter_map(move |event| {
        let read = match event {
            Ok(event) => read(event, &resource, &misread).map(Ok),
            Err(error) => Some(Err(error)),
        };
        std::future::ready(read)
    })
}

/// The same event of an object that is understood.
fn read<K: DeserializeOwned>(
    event: Event<DynamicObject>,
    resource: &ApiResource,
    misread: &UnboundedSender<Misread>,
) -> Option<Event<K>> {
    let understood = |object: DynamicObject| match parse(&object) {
        Ok(read) => Some(read),
        Err(error) => {
            // Nobody is there to hear only when the operator is about to end.
            let _ = misread.unbounded_send(Misread {
                resource: resource.clone(),
                object,
                error: error.to_string(),
            });
            None
        }
    };
    match event {
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
        Event::InitApply(object) => understood(object).map(Event::InitApply),
        Event::Apply(object) => understood(object).map(Event::Apply),
        Event::Delete(object) => parse(&object)
            .or_else(|_| parse(&nameplate(object)))
            .ok()
            .map(Event::Delete),
    }
}

fn parse<K: DeserializeOwned>(object: &DynamicObject) -> Result<K, serde_json::Error> {
    serde_json::from_value(serde_json::to_value(object)?)
}

/// An object of that name which says as little as any of our kinds may: what is gone is known by its
/// name alone.
fn nameplate(object: DynamicObject) -> DynamicObject {
    DynamicObject {
        data: json!({"spec": {"model": {"uri": "file:///gone"}, "device": "cpu"}}),
        ..object
    }
}

/// Tells an object that it is not understood, unless it was told so.
pub(super) async fn complain(client: &Client, misread: Misread) {
    let Misread {
        resource,
        object,
        error,
    } = misread;
    let (name, namespace) = (
        object.metadata.name.clone().unwrap_or_default(),
        object.metadata.namespace.clone(),
    );
    tracing::warn!(
        kind = resource.kind,
        namespace,
        name,
        error,
        "not understood"
    );
    let Some(namespace) = namespace else { return };
    let Some(conditions) = with_complaint(&object, &error, Timestamp::now()) else {
        return;
    };
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
    let generation = object.metadata.generation;
    let patch = json!({"status": {"conditions": conditions, "observedGeneration": generation}});
    let params = PatchParams::default();
    if let Err(error) = api
        .patch_status(&name, &params, &Patch::Merge(&patch))
        .await
    {
        tracing::warn!(namespace, name, %error, "it could not be told so");
    }
}

/// Conditions of an object with one that says that it is not understood; none if it says so already.
fn with_complaint(object: &DynamicObject, error: &str, now: Timestamp) -> Option<Vec<Condition>> {
    let known = object.data.pointer("/status/conditions").cloned();
    let known = known.unwrap_or(Value::Array(Vec::new()));
    let mut conditions: Vec<Condition> = serde_json::from_value(known).unwrap_or_default();
    let message = format!(
        "this operator does not understand it: {error}: correct it, or run the operator of the \
         release that the definitions are of; what ran before goes on"
    );
    let complaint = Condition {
        type_: ACCEPTED.to_owned(),
        status: "False".to_owned(),
        reason: NOT_UNDERSTOOD.to_owned(),
        message,
        observed_generation: object.metadata.generation,
        last_transition_time: Time(now),
    };
    let Some(place) = conditions.iter().position(|one| one.type_ == ACCEPTED) else {
        conditions.insert(0, complaint);
        return Some(conditions);
    };
    let before = &conditions[place];
    let is_told = before.reason == complaint.reason
        && before.message == complaint.message
        && before.observed_generation == complaint.observed_generation;
    if is_told {
        return None;
    }
    conditions[place] = complaint;
    Some(conditions)
}

#[cfg(test)]
mod tests {
    use foretoken_crds::SpecDecodeDeployment;
    use futures::channel::mpsc;

    use super::*;

    fn object(policy: &str) -> DynamicObject {
        serde_json::from_value(json!({
            "apiVersion": "foretoken.io/v1alpha1", "kind": "SpecDecodeDeployment",
            "metadata": {"name": "story", "namespace": "chat", "generation": 2},
            "spec": {"model": {"uri": "hf://a/b"}, "speculation": {"policy": {"type": policy}}},
        }))
        .expect("an object")
    }

    #[test]
    fn one_that_is_not_understood_is_set_aside_and_its_end_is_still_heard() {
        let resource = ApiResource::erase::<SpecDecodeDeployment>(&());
        let (sender, mut misread) = mpsc::unbounded();
        let apply =
            |policy| read::<SpecDecodeDeployment>(Event::Apply(object(policy)), &resource, &sender);
        assert!(matches!(apply("SSD"), Some(Event::Apply(_))));
        assert!(misread.try_recv().is_err());
        assert!(apply("Hydra").is_none());
        let Misread {
            error, object: it, ..
        } = misread.try_recv().expect("set aside");
        assert!(error.contains("Hydra"), "{error}");
        let gone = read::<SpecDecodeDeployment>(Event::Delete(it), &resource, &sender);
        assert!(
            matches!(gone, Some(Event::Delete(gone)) if gone.metadata.name.as_deref() == Some("story"))
        );
    }

    #[test]
    fn a_complaint_is_made_once_for_each_edit() {
        let mut object = object("Hydra");
        let now = Timestamp::UNIX_EPOCH;
        let told = with_complaint(&object, "unknown variant", now).expect("news");
        assert!(told[0].message.contains("run the operator of the release"));
        object.data["status"] = json!({"conditions": told});
        assert!(with_complaint(&object, "unknown variant", now).is_none());
        object.metadata.generation = Some(3);
        assert!(with_complaint(&object, "unknown variant", now).is_some());
    }
}
