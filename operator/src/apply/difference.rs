//! How an object that is there differs from what is wanted.
//!
//! Nearly anything may be added to it: API servers add defaults, people labels. What may not is what would
//! make it another thing: an entry of a list, or of what selects pods, nodes and peers.

use serde_json::{Value, json};

use crate::object::{Made, Object};

/// Fields that select: with an entry more they mean others.
const EXACT: [&str; 6] = [
    "selector",
    "labelSelector",
    "matchLabels",
    "podSelector",
    "namespaceSelector",
    "nodeSelector",
];

/// The fields in which an object that is there, as `said`, does not have what is `wanted`.
pub(super) fn differences(said: &Value, wanted: &Object) -> Vec<String> {
    // Of who may dial all is said here, and nothing is left to defaults.
    let exactly = |name: &str| wanted.kind == Made::NetworkPolicy && name == "spec";
    let mut found = Vec::new();
    for (name, wanted) in wanted.body.as_object().into_iter().flatten() {
        let live = said.get(name);
        match name.as_str() {
            // Lists leave out what all of their items are.
            "apiVersion" | "kind" => {}
            _ if is_missing(live) && is_empty(wanted) => {}
            _ => compare(live, wanted, (name, exactly(name)), &mut found),
        }
    }
    found
}

/// Finds the fields below `path` in which `live` does not have what is `wanted`; it may have more, unless
/// it is to be that `exactly`.
fn compare(
    live: Option<&Value>,
    wanted: &Value,
    (path, exactly): (&str, bool),
    found: &mut Vec<String>,
) {
    match (live.unwrap_or(&Value::Null), wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            for (name, wanted) in wanted {
                let (live, path) = (live.get(name), format!("{path}.{name}"));
                if exactly || !(is_missing(live) && is_empty(wanted)) {
                    let exactly = exactly || EXACT.contains(&name.as_str());
                    compare(live, wanted, (&path, exactly), found);
                }
            }
            let others = live.keys().filter(|name| !wanted.contains_key(*name));
            let added = others.filter(|_| exactly);
            found.extend(added.map(|name| format!("{path}.{name}")));
        }
        (Value::Array(live), Value::Array(wanted)) if live.len() == wanted.len() => {
            for (index, (live, wanted)) in live.iter().zip(wanted).enumerate() {
                let path = format!("{path}[{index}]");
                compare(Some(live), wanted, (&path, exactly), found);
            }
        }
        (live, wanted) if live == wanted => {}
        _ => found.push(path.to_owned()),
    }
}

fn is_missing(value: Option<&Value>) -> bool {
    value.is_none_or(Value::is_null)
}

