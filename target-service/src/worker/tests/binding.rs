//! Who is bound to which endpoint, and what targets believe of its slots.

use std::time::Duration;

use foretoken_engine::schedule::RequestId;
use foretoken_protocol::{
    generate::GenerateRequest,
    link::{LinkEvent, LoadReport, Malformed, Welcome},
};
use foretoken_speculation::{Epoch, SessionId, message::ToTarget};

use super::{
    endpoint::MiniEndpoint,
    rig::{Fault, Output, Rig, language, plain, request, slow_language},
};
use crate::{
    config::{LookaheadConfig, TargetConfig},
    inbox::LinkKey,
};

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
    refuse_at(rig, 1, number, true);
}

/// The endpoint of a link refuses what the `number`-th request asks it, for now or for good.
fn refuse_at(rig: &mut Rig, link: u64, number: u64, retry: bool) {
    let session = &rig.worker.requests[&RequestId(number)].session;
    let refused = ToTarget::Refused {
        session: session.id(),
        epoch: session.epoch(),
        reason: "all slots are taken".into(),
        retry,
    };
    rig.hear(link, LinkEvent::Messages(vec![refused].into()));
}

/// The endpoint that the `number`-th request has, or waits for.
fn link_of(rig: &Rig, number: u64) -> Option<LinkKey> {
    rig.worker.requests[&RequestId(number)].link
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

#[test]
fn a_slot_that_is_free_again_is_asked_for_once_whoever_waits_for_one() {
    let mut rig = rig();
    rig.load(8, 8);
    rig.fault = Fault::Refuse { retry: true };
    let mut outputs: Vec<_> = (1..=7).map(|n| rig.ask(request(n, 1.0, 400))).collect();
    rig.until(&mut outputs[0], 5);
    assert_eq!((rig.opens, rig.endpoint.sessions()), (7, 0));
    rig.fault = Fault::None;
    rig.load(8, 7);
    rig.until(&mut outputs[0], 10);
    assert_eq!((rig.opens, rig.endpoint.sessions()), (8, 1));
    // As many as there are.
    rig.load(8, 8);
    rig.load(8, 5);
    rig.until(&mut outputs[0], 15);
    assert_eq!((rig.opens, rig.endpoint.sessions()), (11, 4));
}

#[test]
fn a_refusal_frees_no_slot_that_an_endpoint_has_counted_since() {
    let mut rig = rig();
    rig.load(4, 3);
    // It is asked by two, whom it does not answer yet.
    rig.fault = Fault::Lose(1);
    for number in 1..=2 {
        let mut output = rig.ask(request(number, 1.0, 60));
        rig.until(&mut output, 1);
    }
    // It took the first, had no slot for the second, and says so with how many are taken.
    rig.load(4, 4);
    refuse(&mut rig, 2);
    assert!(!has_room(&rig));
}

/// A request that its endpoint refused for now, and that has asked the other one since, which does not answer.
fn asks_the_other(asked: &GenerateRequest) -> (Rig, Output) {
    let mut rig = rig();
    rig.endpoints(&[("draft", 1), ("other", 2)]);
    rig.hear(2, LinkEvent::Up(Welcome::default()));
    let mut output = rig.ask(asked.clone());
    rig.until(&mut output, 5);
    refuse(&mut rig, 1);
    rig.until(&mut output, 10);
    assert_eq!(rig.opens, 2, "the other one is asked");
    (rig, output)
}

/// Such a request asks the first endpoint again when the other says this.
fn asks_the_first_again_after(event: LinkEvent) {
    let asked = request(1, 1.0, 60);
    let (mut rig, mut output) = asks_the_other(&asked);
    rig.hear(2, event);
    rig.until(&mut output, 30);
    assert_eq!(rig.opens, 3);
    assert!(output.tokens.len() < 60, "all of it came at once");
    rig.run(std::slice::from_mut(&mut output));
    assert_eq!(output.tokens, plain(&asked));
}

#[test]
fn who_loses_its_endpoint_asks_the_one_again_that_had_nothing_for_it_then() {
    asks_the_first_again_after(LinkEvent::Down("killed".into()));
}

#[test]
fn a_refusal_is_forgotten_after_a_while() {
    let asked = request(1, 1.0, 60);
    let (mut rig, mut output) = asks_the_other(&asked);
    // It asks again in half a second, in one more and so on, so long only where it is.
    for (after, link) in [(0, 2), (3, 2), (2, 1)] {
        rig.pass(Duration::from_secs(after));
        let tokens = output.tokens.len();
        rig.until(&mut output, tokens + 2);
        refuse_at(&mut rig, 2, 1, true);
        assert_eq!(link_of(&rig, 1), Some(LinkKey(link)), "{after} s later");
    }
    rig.run(std::slice::from_mut(&mut output));
    assert_eq!(output.tokens, plain(&asked));
    assert!(output.stats().accepted > 10, "the first one has room again");
}

/// A target whose endpoint, of link 1, is of no use, with another one, of link 2, which comes before it.
fn beside_one_of_no_use() -> Rig {
    let config = TargetConfig {
        lookahead: LookaheadConfig::Adaptive { max: 4 },
        ..TargetConfig::default()
    };
    let ms = Duration::from_millis(1);
    let mut rig = Rig::new(config, slow_language(ms, ms), 0.0);
    rig.endpoint = MiniEndpoint::new(&language(), 0.0);
    rig.connect();
    let mut output = rig.ask(request(1, 0.0, 200));
    rig.run(std::slice::from_mut(&mut output));
    assert_eq!(rig.endpoint.sessions(), 0, "it was let go");
    rig.endpoints(&[("other", 2), ("draft", 1)]);
    rig.hear(2, LinkEvent::Up(Welcome::default()));
    rig
}

#[test]
fn who_is_refused_for_now_waits_there_rather_than_for_an_endpoint_of_no_use() {
    let mut rig = beside_one_of_no_use();
    let load = LoadReport {
        slots: 64,
        used: 10,
        draining: false,
    };
    rig.hear(2, LinkEvent::Load(load));
    let numbers = 2..=41;
    let mut outputs: Vec<_> = numbers
        .clone()
        .map(|number| rig.ask(request(number, 0.0, 400)))
        .collect();
    rig.until(&mut outputs[39], 2);
    for number in numbers.clone() {
        assert_eq!(link_of(&rig, number), Some(LinkKey(2)), "{number}");
        refuse_at(&mut rig, 2, number, number < 41);
    }
    // It is short of pages: that it has slots is no news.
    rig.hear(2, LinkEvent::Load(load));
    let waits = |rig: &Rig, number: &u64| link_of(rig, *number) == Some(LinkKey(2));
    let (waiting, others): (Vec<_>, Vec<_>) = numbers.partition(|number| waits(&rig, number));
    assert!(others.contains(&41), "it need not wait");
    assert!((2..12).contains(&others.len()), "{others:?} find out");
    rig.pass(Duration::from_millis(600));
    let tokens = outputs[39].tokens.len();
    rig.until(&mut outputs[39], tokens + 2);
    for number in waiting {
        let session = &rig.worker.requests[&RequestId(number)].session;
        assert!(session.is_bound(), "{number} has not asked again");
    }
}

#[test]
fn who_runs_unbound_asks_for_no_more_slots_than_there_are() {
    let config = TargetConfig {
        lookahead: LookaheadConfig::Adaptive { max: 4 },
        ..TargetConfig::default()
    };
    let mut rig = Rig::new(config, language(), 1.0);
    rig.connect();
    rig.load(2, 0);
    let mut short = rig.ask(request(1, 1.0, 40));
    let mut long: Vec<_> = (2..=6).map(|n| rig.ask(request(n, 1.0, 400))).collect();
    rig.until(&mut long[0], 5);
    assert_eq!((rig.opens, rig.endpoint.sessions()), (2, 2));
    rig.run(std::slice::from_mut(&mut short));
    rig.load(2, 1);
    let tokens = long[0].tokens.len();
    rig.until(&mut long[0], tokens + 20);
    assert_eq!((rig.opens, rig.endpoint.sessions()), (3, 2));
}

#[test]
fn who_runs_unbound_is_not_bound_once_its_target_has_all_slots() {
    let mut rig = rig();
    rig.load(2, 0);
    let mut outputs: Vec<_> = (1..=2).map(|n| rig.ask(request(n, 1.0, 200))).collect();
    rig.until(&mut outputs[0], 5);
    for id in [1, 2] {
        rig.worker.let_go(RequestId(id));
    }
    outputs.push(rig.ask(request(3, 1.0, 200)));
    rig.turn();
    let bound = [1, 2].map(|id| rig.worker.bind_running(LinkKey(1), RequestId(id)));
    assert_eq!(bound, [true, false], "the third request has the other slot");
    rig.run(&mut outputs);
    assert_eq!(rig.opens, 4);
}

#[test]
fn a_slot_that_was_not_given_to_one_is_asked_for_by_the_next() {
    let mut rig = rig();
    rig.load(2, 2);
    rig.fault = Fault::Refuse { retry: true };
    let mut outputs: Vec<_> = (1..=3).map(|n| rig.ask(request(n, 1.0, 400))).collect();
    rig.until(&mut outputs[0], 5);
    let before = rig.opens;
    // The first does not fit, say, and the endpoint has nothing new to tell.
    rig.load(2, 1);
    rig.until(&mut outputs[0], 10);
    assert_eq!(rig.opens, before + 3);
}

#[test]
fn who_is_too_long_for_its_endpoint_asks_the_one_again_that_had_nothing_for_it_then() {
    let refused = ToTarget::Refused {
        session: SessionId(1),
        epoch: Epoch(2),
        reason: "it is too long".into(),
        retry: false,
    };
    asks_the_first_again_after(LinkEvent::Messages(vec![refused].into()));
}

#[test]
fn who_is_told_nonsense_asks_the_one_again_that_had_nothing_for_it_then() {
    let nonsense = Malformed {
        session: Some(SessionId(1)),
        reason: "a window without a round".into(),
    };
    asks_the_first_again_after(LinkEvent::Malformed(vec![nonsense].into()));
}

#[test]
fn whose_client_did_not_read_asks_the_one_again_that_had_nothing_for_it_then() {
    // More than may wait for a client.
    let asked = GenerateRequest {
        logprobs: Some(20),
        ..request(1, 1.0, 3000)
    };
    let (mut rig, mut output) = asks_the_other(&asked);
    while rig.worker.parked.is_empty() {
        rig.turn();
    }
    // Nobody is bound to it.
    rig.hear(2, LinkEvent::Down("killed".into()));
    rig.run(std::slice::from_mut(&mut output));
    assert!(rig.opens >= 3, "{}", rig.opens);
    assert_eq!(output.tokens, plain(&asked));
    assert!(output.stats().accepted > 100);
}
