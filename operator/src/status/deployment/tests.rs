use foretoken_crds::status::SpeculationState;
use serde_json::json;

use super::*;
use crate::resolve::{Found, SourceError};

fn object() -> SpecDecodeDeployment {
    let object = json!({
        "apiVersion": "foretoken.io/v1alpha1",
        "kind": "SpecDecodeDeployment",
        "metadata": {"name": "story", "namespace": "chat", "generation": 3},
        "spec": {
            "model": {"uri": "hf://a/b"},
            "speculation": {
                "policy": {"type": "Speculative"},
                "endpoints": [{"name": "tiny", "namespace": "drafts"}],
            },
        },
    });
    serde_json::from_value(object).expect("valid")
}

fn workload(ready: u32) -> Workload {
    Workload {
        wanted: 2,
        exist: 2,
        updated: 2,
        ready,
        is_seen: true,
        trouble: None,
        fetching: None,
    }
}

fn observed() -> Observed {
    let found = Found {
        namespace: "drafts".into(),
        name: "tiny".into(),
        weight: 1,
    };
    let used = UsedEndpoint {
        namespace: "drafts".into(),
        name: "tiny".into(),
        ready: true,
        ..UsedEndpoint::default()
    };
    Observed {
        resolved: Resolved {
            found: vec![found],
            problems: Vec::new(),
        },
        endpoints: vec![used],
        figures: None,
        namesakes: Vec::new(),
        is_simulated: false,
        target: Some(workload(2)),
        revisions: BTreeSet::new(),
        router: Some(workload(2)),
        selectors: ["t=1".into(), "r=1".into()],
        refused: None,
        failing: None,
    }
}

/// Conditions as `Type=Status Reason`.
fn told(observed: &Observed) -> (DeploymentStatus, Vec<String>) {
    let status = deployment(&object(), None, observed, Timestamp::UNIX_EPOCH);
    let said = status.conditions.iter();
    let said = said
        .map(|c| format!("{}={} {}", c.type_, c.status, c.reason))
        .collect();
    (status, said)
}

#[test]
fn what_is_simulated_is_said_to_be() {
    let observed = Observed {
        is_simulated: true,
        ..observed()
    };
    let told = deployment(&object(), None, &observed, Timestamp::UNIX_EPOCH);
    let accepted = told.conditions.iter().find(|one| one.type_ == ACCEPTED);
    let accepted = accepted.map(|one| (one.status.as_str(), one.reason.as_str()));
    assert_eq!(accepted, Some(("True", "Simulated")));
}

#[test]
fn what_serves_is_ready_and_its_columns_are_filled() {
    let (status, said) = told(&observed());
    assert_eq!(
        said,
        [
            "Accepted=True Accepted",
            "EndpointsResolved=True Resolved",
            "EndpointsCompatible=Unknown NotKnownYet",
            "TargetReady=True PodsReady",
            "RouterReady=True PodsReady",
            "SpeculationActive=True Drafting",
            "Progressing=False Complete",
            "Ready=True Serving",
        ]
    );
    assert_eq!(status.targets.as_deref(), Some("2/2"));
    assert_eq!(status.observed_generation, Some(3));
    assert_eq!(
        status.url.as_deref(),
        Some("http://story-router.chat.svc:8000")
    );
    let speculation = status.speculation.expect("told");
    assert_eq!(speculation.state, SpeculationState::Active);
}

#[test]
fn the_revision_that_is_asked_for_is_told_when_all_ready_targets_have_it() {
    let wanted = revision::of_targets(&object());
    let old = "0123456789abcdef".to_owned();
    let told = |served: &[&String]| {
        let observed = Observed {
            revisions: served.iter().copied().cloned().collect(),
            ..observed()
        };
        // What was told before is told no longer than it is so.
        let before = DeploymentStatus {
            revision: Some("gone".into()),
            ..DeploymentStatus::default()
        };
        deployment(&object(), Some(&before), &observed, Timestamp::UNIX_EPOCH).revision
    };
    assert_eq!(told(&[&old]), Some(old.clone()));
    assert_eq!(told(&[&wanted, &old]), Some(old.clone()));
    assert_eq!(told(&[&wanted]), Some(wanted.clone()));
    assert_eq!(told(&[]), None);
}

