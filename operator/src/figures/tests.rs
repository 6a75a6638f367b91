use std::time::Duration;

use foretoken_service::report::{EndpointReport, ModelReport, TargetReport};

use super::*;

fn link(name: &str, link: LinkState, rounds: Rounds) -> EndpointReport {
    EndpointReport {
        name: name.into(),
        link,
        trouble: (link != LinkState::Up).then(|| format!("{name} is not there")),
        rounds,
        ..EndpointReport::default()
    }
}

fn target(endpoints: Vec<EndpointReport>) -> Report {
    Report {
        target: Some(TargetReport {
            endpoints,
            ..TargetReport::default()
        }),
        ..Report::default()
    }
}

fn rounds(windows: u64, accepted: u64, hits: u64, misses: u64) -> Rounds {
    Rounds {
        windows,
        accepted,
        hits,
        misses,
    }
}

/// A pod that said one thing and, half a minute later, another.
fn spoke(first: Report, second: Report) -> History {
    let mut history = History::new(Duration::ZERO, first);
    history.hear(Duration::from_secs(30), second);
    history
}

fn named(namespace: &str, name: &str) -> Named {
    (namespace.into(), name.into())
}

#[test]
fn links_are_of_endpoints_and_rounds_of_late_are_added_over_targets() {
    let one = |counted| target(vec![link("d/tiny@10.0.0.1", LinkState::Up, counted)]);
    let first = spoke(one(rounds(1000, 100, 0, 0)), one(rounds(1100, 500, 30, 10)));
    let second = spoke(
        target(vec![]),
        target(vec![
            link("d/tiny@10.0.0.2", LinkState::Refused, rounds(0, 0, 0, 0)),
            link("d/other@10.0.0.3", LinkState::Down, rounds(100, 100, 0, 0)),
            link("by-hand", LinkState::Up, rounds(0, 0, 0, 0)),
        ]),
    );
    let figures = deployment([&first, &second]).expect("heard");
    let tiny = &figures.links[&named("d", "tiny")];
    assert_eq!(tiny.up, 1);
    assert!(
        tiny.refused
            .as_ref()
            .is_some_and(|why| why.contains("tiny"))
    );
    let other = &figures.links[&named("d", "other")];
    assert_eq!((other.up, other.refused.is_none()), (0, true));
    assert_eq!(figures.links.len(), 2);
    assert_eq!(figures.rounds, rounds(200, 500, 30, 10));
    assert!(deployment([]).is_none());
}

#[test]
fn counts_of_a_target_that_was_heard_once_say_nothing_of_late() {
    let once = target(vec![link("d/tiny@1", LinkState::Up, rounds(9, 9, 9, 9))]);
    let history = History::new(Duration::ZERO, once);
    let figures = deployment([&history]).expect("heard");
    assert_eq!(figures.rounds, Rounds::default());
}

fn draft(in_use: u32, up: f64, busy: f64, consumers: &[(&str, &str, u32)]) -> Report {
    let consumers = consumers
        .iter()
        .map(|(namespace, name, slots)| ConsumerReport {
            namespace: (*namespace).into(),
            deployment: (*name).into(),
            links: 1,
            slots: *slots,
        });
    Report {
        model: ModelReport {
            tokenizer: "digest".into(),
            ..ModelReport::default()
        },
        draft: Some(DraftReport {
            slots_in_use: in_use,
            up_seconds: up,
            busy_seconds: busy,
            consumers: consumers.collect(),
            ..DraftReport::default()
        }),
        ..Report::default()
    }
}

#[test]
fn replicas_are_added_up_with_who_uses_them_and_what_targets_say() {
    let first = spoke(
        draft(0, 100.0, 10.0, &[]),
        draft(
            3,
            130.0,
            25.0,
            &[("chat", "story", 2), ("tales", "story", 0), ("", "", 1)],
        ),
    );
    let second = spoke(
        draft(0, 5.0, 5.0, &[]),
        draft(1, 35.0, 5.0, &[("chat", "story", 1)]),
    );
    let said = |counted| target(vec![link("d/tiny@1", LinkState::Up, counted)]);
    let user = spoke(said(rounds(0, 0, 0, 0)), said(rounds(50, 100, 30, 10)));
    let by_endpoint = rounds_by_endpoint([&user]);
    let of_late = by_endpoint[&named("d", "tiny")];
    let figures = endpoint([&first, &second], of_late).expect("heard");
    assert_eq!(figures.slots_in_use, 4);
    assert_eq!(
        figures.consumers,
        [(named("chat", "story"), 3), (named("tales", "story"), 0)].into()
    );
    assert_eq!(figures.slack, Some(0.75));
    assert_eq!(figures.tokenizer.as_deref(), Some("digest"));
    assert_eq!(figures.rounds.hit_rate(), Some(0.75));
    assert!(endpoint([], of_late).is_none());
}

