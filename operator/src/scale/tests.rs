use super::*;

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn scaling(min: u32, max: u32) -> Scaling<DraftMetric> {
    Scaling {
        min,
        max,
        metric: DraftMetric::SlotUse,
    }
}

fn pressure(ratio: f64, heard: u32) -> Pressure {
    Pressure {
        ratio,
        heard,
        what: String::new(),
    }
}

#[test]
fn a_new_pool_begins_with_the_fewest_and_stays_within_its_bounds() {
    let mut scaler = Scaler::default();
    let bounds = scaling(2, 5);
    assert_eq!(scaler.replicas(&bounds, None, None, seconds(0)), 2);
    assert_eq!(scaler.replicas(&bounds, Some(9), None, seconds(15)), 5);
    assert_eq!(scaler.replicas(&bounds, Some(1), None, seconds(30)), 2);
    let crushed = pressure(f64::INFINITY, 4);
    assert_eq!(
        scaler.replicas(&bounds, Some(4), Some(&crushed), seconds(45)),
        5
    );
}

#[test]
fn more_come_at_once_and_in_proportion() {
    for (current, ratio, wanted) in [
        (1, 1.3, 2),
        (4, 1.5, 6),
        (4, 1.09, 4),
        (4, 9.0, 8),
        (40, 9.0, 80),
        (2, f64::INFINITY, 4),
    ] {
        let mut scaler = Scaler::default();
        let pressed = pressure(ratio, current);
        let told = scaler.replicas(&scaling(1, 100), Some(current), Some(&pressed), seconds(0));
        assert_eq!(told, wanted, "{current} under {ratio}");
    }
}

#[test]
fn replicas_that_do_not_speak_count_as_idle_for_more_and_as_busy_for_fewer() {
    for (current, heard, ratio, wanted) in [
        (4, 2, 1.6, 4),
        (4, 2, 0.1, 3),
        (4, 2, 0.5, 3),
        (4, 3, 0.1, 2),
        (10, 9, 0.2, 3),
        // What is left alone is a part of the whole pool.
        (10, 1, 0.1, 10),
        (2, 1, 0.9, 2),
    ] {
        let told = advise(current, &pressure(ratio, heard));
        assert_eq!(
            told, wanted,
            "{heard} of {current} speak, and are under {ratio}"
        );
    }
}

#[test]
fn a_replica_that_never_speaks_keeps_no_others() {
    let mut scaler = Scaler::default();
    let (bounds, mut current) = (scaling(1, 10), 8);
    let mut turned = Vec::new();
    for at in (0..1800).step_by(15) {
        let idle = pressure(0.1, current - 1);
        let told = scaler.replicas(&bounds, Some(current), Some(&idle), seconds(at));
        if told != current {
            turned.push((at, told));
        }
        current = told;
    }
    assert_eq!(turned, [(315, 2)], "the one that speaks, and the other");
}

#[test]
fn fewer_only_after_five_calm_minutes_and_to_the_most_that_was_advised_in_them() {
    let mut scaler = Scaler::default();
    let bounds = scaling(1, 10);
    let mut current = 6;
    let mut turned = Vec::new();
    for at in (0..1200).step_by(15) {
        // A peak that wants three of six in the middle of the calm.
        let ratio = if at == 150 { 0.5 } else { 0.2 };
        let told = scaler.replicas(
            &bounds,
            Some(current),
            Some(&pressure(ratio, current)),
            seconds(at),
        );
        if told != current {
            turned.push((at, told));
        }
        current = told;
    }
    assert_eq!(turned, [(315, 3), (465, 2), (630, 1)]);
}

#[test]
fn a_pool_that_nobody_speaks_for_stays_as_it_is() {
    let mut scaler = Scaler::default();
    for at in (0..900).step_by(15) {
        assert_eq!(
            scaler.replicas(&scaling(1, 10), Some(6), None, seconds(at)),
            6
        );
    }
    assert_eq!(
        of_targets(TargetMetric::QueueTime, &TargetLoad::default()),
        None
    );
    assert_eq!(
        of_drafts(DraftMetric::SlotUse, &EndpointFigures::default()),
        None
    );
}

#[test]
fn targets_are_pressed_by_who_waits_and_by_what_is_full() {
    let busy = TargetLoad {
        heard: 2,
        running: 64,
        places: 128,
        admitted: 10,
        waited_millis: 3000,
        pages: 1000,
        pages_in_use: 880,
        ..TargetLoad::default()
    };
    let queue = of_targets(TargetMetric::QueueTime, &busy).expect("heard");
    assert!((queue.ratio - 3.0).abs() < 1e-9, "{queue:?}");
    assert_eq!(
        queue.what,
        "requests wait 300 ms for a place, 50 % of the places are taken"
    );
    let pages = of_targets(TargetMetric::PageUse, &busy).expect("heard");
    assert!((pages.ratio - 1.1).abs() < 1e-9, "{pages:?}");
    let calm = TargetLoad {
        waited_millis: 0,
        ..busy
    };
    let places = of_targets(TargetMetric::QueueTime, &calm).expect("heard");
    assert!(
        (places.ratio - 0.5 / 0.9).abs() < 1e-9,
        "as many as are needed: {places:?}"
    );
    let stuck = |over| {
        let load = TargetLoad {
            admitted: 0,
            waited_millis: 0,
            waiting: 3,
            over,
            ..busy
        };
        of_targets(TargetMetric::QueueTime, &load).expect("heard")
    };
    assert!(stuck(STUCK).ratio.is_infinite());
    // An operator that has just begun has heard of nobody who was given a place.
    let new = stuck(STUCK.saturating_sub(Duration::from_millis(1)));
    assert!((new.ratio - 0.5 / 0.9).abs() < 1e-9, "{new:?}");
}

#[test]
fn drafts_are_pressed_by_slots_by_work_and_by_lateness() {
    let figures = EndpointFigures {
        heard: 2,
        slots: 64,
        slots_in_use: 48,
        slack: Some(0.3),
        timely_tokens: 900,
        late_tokens: 100,
        ..EndpointFigures::default()
    };
    let ratio = |metric, figures: &EndpointFigures| of_drafts(metric, figures).map(|of| of.ratio);
    let near = |told: Option<f64>, wanted: f64| {
        assert!(
            told.is_some_and(|told| (told - wanted).abs() < 1e-9),
            "{told:?}"
        );
    };
    near(ratio(DraftMetric::SlotUse, &figures), 1.0);
    near(ratio(DraftMetric::Slack, &figures), 1.0);
    near(ratio(DraftMetric::LateEntries, &figures), 2.0);
    let few = EndpointFigures {
        timely_tokens: 9,
        late_tokens: 9,
        ..figures.clone()
    };
    near(ratio(DraftMetric::LateEntries, &few), 0.75 / 0.9);
    let silent = EndpointFigures {
        slack: None,
        ..figures
    };
    assert_eq!(ratio(DraftMetric::Slack, &silent), None);
}