#[test]
fn a_missing_endpoint_degrades_speculation_and_not_the_service() {
    let mut observed = observed();
    observed.resolved.problems.push(SourceError::Missing {
        field: "spec.speculation.endpoints[1]".into(),
        namespace: "drafts".into(),
        name: "huge".into(),
    });
    let (status, said) = told(&observed);
    assert!(
        said.contains(&"EndpointsResolved=False EndpointNotFound".to_owned()),
        "{said:?}"
    );
    assert!(said.contains(&"Ready=True Serving".to_owned()), "{said:?}");
    let speculation = status.speculation.expect("told");
    assert_eq!(speculation.state, SpeculationState::Degraded);
    observed.endpoints[0].ready = false;
    let speculation = told(&observed).0.speculation.expect("told");
    assert_eq!(speculation.state, SpeculationState::Off);
    assert_eq!(speculation.reason.as_deref(), Some("NoEndpointReady"));
}

#[test]
fn what_is_refused_says_so_and_what_ran_before_is_still_told() {
    let refused = Refused {
        reason: "PolicyNotServed".into(),
        message: "set it".into(),
    };
    let observed = Observed {
        refused: Some(refused),
        ..observed()
    };
    let (_, said) = told(&observed);
    assert_eq!(said[0], "Accepted=False PolicyNotServed");
    assert!(
        said.contains(&"Progressing=False NotAccepted".to_owned()),
        "{said:?}"
    );
    assert!(said.contains(&"Ready=True Serving".to_owned()), "{said:?}");
}

#[test]
fn without_a_ready_target_the_message_says_where_to_look() {
    let observed = Observed {
        target: Some(workload(0)),
        ..observed()
    };
    let (status, said) = told(&observed);
    assert!(
        said.contains(&"Ready=False NoTargetReady".to_owned()),
        "{said:?}"
    );
    assert!(
        said.contains(&"Progressing=True RollingOut".to_owned()),
        "{said:?}"
    );
    let ready = status
        .conditions
        .iter()
        .find(|one| one.type_ == TARGET_READY);
    let message = &ready.expect("told").message;
    assert!(
        message.contains("`kubectl describe pods -l t=1`"),
        "{message}"
    );
}

#[test]
fn a_model_of_the_same_name_beside_it_is_told_and_served_all_the_same() {
    let observed = Observed {
        namesakes: vec!["other".into()],
        ..observed()
    };
    let (status, said) = told(&observed);
    assert_eq!(said[0], "Accepted=True ServedNameShared");
    assert!(
        status.conditions[0]
            .message
            .contains("other of this namespace")
    );
}

#[test]
fn trouble_of_pods_is_the_reason_and_downloads_are_told() {
    let trouble = crate::status::Trouble {
        reason: "Unschedulable",
        message: "pod p cannot be placed: no room: add nodes".into(),
    };
    let mut observed = Observed {
        target: Some(Workload {
            trouble: Some(trouble),
            ..workload(0)
        }),
        ..observed()
    };
    let (status, said) = told(&observed);
    for expected in [
        "TargetReady=False Unschedulable",
        "Progressing=True Unschedulable",
        "Ready=False NoTargetReady",
    ] {
        assert!(
            said.contains(&expected.to_owned()),
            "{expected} in {said:?}"
        );
    }
    let ready = status.conditions.last().expect("told");
    assert!(ready.message.contains("add nodes"), "{}", ready.message);
    observed.target = Some(Workload {
        fetching: Some(crate::figures::Fetching {
            percent: 30,
            total: 6_200_000_000,
        }),
        ..workload(0)
    });
    let (status, _) = told(&observed);
    let progressing = &status.conditions[status.conditions.len() - 2];
    assert!(
        progressing
            .message
            .contains("the model is being downloaded: 30 % of 6.2 GB"),
        "{}",
        progressing.message
    );
}

#[test]
fn the_same_observation_gives_the_same_status() {
    let first = told(&observed()).0;
    let later = Timestamp::from_second(1000).expect("a time");
    let again = deployment(&object(), Some(&first), &observed(), later);
    assert_eq!(again, first);
}
