//! An endpoint that is connected and says nothing.

use std::time::Duration;

use foretoken_protocol::link::{LinkEvent, Welcome};

use super::rig::{Fault, Output, Rig, plain, request, slow_language};
use crate::config::{LookaheadConfig, TargetConfig};

const TOKENS: u32 = 30;

fn rig() -> Rig {
    let steps = slow_language(Duration::from_micros(500), Duration::ZERO);
    let config = TargetConfig {
        lookahead: LookaheadConfig::Fixed(4),
        ..TargetConfig::default()
    };
    let mut rig = Rig::new(config, steps, 1.0);
    rig.connect();
    rig
}

/// Serves one request after the other, each as if there were no endpoint; says what they took on
/// average.
fn serve(rig: &mut Rig, seeds: std::ops::Range<u64>) -> Duration {
    let count = (seeds.end - seeds.start) as u32;
    let started = rig.worker.clock.now();
    for seed in seeds {
        let asked = request(seed, 0.7, TOKENS);
        let mut output = rig.ask(asked.clone());
        rig.run(std::slice::from_mut(&mut output));
        assert_eq!(output.tokens, plain(&asked));
    }
    rig.worker.clock.now().saturating_duration_since(started) / count
}

/// Serves requests until the endpoint is given up.
fn until_given_up(rig: &mut Rig) {
    rig.fault = Fault::Silent;
    serve(rig, 0..20);
    assert_eq!(rig.counted("foretoken_link_failures_total"), 1);
}

#[test]
fn it_does_not_slow_each_request_anew() {
    let mut rig = rig();
    // With an endpoint that is right every request has a fifth of the steps.
    let plainly = Duration::from_micros(500) * (TOKENS + 2);
    until_given_up(&mut rig);
    let opens = rig.opens;
    let took = serve(&mut rig, 20..60);
    assert!(rig.opens <= opens + 1, "{} {opens}", rig.opens);
    assert!(took < plainly * 5 / 4, "{took:?} {plainly:?}");
    rig.assert_idle();
}

#[test]
fn when_it_answers_again_all_that_run_are_bound_to_it() {
    let mut rig = rig();
    until_given_up(&mut rig);
    rig.fault = Fault::None;
    let mut running: Vec<Output> = (60..64)
        .map(|seed| rig.ask(request(seed, 0.0, 400)))
        .collect();
    for output in &mut running {
        rig.until(output, 10);
    }
    let bound = |rig: &Rig| rig.worker.metrics.sessions.get();
    assert_eq!(bound(&rig), 0);
    rig.pass(Duration::from_secs(2));
    let mut tried = rig.ask(request(65, 0.0, 400));
    rig.until(&mut tried, 10);
    assert_eq!(bound(&rig), 5);
    rig.run(&mut running);
    assert!(running.iter().all(|output| output.stats().accepted > 100));
}

#[test]
fn another_one_gets_what_it_would_have_got() {
    let mut rig = rig();
    rig.endpoints(&[("mute", 2), ("draft", 1)]);
    rig.hear(2, LinkEvent::Up(Welcome::default()));
    // All that is said is said by the other one.
    serve(&mut rig, 0..20);
    assert_eq!(rig.counted("foretoken_link_failures_total"), 1);
    let mut output = rig.ask(request(20, 0.0, 80));
    rig.run(std::slice::from_mut(&mut output));
    assert!(output.stats().accepted > 50, "{:?}", output.stats());
}
