//! How long windows are waited for, with several endpoints.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use foretoken_protocol::link::{LinkEvent, Welcome};

use super::rig::{Output, Rig, request, slow_language};
use crate::{
    config::{LookaheadConfig, TargetConfig},
    worker::Turn,
};

/// Two endpoints, of which each request names its own.
fn rig() -> Rig {
    let slow = slow_language(Duration::from_millis(1), Duration::ZERO);
    let config = TargetConfig {
        lookahead: LookaheadConfig::Fixed(4),
        ..TargetConfig::default()
    };
    let mut rig = Rig::new(config, slow, 1.0);
    rig.endpoints(&[("near", 1), ("far", 2)]);
    for link in 1..=2 {
        rig.hear(link, LinkEvent::Up(Welcome::default()));
    }
    rig
}

/// Serves a request with an endpoint that takes so long for whatever it says.
fn serve(rig: &mut Rig, (name, link): (&str, u64), takes: Duration) -> Output {
    let mut asked = request(link, 0.0, 80);
    asked.endpoints = vec![name.into()];
    let mut output = rig.ask(asked);
    let mut due: VecDeque<(Instant, LinkEvent)> = VecDeque::new();
    while !output.collect() {
        let turn = rig.worker.turn(None);
        let mut answers = Vec::new();
        for message in rig.sent() {
            rig.endpoint.handle(&message, &mut answers);
        }
        let now = rig.worker.clock.now();
        if !answers.is_empty() {
            due.push_back((now + takes, LinkEvent::Messages(answers.into())));
        }
        if let Turn::Idle(Some(until)) = turn {
            let until = due.front().map_or(until, |(at, _)| until.min(*at));
            rig.pass(until.saturating_duration_since(now));
        }
        let now = rig.worker.clock.now();
        while due.front().is_some_and(|(at, _)| *at <= now) {
            let event = due.pop_front().expect("it is there").1;
            rig.hear(link, event);
        }
    }
    output
}

#[test]
fn an_endpoint_is_waited_for_as_long_as_it_takes_whatever_another_takes() {
    let mut rig = rig();
    let near = serve(&mut rig, ("near", 1), Duration::from_millis(1));
    assert_eq!(near.stats().late, 0);
    let far = serve(&mut rig, ("far", 2), Duration::from_millis(20));
    assert!(far.stats().late <= 1, "{:?}", far.stats());
}

#[test]
fn what_one_request_has_learned_of_an_endpoint_the_next_one_knows() {
    let mut rig = rig();
    // Longer than anybody waits who knows nothing.
    let takes = Duration::from_millis(60);
    let first = serve(&mut rig, ("far", 2), takes);
    assert!(first.stats().late > 0);
    serve(&mut rig, ("near", 1), Duration::from_millis(1));
    let second = serve(&mut rig, ("far", 2), takes);
    assert_eq!(second.stats().late, 0);
}
