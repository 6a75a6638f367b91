//! Who is bound to which endpoint, and what targets believe of its slots.

use std::time::Duration;

use foretoken_protocol::link::{LinkEvent, Welcome};
use foretoken_speculation::{Epoch, SessionId, message::ToTarget};

use super::rig::{Fault, Rig, language, plain, request};
use crate::config::{LookaheadConfig, TargetConfig};

fn rig() -> Rig {
    let config = TargetConfig {
        lookahead: LookaheadConfig::Fixed(4),
        ..TargetConfig::default()
    };
    let mut rig = Rig::new(config, language(), 1.0);
    rig.connect();
    rig
}

/// It refuses the `number`-th request, for now.
fn refuse(rig: &mut Rig, number: u64) {
    let refused = ToTarget::Refused {
        session: SessionId(number),
        epoch: Epoch(1),
        reason: "all slots are taken".into(),
        retry: true,
    };
    rig.link(LinkEvent::Messages(vec![refused].into()));
}

fn has_room(rig: &Rig) -> bool {
    rig.worker.endpoints.list[0].has_room()
}

#[test]
fn sessions_that_follow_one_another_take_no_more_slots_than_one() {
    let mut rig = rig();
    rig.load(4, 0);
    for seed in 0..6 {
        // Its endpoint has nothing to report, or does so only after the next has come.
        let mut output = rig.ask(request(seed, 1.0, 20));
        rig.run(std::slice::from_mut(&mut output));
        assert!(output.stats().accepted > 0);
        assert!(has_room(&rig), "after request {seed}");
    }
    rig.fault = Fault::Refuse { retry: false };
    for seed in 6..12 {
        let mut output = rig.ask(request(seed, 1.0, 20));
        rig.run(std::slice::from_mut(&mut output));
        assert!(has_room(&rig), "after refusing request {seed}");
    }
    assert_eq!(rig.worker.endpoints.list[0].slots.used(), 0);
}

#[test]
fn a_session_that_gives_its_slot_to_another_target_leaves_it_taken() {
    let mut rig = rig();
    let mut output = rig.ask(request(1, 1.0, 60));
    rig.until(&mut output, 10);
    rig.load(1, 1);
    refuse(&mut rig, 1);
    assert!(!has_room(&rig));
    rig.endpoint.restart();
    rig.run(std::slice::from_mut(&mut output));
}

#[test]
fn a_session_that_begins_anew_is_not_counted_twice() {
    let mut rig = rig();
    rig.load(2, 0);
    let mut output = rig.ask(request(1, 1.0, 90));
    for tokens in [10, 30, 50] {
        rig.until(&mut output, tokens);
        // Of the next verdict it says that it does not know the session.
        rig.endpoint.restart();
    }
    rig.run(std::slice::from_mut(&mut output));
    assert!(rig.worker.metrics.resyncs.get() >= 2);
    assert_eq!(rig.worker.endpoints.list[0].slots.used(), 0);
}

#[test]
fn who_waits_for_a_slot_gets_the_one_that_its_own_target_gave_back() {
    let mut rig = rig();
    let (short, long) = (request(1, 1.0, 30), request(2, 1.0, 400));
    let mut first = rig.ask(short);
    rig.until(&mut first, 1);
    rig.load(1, 1);
    // The endpoint has one slot, so this one runs without.
    let mut second = rig.ask(long.clone());
    rig.run(std::slice::from_mut(&mut first));
    rig.turn();
    assert_eq!(rig.endpoint.sessions(), 0);
    rig.load(1, 0);
    rig.run(std::slice::from_mut(&mut second));
    assert!(second.stats().accepted > 0, "it ran to its end without");
    assert_eq!(second.tokens, plain(&long));
}

#[test]
fn who_waits_to_ask_again_does_so_though_another_endpoint_comes_that_it_may_not_have() {
    let mut rig = rig();
    rig.endpoints(&[("draft", 1), ("other", 2)]);
    let mut asked = request(1, 1.0, 60);
    asked.endpoints = vec!["draft".into()];
    let mut output = rig.ask(asked.clone());
    rig.until(&mut output, 5);
    refuse(&mut rig, 1);
    rig.endpoint.restart();
    rig.hear(2, LinkEvent::Up(Welcome::default()));
    rig.until(&mut output, 10);
    assert_eq!(rig.endpoint.sessions(), 0, "it is too early");
    rig.pass(Duration::from_millis(500));
    rig.until(&mut output, 30);
    assert_eq!(rig.endpoint.sessions(), 1);
    rig.run(std::slice::from_mut(&mut output));
    assert_eq!(output.tokens, plain(&asked));
}