#[test]
fn the_slowest_download_is_told_in_tens_of_percent() {
    let pod = |done, total| {
        let fetch = Some(FetchReport { done, total });
        let report = Report {
            fetch,
            ..Report::default()
        };
        History::new(Duration::ZERO, report)
    };
    let told = fetching([&pod(89, 100), &pod(57, 100)]).expect("one");
    assert_eq!((told.percent, told.total), (50, 100));
    let unknown = fetching([&pod(0, 0)]).expect("one");
    assert_eq!(unknown.to_string(), "the model is being downloaded");
    assert_eq!(
        fetching([&History::new(Duration::ZERO, Report::default())]),
        None
    );
}

#[test]
fn a_process_that_was_started_again_has_no_slack_yet() {
    let history = spoke(draft(0, 100.0, 50.0, &[]), draft(0, 3.0, 1.0, &[]));
    let figures = endpoint([&history], Rounds::default()).expect("heard");
    assert_eq!(figures.slack, None);
}

#[test]
fn small_changes_and_figures_of_little_are_not_told() {
    let of = |accepted| rounds(100, accepted, 0, 0);
    assert_eq!(told_length(None, of(252)), Some(3.5));
    assert_eq!(told_length(Some(3.5), of(262)), Some(3.5));
    assert_eq!(told_length(Some(3.5), of(300)), Some(4.0));
    assert_eq!(told_length(Some(3.5), rounds(19, 95, 0, 0)), Some(3.5));
    assert_eq!(told_length(None, rounds(19, 95, 0, 0)), None);
    assert_eq!(told_hits(Some(0.5), rounds(0, 0, 55, 45)), Some(0.5));
    assert_eq!(told_hits(Some(0.5), rounds(0, 0, 60, 40)), Some(0.6));
    assert_eq!(told_slack(Some(0.9), None), Some(0.9));
    for (before, now, told) in [
        (None, 7, 7),
        (Some(0), 1, 1),
        (Some(1), 0, 0),
        (Some(50), 55, 50),
        (Some(50), 63, 63),
    ] {
        assert_eq!(told_count(before, now), told, "{before:?} {now}");
    }
}

#[test]
fn a_link_that_comes_up_or_is_refused_is_a_turn_and_one_more_is_none() {
    let of = |up, refused: bool| DeploymentFigures {
        links: [(
            named("d", "tiny"),
            Links {
                up,
                refused: refused.then(|| "why".into()),
                trouble: None,
            },
        )]
        .into(),
        ..DeploymentFigures::default()
    };
    assert_eq!(news_of_deployment(None, &of(1, false)), Some(News::Turn));
    let news = |before: &DeploymentFigures, now| news_of_deployment(Some(before), &now);
    assert_eq!(news(&of(1, false), of(2, false)), None);
    assert_eq!(news(&of(1, false), of(0, false)), Some(News::Turn));
    assert_eq!(news(&of(0, false), of(0, true)), Some(News::Turn));
    let accepted = |accepted| DeploymentFigures {
        rounds: rounds(100, accepted, 0, 0),
        ..of(1, false)
    };
    assert_eq!(news(&accepted(250), accepted(255)), None);
    assert_eq!(news(&accepted(250), accepted(290)), Some(News::Drift));
}

#[test]
fn sessions_that_begin_or_end_are_a_drift_and_others_are_none() {
    let of = |slots: u32| EndpointFigures {
        slots_in_use: slots,
        consumers: [(named("chat", "story"), slots)].into(),
        ..EndpointFigures::default()
    };
    let news = |before, now| news_of_endpoint(Some(&of(before)), &of(now));
    assert_eq!(news(50, 52), None);
    assert_eq!(news(0, 1), Some(News::Drift));
    assert_eq!(news(50, 25), Some(News::Drift));
    assert_eq!(news_of_endpoint(None, &of(0)), Some(News::Turn));
}

#[test]
fn load_is_of_all_targets_now_and_waiting_is_of_late() {
    let said = |admitted, waited_millis| Report {
        target: Some(TargetReport {
            load: Some(LoadReport {
                running: 3,
                places: 8,
                waiting: 1,
                admitted,
                waited_millis,
                pages: 100,
                pages_in_use: 40,
            }),
            ..TargetReport::default()
        }),
        ..Report::default()
    };
    let one = spoke(said(10, 5_000), said(14, 5_400));
    let restarted = spoke(said(900, 5_000), said(2, 100));
    let older = spoke(target(vec![]), target(vec![]));
    let load = deployment([&one, &restarted, &older]).expect("heard").load;
    assert_eq!(
        (load.heard, load.running, load.places, load.waiting),
        (2, 6, 16, 2)
    );
    assert_eq!((load.pages, load.pages_in_use), (200, 80));
    assert_eq!((load.admitted, load.waited_millis), (4, 400));
}
