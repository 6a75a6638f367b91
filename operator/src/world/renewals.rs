//! Certificates that cert-manager has issued anew.

use std::collections::{HashMap, HashSet};

use crate::object::Owner;

use super::{
    Live,
    owned::{OwnerKey, key},
};

/// Which certificates were issued anew, by whom they are for.
#[derive(Default)]
pub(super) struct Renewals {
    /// The issue that each certificate was seen with last, by namespace and name.
    seen: HashMap<(String, String), Option<i64>>,
    /// Who has one that nobody was told of.
    untold: HashSet<OwnerKey>,
}

impl Renewals {
    /// Notes a certificate that came, changed or went.
    pub(super) fn note(&mut self, certificate: &Live, gone: bool) {
        let Live {
            namespace,
            name,
            issue,
            made_for,
            ..
        } = certificate;
        let named = (namespace.clone(), name.clone());
        if gone {
            self.seen.remove(&named);
            return;
        }
        // Of what is seen for the first time nothing is known, and pods that start have the newest.
        let before = self.seen.insert(named, *issue);
        if before.is_some_and(|before| before != *issue) {
            let owners = made_for.iter();
            self.untold
                .extend(owners.map(|(label, owner)| (label, namespace.clone(), owner.to_owned())));
        }
    }

    /// Whether `owner` has one that was issued anew since this was asked last.
    pub(super) fn take(&mut self, owner: &Owner) -> bool {
        self.untold.remove(&key(owner))
    }
}

#[cfg(test)]
mod tests {
    use foretoken_crds::Kind;
    use serde_json::{Value, json};

    use super::*;
    use crate::object::{Made, OF_DEPLOYMENT};

    fn certificate(status: &Value) -> Live {
        let object = json!({
            "apiVersion": "cert-manager.io/v1", "kind": "Certificate",
            "metadata": {
                "name": "story-target", "namespace": "chat", "labels": {OF_DEPLOYMENT: "story"},
            },
            "status": status,
        });
        Live::of(
            Made::Certificate,
            serde_json::from_value(object).expect("an object"),
        )
    }

    #[test]
    fn a_certificate_issued_anew_is_told_of_once() {
        let owner = |name: &str| Owner {
            kind: Kind::SpecDecodeDeployment,
            namespace: "chat".into(),
            name: name.into(),
            uid: "1".into(),
        };
        let mut renewals = Renewals::default();
        let mut is_told = |status: Value, gone| {
            renewals.note(&certificate(&status), gone);
            assert!(!renewals.take(&owner("another")));
            let told = renewals.take(&owner("story"));
            assert!(!renewals.take(&owner("story")), "once");
            told
        };
        assert!(!is_told(json!({"revision": 3}), false), "seen first");
        assert!(!is_told(json!({"revision": 3, "conditions": []}), false));
        assert!(is_told(json!({"revision": 4}), false));
        assert!(!is_told(json!({"revision": 4}), true), "gone");
        assert!(!is_told(json!({}), false), "another of that name");
        assert!(is_told(json!({"revision": 1}), false));
    }
}
