//! How a replica of a target is spread over pods.

use foretoken_crds::{AcceleratorProfile, deployment::TargetSpec};

/// How a replica of a target is spread over pods: a stage of its pipeline is in pods of its own, and
/// so are the devices of a stage that one node does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pods of one replica, at least 1.
    pub pods: u32,
    /// Devices of one pod, at least 1.
    pub devices: u32,
}

impl Shape {
    /// That of `target`; `profile` is the one that it names, if there is one.
    pub fn of(target: &TargetSpec, profile: Option<&AcceleratorProfile>) -> Self {
        let parallelism = target.parallelism.unwrap_or_default();
        let tensor = parallelism.tensor.max(1);
        let most = profile.and_then(|profile| profile.spec.devices_per_node);
        let devices = most.map_or(tensor, |most| most.clamp(1, tensor));
        Self {
            pods: parallelism.pipeline.max(1) * tensor.div_ceil(devices),
            devices,
        }
    }

    /// Whether a replica is a group of pods.
    pub fn spans_pods(self) -> bool {
        self.pods > 1
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shape(parallelism: &serde_json::Value, per_node: Option<u32>) -> (u32, u32) {
        let target = serde_json::from_value(json!({"parallelism": parallelism})).expect("valid");
        let profile = serde_json::from_value(json!({
            "apiVersion": "foretoken.io/v1alpha1",
            "kind": "AcceleratorProfile",
            "metadata": {"name": "p"},
            "spec": {"device": "sim", "devicesPerNode": per_node},
        }));
        let Shape { pods, devices } = Shape::of(&target, Some(&profile.expect("valid")));
        (pods, devices)
    }

    #[test]
    fn stages_and_devices_that_a_node_does_not_have_are_in_other_pods() {
        assert_eq!(shape(&json!({}), None), (1, 1));
        assert_eq!(shape(&json!({"tensor": 8}), None), (1, 8));
        assert_eq!(shape(&json!({"tensor": 8}), Some(8)), (1, 8));
        assert_eq!(shape(&json!({"tensor": 4}), Some(8)), (1, 4));
        assert_eq!(shape(&json!({"tensor": 8}), Some(4)), (2, 4));
        assert_eq!(shape(&json!({"pipeline": 3}), None), (3, 1));
        assert_eq!(shape(&json!({"tensor": 8, "pipeline": 3}), Some(4)), (6, 4));
    }
}
