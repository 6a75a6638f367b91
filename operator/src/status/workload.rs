//! What a Deployment says of its pods, or a `LeaderWorkerSet` of its groups.

use serde_json::Value;

use super::trouble::Trouble;
use crate::figures::Fetching;

/// What a Deployment says of its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// Pods that are wanted.
    pub wanted: u32,
    /// Pods that exist.
    pub exist: u32,
    /// Those of them that are made from what is wanted now.
    pub updated: u32,
    /// Those that can serve.
    pub ready: u32,
    /// Whether the cluster has seen what is wanted now.
    pub is_seen: bool,
    /// What keeps pods from being there or from serving, if that is known.
    pub trouble: Option<Trouble>,
    /// How far the model's download is, while it is.
    pub fetching: Option<Fetching>,
}

impl Workload {
    /// What the `Deployment` in `object` says, its metadata left aside; `generation` is its own.
    pub fn read(object: &Value, generation: Option<i64>) -> Self {
        let count = |path: &str| {
            let count = object.pointer(path).and_then(Value::as_u64);
            count.unwrap_or(0).try_into().unwrap_or(u32::MAX)
        };
        let observed = object.pointer("/status/observedGeneration");
        Self {
            wanted: count("/spec/replicas"),
            exist: count("/status/replicas"),
            updated: count("/status/updatedReplicas"),
            ready: count("/status/readyReplicas"),
            is_seen: observed.and_then(Value::as_i64) >= generation,
            trouble: trouble(object),
            fetching: None,
        }
    }

    /// What the `LeaderWorkerSet` in `object` says, its metadata left aside: its groups count as pods.
    /// It does not say which of its generations it has seen, so for a moment after an edit what was
    /// said before the edit is taken for what is.
    pub fn of_groups(object: &Value) -> Self {
        let conditions = object
            .pointer("/status/conditions")
            .and_then(Value::as_array);
        let is_available = |one: &Value| one["type"] == "Available" && one["status"] == "True";
        let wants_none = object["spec"]["replicas"] == 0;
        let mut said = Self::read(object, None);
        // Of a set `Progressing` means that something is underway, not that it goes well.
        said.trouble = None;
        said.is_seen = wants_none || conditions.is_some_and(|all| all.iter().any(is_available));
        said
    }

    /// Whether what is wanted is what runs.
    pub fn is_settled(&self) -> bool {
        let Self {
            wanted,
            exist,
            updated,
            ready,
            is_seen,
            trouble: _,
            fetching: _,
        } = self;
        *is_seen && exist == wanted && updated == wanted && ready == wanted
    }

    /// Why no pod of this component is ready, as far as it is known, and where to look.
    pub(super) fn why_not_ready(&self, component: &str, selector: &str) -> String {
        if let Some(Trouble { message, .. }) = &self.trouble {
            return format!(
                "no {component} is ready: {message}; see `kubectl describe pods -l {selector}`"
            );
        }
        if let Some(fetching) = &self.fetching {
            return format!("no {component} is ready: {fetching}");
        }
        match self {
            Self {
                wanted: 0,
                is_seen: true,
                ..
            } => {
                format!("no {component} is wanted: set its replicas to 1 or more")
            }
            Self { exist: 0, .. } => format!("no {component} exists yet"),
            Self { wanted, .. } => format!(
                "0 of {wanted} are ready: if it stays so, see `kubectl describe pods -l {selector}`"
            ),
        }
    }

    /// Ready and wanted, such as `1/2`.
    pub fn shown(&self) -> String {
        format!("{}/{}", self.ready, self.wanted)
    }
}

/// What the Deployment's own conditions complain of.
fn trouble(object: &Value) -> Option<Trouble> {
    let conditions = object.pointer("/status/conditions")?.as_array()?;
    let complains = |condition: &&Value| {
        let is = |status: &str| condition["status"] == status;
        match condition["type"].as_str() {
            Some("ReplicaFailure") => is("True"),
            Some("Progressing") => is("False"),
            _ => false,
        }
    };
    let condition = conditions.iter().find(complains)?;
    let said = condition["message"].as_str()?;
    Some(if condition["type"] == "ReplicaFailure" {
        Trouble {
            reason: "PodsNotCreated",
            message: format!("{said}: raise the quota, or correct template"),
        }
    } else {
        Trouble {
            reason: "NotProgressing",
            message: said.to_owned(),
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_deployment_is_settled_when_all_its_pods_are_new_and_ready() {
        let mut object = json!({
            "spec": {"replicas": 2},
            "status": {"observedGeneration": 3, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2},
        });
        assert!(Workload::read(&object, Some(3)).is_settled());
        assert!(!Workload::read(&object, Some(4)).is_settled(), "not seen");
        object["status"]["readyReplicas"] = 1.into();
        let workload = Workload::read(&object, Some(3));
        assert!(!workload.is_settled());
        assert_eq!(workload.shown(), "1/2");
    }

    #[test]
    fn groups_are_settled_when_all_of_them_are_ready_and_their_set_says_so() {
        let mut object = json!({
            "spec": {"replicas": 2},
            "status": {
                "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2,
                "conditions": [
                    {"type": "Progressing", "status": "False", "message": "Replicas are progressing"},
                    {"type": "Available", "status": "True", "message": "All replicas are ready"},
                ],
            },
        });
        let workload = Workload::of_groups(&object);
        assert!(workload.is_settled());
        assert_eq!((workload.shown().as_str(), workload.trouble), ("2/2", None));
        object["status"]["conditions"][1]["status"] = "False".into();
        assert!(!Workload::of_groups(&object).is_settled());
        let none = json!({"spec": {"replicas": 0}, "status": {}});
        assert!(Workload::of_groups(&none).is_settled());
    }

    #[test]
    fn what_the_cluster_complains_of_is_kept() {
        let failure = json!({"type": "ReplicaFailure", "status": "True", "message": "quota"});
        let fine = json!({"type": "Progressing", "status": "True", "message": "fine"});
        let object = json!({"status": {"conditions": [fine, failure]}});
        assert_eq!(
            Workload::read(&object, None).trouble.map(|it| it.reason),
            Some("PodsNotCreated")
        );
    }
}
