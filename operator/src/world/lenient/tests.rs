use foretoken_crds::{AcceleratorProfile, SpecDecodeDeployment, SpeculationEndpoint};
use kube::runtime::reflector::store::Writer;

use super::*;
use crate::{
    Owner,
    resolve::{self, Known},
};

fn object(kind: &str, name: &str, spec: &Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "foretoken.io/v1alpha1", "kind": kind,
        "metadata": {"name": name, "namespace": "drafts", "uid": name, "generation": 2},
        "spec": spec,
    }))
    .expect("an object")
}

fn endpoint(dtype: &str, grants: &Value) -> DynamicObject {
    let spec = json!({
        "model": {"uri": "hf://a/b"}, "dtype": dtype, "replicas": 3, "allowedNamespaces": grants,
    });
    object("SpeculationEndpoint", "tiny", &spec)
}

fn unclear<K: Resource<DynamicType = ()>>(object: &K) -> Option<bool> {
    Unclear::of(object.meta()).map(|unclear| unclear.is_in_parts)
}

/// What a store has after these events, each as it is read.
fn after(events: Vec<Event<DynamicObject>>) -> Store<SpeculationEndpoint> {
    let mut writer = Writer::default();
    let store = writer.as_reader();
    for event in events {
        if let Some(event) = read(event, &store) {
            writer.apply_watcher_event(&event);
        }
    }
    store
}

#[test]
fn one_that_is_not_understood_any_more_stays_what_it_was_whenever_all_are_listed_again() {
    let grants = json!({"from": "All"});
    let old = || endpoint("float32", &grants);
    let mut new = endpoint("int2", &json!({"from": "Same"}));
    new.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    let events = vec![
        Event::Init,
        Event::InitApply(old()),
        Event::InitDone,
        Event::Apply(new.clone()),
        Event::Init,
        Event::InitApply(new.clone()),
        Event::InitDone,
        Event::Init,
        Event::InitApply(new.clone()),
        Event::InitDone,
    ];
    let store = after(events.clone());
    let kept = store.state().pop().expect("it is there");
    assert_eq!(unclear(kept.as_ref()), Some(false));
    let before: SpeculationEndpoint = old().try_parse().expect("understood");
    assert_eq!(
        kept.spec, before.spec,
        "what it said when it was understood"
    );
    assert_eq!(kept.labels()["a"], "b", "what it is called now");
    let Refused { reason, message } = Unclear::of(&kept.metadata).expect("unclear").refused();
    assert_eq!(reason, "NotUnderstood");
    assert!(message.contains("int2"), "{message}");
    assert!(
        message.contains("run the operator of the release"),
        "{message}"
    );

    let understood = Event::Apply(old());
    let store = after([events.clone(), vec![understood]].concat());
    assert_eq!(
        unclear(store.state()[0].as_ref()),
        None,
        "it is understood again"
    );
    let gone = Event::Delete(new.clone());
    assert!(
        after([events.clone(), vec![gone]].concat())
            .state()
            .is_empty()
    );
    // Another object of the same name is another object.
    new.metadata.uid = Some("other".to_owned());
    let store = after([events, vec![Event::Apply(new)]].concat());
    assert_eq!(unclear(store.state()[0].as_ref()), Some(true));
}

#[test]
fn of_one_that_was_never_understood_the_parts_are_that_are_and_it_is_used_as_before() {
    for (dtype, grants) in [
        ("int2", json!({"from": "All"})),
        ("int8", json!({"from": "Friends"})),
        ("int2", json!({"from": "Friends"})),
    ] {
        let store = after(vec![Event::Apply(endpoint(dtype, &grants))]);
        let kept = store.state().pop().expect("it is there");
        assert_eq!(unclear(kept.as_ref()), Some(true));
        assert_eq!(
            (kept.spec.replicas, kept.spec.model.uri.as_str()),
            (Some(3), "hf://a/b")
        );
        let deployment = object(
            "SpecDecodeDeployment",
            "story",
            &json!({"model": {"uri": "hf://a/b"}, "speculation": {
                "policy": {"type": "SSD"}, "endpoints": [{"name": "tiny", "namespace": "drafts"}],
            }}),
        );
        let mut deployment: SpecDecodeDeployment = deployment.try_parse().expect("understood");
        deployment.metadata.namespace = Some("chat".to_owned());
        let known = Known {
            endpoints: &store.state(),
            labels: &BTreeMap::new(),
        };
        let resolved = resolve::resolve(&deployment, &known);
        assert_eq!(resolved.problems, []);
        assert_eq!(resolved.found.len(), 1);
    }
}

#[test]
fn whom_a_deployment_uses_is_known_though_it_was_never_understood() {
    let own = json!({"model": {"uri": "hf://a/b"}, "dtype": "int2"});
    let sources = json!([{"name": "tiny", "weight": "half"}, {"template": own}, {"template": own}]);
    for policy in ["SSD", "Hydra"] {
        let speculation = json!({"policy": {"type": policy}, "endpoints": sources});
        let spec = json!({
            "model": {"uri": "hf://a/b", "servedName": "story-10m"}, "speculation": speculation,
        });
        let object = object("SpecDecodeDeployment", "story", &spec);
        let read: SpecDecodeDeployment = understand(object, None).expect("an object");
        assert_eq!(unclear(&read), Some(true));
        assert_eq!(read.served_name(), "story-10m");
        let endpoint: SpeculationEndpoint =
            endpoint("float32", &Value::Null).try_parse().expect("one");
        assert!(resolve::names(&read, &endpoint));
        let owner = Owner::new(foretoken_crds::Kind::SpecDecodeDeployment, &read.metadata);
        let own = read.templates();
        let names: Vec<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [owner.name.as_str(), "story-2"]);
    }
}

#[test]
fn a_status_that_is_not_understood_is_no_reason_to_doubt_what_is_asked_for() {
    let mut object = endpoint("float32", &Value::Null);
    object.data["status"] = json!({"slots": 3, "consumers": "many", "drafts": "1/1"});
    let read: SpeculationEndpoint = understand(object, None).expect("an object");
    assert_eq!(unclear(&read), None);
    let status = read.status.expect("in parts");
    assert_eq!(
        (status.slots, status.drafts.as_deref()),
        (Some(3), Some("1/1"))
    );
    assert_eq!(status.consumers, []);
}

#[test]
fn nobody_else_says_that_an_object_is_not_understood() {
    let mut object = object("AcceleratorProfile", "cores", &json!({"device": "cpu"}));
    let said = [NOT_UNDERSTOOD, IN_PARTS, "a"].map(|name| (name.to_owned(), "b".to_owned()));
    object.metadata.annotations = Some(said.into());
    let read: AcceleratorProfile = understand(object, None).expect("an object");
    assert_eq!(unclear(&read), None);
    assert_eq!(read.annotations().len(), 1);
}
