//! Strategic merge patches of pods: how `template` of an object changes what the operator makes.
//!
//! Maps are merged, `null` takes away, lists are replaced; but lists of things with names are merged
//! by them, as the API server does for `kubectl patch`.

use serde_json::{Map, Value};

/// Lists of a pod's spec that are merged, and the field that tells their items apart.
const KEYED: [(&str, &str); 11] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("volumes", "name"),
    ("env", "name"),
    ("imagePullSecrets", "name"),
    ("resourceClaims", "name"),
    ("claims", "name"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
    ("ports", "containerPort"),
    ("hostAliases", "ip"),
];

/// Changes `base` as `patch` says.
pub fn merge(base: &mut Value, patch: &Value) {
    let (Value::Object(fields), Value::Object(changes)) = (&mut *base, patch) else {
        *base = patch.clone();
        return;
    };
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(name);
            continue;
        }
        let key = KEYED.iter().find(|(list, _)| list == name);
        let field = fields.entry(name).or_insert(Value::Null);
        match (key, change) {
            (Some((_, key)), Value::Array(items)) => merge_items(field, items, key),
            _ => merge(field, change),
        }
    }
}

fn merge_items(list: &mut Value, items: &[Value], key: &str) {
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    let Some(list) = list.as_array_mut() else {
        return;
    };
    for item in items {
        let known = list
            .iter_mut()
            .find(|known| known.get(key) == item.get(key));
        if let Some(known) = known {
            merge(known, item);
        } else {
            // What a new item takes away is nowhere.
            let mut new = Value::Object(Map::new());
            merge(&mut new, item);
            list.push(new);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn merged(mut base: Value, patch: &Value) -> Value {
        merge(&mut base, patch);
        base
    }

    #[test]
    fn maps_are_merged_and_null_takes_away() {
        let base = json!({"a": {"b": 1, "c": 2}, "d": 3});
        let patch = json!({"a": {"b": null, "e": 4}, "d": 5});
        assert_eq!(merged(base, &patch), json!({"a": {"c": 2, "e": 4}, "d": 5}));
    }

    #[test]
    fn containers_are_merged_by_name_and_their_variables_too() {
        let base = json!({"containers": [{"name": "target", "image": "i", "env": [{"name": "A", "value": "1"}]}]});
        let patch = json!({"containers": [
            {"name": "target", "env": [{"name": "B", "value": "2"}, {"name": "A", "value": "3"}]},
            {"name": "beside", "image": "j"},
        ]});
        let expected = json!({"containers": [
            {"name": "target", "image": "i", "env": [{"name": "A", "value": "3"}, {"name": "B", "value": "2"}]},
            {"name": "beside", "image": "j"},
        ]});
        assert_eq!(merged(base, &patch), expected);
    }

    #[test]
    fn lists_without_names_are_replaced() {
        let base = json!({"tolerations": [{"key": "a"}], "args": ["x"]});
        let patch = json!({"tolerations": [{"key": "b"}]});
        assert_eq!(
            merged(base, &patch),
            json!({"tolerations": [{"key": "b"}], "args": ["x"]})
        );
    }

    #[test]
    fn whatever_the_patch_is_nothing_panics() {
        for patch in [
            json!(1),
            json!({"containers": 3}),
            json!({"containers": [1, null]}),
        ] {
            merged(json!({"containers": [{"name": "target"}]}), &patch);
        }
    }
}
