use foretoken_crds::status::{DeploymentStatus, condition::ENDPOINTS_COMPATIBLE};
use foretoken_service::report::Rounds;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::{
    resolve::Resolved,
    status::{Workload, deployment},
};

fn object(kind: &str) -> SpecDecodeDeployment {
    let object = json!({
        "apiVersion": "foretoken.io/v1alpha1",
        "kind": "SpecDecodeDeployment",
        "metadata": {"name": "story", "namespace": "chat", "generation": 3},
        "spec": {
            "model": {"uri": "hf://a/b"},
            "speculation": {"policy": {"type": kind}, "onLoss": "Local"},
        },
    });
    serde_json::from_value(object).expect("valid")
}

fn used(name: &str, ready: bool) -> UsedEndpoint {
    UsedEndpoint {
        namespace: "d".into(),
        name: name.into(),
        ready,
        ..UsedEndpoint::default()
    }
}

fn heard(links: &[(&str, usize, Option<&str>)]) -> DeploymentFigures {
    let links = links.iter().map(|(name, up, refused)| {
        let links = Links {
            up: *up,
            refused: refused.map(str::to_owned),
            trouble: None,
        };
        (("d".to_owned(), (*name).to_owned()), links)
    });
    DeploymentFigures {
        links: links.collect(),
        ..DeploymentFigures::default()
    }
}

fn told(
    before: Option<&DeploymentStatus>,
    endpoints: &[UsedEndpoint],
    figures: Option<DeploymentFigures>,
) -> DeploymentStatus {
    told_of(1, before, endpoints, figures)
}

fn told_of(
    targets: u32,
    before: Option<&DeploymentStatus>,
    endpoints: &[UsedEndpoint],
    figures: Option<DeploymentFigures>,
) -> DeploymentStatus {
    let target = Workload {
        wanted: 1,
        ready: targets,
        ..Workload::default()
    };
    let observed = Observed {
        resolved: Resolved::default(),
        endpoints: endpoints.to_vec(),
        figures,
        target: Some(target),
        ..Observed::default()
    };
    deployment(&object("SSD"), before, &observed, Timestamp::UNIX_EPOCH)
}

/// State and reason, then status and message of a condition.
fn shown(status: &DeploymentStatus, kind: &str) -> (String, String, String) {
    let speculation = status.speculation.clone().unwrap_or_default();
    let state = format!(
        "{:?} {}",
        speculation.state,
        speculation.reason.unwrap_or_default()
    );
    let mut conditions = status.conditions.iter();
    let condition = conditions.find(|condition| condition.type_ == kind);
    let condition = condition.expect("told");
    let holds = format!("{} {}", condition.status, condition.reason);
    (state, holds, condition.message.clone())
}

#[test]
fn an_endpoint_with_other_tokens_is_named_with_what_to_do() {
    let why = "the target has a vocabulary of 128 entries, the endpoint of 256: choose a draft \
               model with the target's tokenizer";
    let endpoints = [used("tiny", true), used("huge", true)];
    let figures = heard(&[("tiny", 1, None), ("huge", 0, Some(why))]);
    let status = told(None, &endpoints, Some(figures));
    let (state, holds, message) = shown(&status, ENDPOINTS_COMPATIBLE);
    assert_eq!(
        (state.as_str(), holds.as_str()),
        ("Degraded SomeIncompatible", "False Incompatible")
    );
    assert_eq!(
        message,
        format!("d/huge: {why}; requests are served without it")
    );
    let alone = told(
        None,
        &endpoints[1..],
        Some(heard(&[("huge", 0, Some(why))])),
    );
    let (state, holds, _) = shown(&alone, SPECULATION_ACTIVE);
    assert_eq!(
        (state.as_str(), holds.as_str()),
        ("Off NoneCompatible", "False NoneCompatible")
    );
    let used = &alone.speculation.expect("told").endpoints[0];
    assert_eq!(
        (used.compatible, used.reason.as_deref()),
        (Some(false), Some(why))
    );
}

#[test]
fn a_pool_of_which_some_replicas_fit_does() {
    // As while it comes to another revision.
    let figures = heard(&[("tiny", 4, Some("other tokens"))]);
    let status = told(None, &[used("tiny", true)], Some(figures));
    let (state, holds, _) = shown(&status, ENDPOINTS_COMPATIBLE);
    assert_eq!(
        (state.trim(), holds.as_str()),
        ("Active", "True Compatible")
    );
}