/// Whether the API server may leave `value` out.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// What makes the list at `field` what is `wanted`, if it was `applied` and has more than that: the list
/// that it is in, whole, since patches know no places in lists.
pub(super) fn surplus(applied: &Value, wanted: &Object, field: &str) -> Option<Value> {
    let pointer = |path: &str| format!("/{}", path.replace(['.', '['], "/").replace(']', ""));
    let length = |value: &Value| Some(value.pointer(&pointer(field))?.as_array()?.len());
    if length(applied)? <= length(&wanted.body)? {
        return None;
    }
    let list = field.split('[').next()?;
    let whole = wanted.body.pointer(&pointer(list))?.clone();
    let names = list.rsplit('.');
    Some(names.fold(whole, |value, name| json!({ name: value })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: Made, body: &Value) -> Object {
        Object {
            kind,
            namespace: "chat".into(),
            name: "story".into(),
            component: "target".into(),
            body: body.clone(),
        }
    }

    #[test]
    fn what_the_server_adds_is_no_difference_and_what_somebody_edits_is() {
        let wanted = json!({"spec": {"replicas": 2, "list": [{"name": "a"}], "nothing": {}}});
        let wanted = object(Made::Deployment, &wanted);
        let live = json!({
            "spec": {"replicas": 2, "list": [{"name": "a", "default": 1}], "default": true},
            "status": {},
        });
        assert_eq!(differences(&live, &wanted), [""; 0]);
        for (edited, field) in [
            (
                json!({"spec": {"replicas": 3, "list": [{"name": "a"}]}}),
                "spec.replicas",
            ),
            (json!({"spec": {"replicas": 2, "list": []}}), "spec.list"),
            (json!({"spec": {"list": [{"name": "a"}]}}), "spec.replicas"),
            (
                json!({"spec": {"replicas": 2, "list": [{"name": "b"}]}}),
                "spec.list[0].name",
            ),
        ] {
            assert_eq!(differences(&edited, &wanted), [field]);
        }
    }

    #[test]
    fn what_selects_has_nothing_beside_what_is_wanted() {
        let service = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"selector": {"a": "b"}}});
        let service = object(Made::Service, &service);
        let edited = json!({
            "metadata": {"labels": {"a": "b", "team": "x"}},
            "spec": {"selector": {"a": "b", "no": "body"}},
        });
        assert_eq!(differences(&edited, &service), ["spec.selector.no"]);
        let deployment = json!({"spec": {"template": {"spec": {"nodeSelector": {"gpu": "1"}}}}});
        let deployment = object(Made::Deployment, &deployment);
        let edited = json!({"spec": {"template": {"spec": {
            "nodeSelector": {"gpu": "1", "node": "one"}, "restartPolicy": "Always",
        }}}});
        let fields = differences(&edited, &deployment);
        assert_eq!(fields, ["spec.template.spec.nodeSelector.node"]);
    }

    #[test]
    fn a_policy_lets_nobody_in_beside_whom_it_is_to() {
        let pods = json!({"matchLabels": {"a": "b"}});
        let with = |peer: Value, port: Value| {
            let ingress = json!([{"from": [peer], "ports": [port]}]);
            json!({"spec": {"podSelector": pods, "ingress": ingress}})
        };
        let port = json!({"protocol": "TCP", "port": 1});
        let wanted = with(json!({"podSelector": pods}), port.clone());
        let policy = object(Made::NetworkPolicy, &wanted);
        assert_eq!(differences(&wanted, &policy), [""; 0]);
        let any = json!({"podSelector": pods, "namespaceSelector": {}});
        let peer = ["spec.ingress[0].from[0].namespaceSelector"];
        let fields = differences(&with(any.clone(), port.clone()), &policy);
        assert_eq!(fields, peer);
        let ports = json!({"protocol": "TCP", "port": 1, "endPort": 65535});
        let fields = differences(&with(json!({"podSelector": pods}), ports), &policy);
        assert_eq!(fields, ["spec.ingress[0].ports[0].endPort"]);
        // The other way round somebody is shut out.
        let policy = object(Made::NetworkPolicy, &with(any, port));
        assert_eq!(differences(&wanted, &policy), peer);
    }

    #[test]
    fn a_list_that_is_longer_than_wanted_is_cut_and_one_that_is_spelt_otherwise_is_not() {
        let container = |env: Value, cpu: Value| {
            let spec = json!({"containers": [{"name": "target", "env": env, "cpu": cpu}]});
            json!({"spec": {"template": {"spec": spec}}})
        };
        let wanted = container(json!([{"name": "A"}]), json!(2));
        let deployment = object(Made::Deployment, &wanted);
        let edited = container(json!([{"name": "A"}, {"name": "B"}]), json!("2"));
        let [spelt, longer] =
            ["cpu", "env"].map(|name| format!("spec.template.spec.containers[0].{name}"));
        let fields = differences(&edited, &deployment);
        assert_eq!(
            fields,
            [spelt.clone(), longer.clone()],
            "one hides no other"
        );
        assert_eq!(surplus(&edited, &deployment, &longer), Some(wanted));
        assert_eq!(surplus(&edited, &deployment, &spelt), None);
        let fewer = container(json!([]), json!(2));
        assert_eq!(surplus(&fewer, &deployment, &longer), None);
    }
}