#[test]
fn what_was_heard_is_kept_while_nothing_is() {
    let endpoints = [used("tiny", true)];
    let mut figures = heard(&[("tiny", 2, None)]);
    figures.rounds = Rounds {
        windows: 100,
        accepted: 250,
        hits: 80,
        misses: 20,
    };
    let first = told(None, &endpoints, Some(figures));
    let (state, holds, _) = shown(&first, ENDPOINTS_COMPATIBLE);
    assert_eq!(
        (state.as_str(), holds.as_str()),
        ("Active ", "True Compatible")
    );
    let speculation = first.speculation.clone().expect("told");
    assert_eq!(speculation.acceptance_length, Some(3.5));
    assert_eq!(speculation.hit_rate, Some(0.8));
    assert_eq!(told(Some(&first), &endpoints, None), first);
}

#[test]
fn the_state_follows_links_where_they_are_known() {
    let both = [used("a", true), used("b", true)];
    for (endpoints, links, expected) in [
        (
            &both[..],
            vec![("a", 1, None), ("b", 0, None)],
            "Degraded SomeNotConnected",
        ),
        (&both[..], vec![], "Off NotConnected"),
        (&both[..], vec![("a", 1, None), ("b", 3, None)], "Active "),
        (
            &[used("a", true), used("b", false)],
            vec![("a", 1, None)],
            "Degraded SomeEndpointsMissing",
        ),
        (
            &[used("a", false)],
            vec![("a", 1, None)],
            "Off NoEndpointReady",
        ),
        (&[], vec![], "Off NoEndpoints"),
    ] {
        let status = told(None, endpoints, Some(heard(&links)));
        let (state, holds, message) = shown(&status, SPECULATION_ACTIVE);
        assert_eq!(state, expected);
        assert_eq!(
            holds.starts_with("True"),
            !expected.starts_with("Off"),
            "{expected}"
        );
        assert!(!message.is_empty());
    }
}

#[test]
fn nobody_drafts_for_targets_that_are_not_ready_and_an_operator_that_starts_takes_nothing_back() {
    let endpoints = [used("tiny", true)];
    for figures in [None, Some(heard(&[])), Some(heard(&[("tiny", 1, None)]))] {
        let status = told_of(0, None, &endpoints, figures);
        let (state, holds, message) = shown(&status, SPECULATION_ACTIVE);
        assert_eq!(
            (state.as_str(), holds.as_str()),
            ("Off NoTargetReady", "False NoTargetReady")
        );
        assert!(message.contains("see TargetReady"), "{message}");
    }
    // It has heard nobody yet.
    let drafts = told(None, &endpoints, Some(heard(&[("tiny", 1, None)])));
    let (state, holds, _) = shown(&told(Some(&drafts), &endpoints, None), SPECULATION_ACTIVE);
    assert_eq!((state.trim(), holds.as_str()), ("Active", "True Drafting"));
}

#[test]
fn without_drafts_nothing_is_amiss() {
    let observed = Observed::default();
    let status = deployment(
        &object("Autoregressive"),
        None,
        &observed,
        Timestamp::UNIX_EPOCH,
    );
    let (state, holds, _) = shown(&status, ENDPOINTS_COMPATIBLE);
    assert_eq!(
        (state.as_str(), holds.as_str()),
        ("Off NotAskedFor", "True NotNeeded")
    );
}

#[test]
fn of_more_endpoints_than_a_status_has_room_for_the_wrong_ones_are_listed() {
    let names: Vec<String> = (0..70).map(|number| format!("e{number:02}")).collect();
    let endpoints: Vec<_> = names.iter().map(|name| used(name, true)).collect();
    let links: Vec<_> = names.iter().map(|name| (name.as_str(), 1, None)).collect();
    let figures = |mut links: Vec<(&str, usize, Option<&'static str>)>| {
        let last = links.last_mut().expect("some");
        (last.1, last.2) = (0, Some("other words"));
        Some(heard(&links))
    };
    let listed = |endpoints: &[UsedEndpoint], figures| {
        let told = told(None, endpoints, figures).speculation;
        told.expect("it speculates").endpoints
    };
    let few = listed(&endpoints[..64], None);
    assert_eq!(few.len(), 64);
    let listed = listed(&endpoints, figures(links));
    assert_eq!(listed.len(), MOST_ENDPOINTS as usize);
    assert_eq!((&*listed[0].name, &*listed[63].name), ("e00", "e69"));
}
