//! Whatever endpoints do, the output is that of plain decoding.

mod entries;

use std::time::Duration;

use foretoken_protocol::{
    generate::GenerateRequest,
    link::{Limits, LinkEvent, LoadReport, Malformed, Welcome},
};
use foretoken_service::complaints::Complaints;
use foretoken_speculation::SessionId;

use super::endpoint::MiniEndpoint;
use super::rig::{Fault, Rig, language, plain, request, slow_language};
use crate::{
    config::{LookaheadConfig, TargetConfig},
    inbox::Message,
};

fn config(lookahead: LookaheadConfig) -> TargetConfig {
    TargetConfig {
        lookahead,
        patience: Duration::from_millis(3),
        ..TargetConfig::default()
    }
}

#[test]
fn speculation_changes_no_token_at_any_temperature_seed_or_lookahead() {
    let mut accepted = 0;
    for lookahead in [
        LookaheadConfig::Fixed(4),
        LookaheadConfig::Adaptive { max: 6 },
    ] {
        let mut rig = Rig::new(config(lookahead), language(), 0.8);
        rig.connect();
        for seed in 0..6 {
            let request = request(seed, [0.0, 0.7, 1.3][seed as usize % 3], 60);
            let mut output = rig.ask(request.clone());
            rig.run(std::slice::from_mut(&mut output));
            assert_eq!(output.tokens, plain(&request), "{request:?}");
            let stats = output.stats();
            assert!(stats.accepted <= stats.drafted);
            // Emitted = accepted + one decided a pass, the prompt's pass included.
            assert_eq!(stats.accepted + stats.rounds + 1, 60);
            accepted += stats.accepted;
        }
        rig.assert_idle();
        assert_eq!(rig.endpoint.sessions(), 0, "a slot was not given back");
    }
    assert!(accepted > 300, "the draft was hardly used: {accepted}");
}

#[test]
fn no_fault_of_an_endpoint_changes_a_token_or_ends_a_request() {
    let refusals = [true, false].map(|retry| Fault::Refuse { retry });
    for fault in Fault::OF_MESSAGES.into_iter().chain(refusals) {
        let mut rig = Rig::new(config(LookaheadConfig::Fixed(4)), language(), 0.9);
        rig.connect();
        rig.fault = fault;
        let requests: Vec<_> = (0..4).map(|seed| request(seed, 0.9, 40)).collect();
        let mut outputs: Vec<_> = requests.iter().map(|r| rig.ask(r.clone())).collect();
        rig.run(&mut outputs);
        for (request, output) in requests.iter().zip(&outputs) {
            assert_eq!(output.tokens, plain(request), "{fault:?}");
        }
        rig.assert_idle();
    }
}

#[test]
fn an_endpoint_may_die_and_come_back_in_the_middle_of_an_output() {
    let mut rig = Rig::new(config(LookaheadConfig::Fixed(4)), language(), 0.9);
    rig.connect();
    let requests: Vec<_> = (0..3).map(|seed| request(seed, 1.0, 90)).collect();
    let mut outputs: Vec<_> = requests.iter().map(|r| rig.ask(r.clone())).collect();
    let mut until = |rig: &mut Rig, tokens: usize| {
        while outputs[0].tokens.len() < tokens {
            rig.turn();
            outputs[0].collect();
        }
    };
    until(&mut rig, 20);
    rig.endpoint.restart();
    rig.link(LinkEvent::Down("killed".into()));
    let alone = rig.worker.metrics.draft_tokens.get();
    until(&mut rig, 40);
    assert!(
        rig.worker.metrics.draft_tokens.get() <= alone + 12,
        "windows came from nowhere"
    );
    rig.link(LinkEvent::Up(Welcome::default()));
    let back = rig.worker.metrics.draft_tokens.get();
    rig.run(&mut outputs);
    assert!(
        rig.worker.metrics.draft_tokens.get() > back,
        "the endpoint was not used again"
    );
    for (request, output) in requests.iter().zip(&outputs) {
        assert_eq!(output.tokens, plain(request));
    }
    rig.assert_idle();
}

#[test]
fn an_incompatible_endpoint_or_one_that_leaves_is_passed_over() {
    for event in [
        LinkEvent::Incompatible("the vocabularies differ".into()),
        LinkEvent::Load(LoadReport {
            slots: 2,
            used: 0,
            draining: true,
        }),
    ] {
        let mut rig = Rig::new(config(LookaheadConfig::Fixed(4)), language(), 1.0);
        rig.connect();
        rig.link(event);
        let request = request(1, 1.0, 20);
        let mut output = rig.ask(request.clone());
        rig.run(std::slice::from_mut(&mut output));
        assert_eq!(output.tokens, plain(&request));
        assert_eq!(output.stats().drafted, 0);
        assert_eq!(rig.endpoint.sessions(), 0);
    }
}

#[test]
fn a_full_endpoint_is_asked_unless_this_target_has_all_of_it() {
    let mut rig = Rig::new(config(LookaheadConfig::Fixed(4)), language(), 1.0);
    rig.connect();
    rig.link(LinkEvent::Load(LoadReport {
        slots: 2,
        used: 2,
        draining: false,
    }));
    let requests: Vec<_> = (1..=4).map(|seed| request(seed, 1.0, 40)).collect();
    let mut outputs: Vec<_> = requests
        .iter()
        .map(|asked| rig.ask(asked.clone()))
        .collect();
    for _ in 0..6 {
        rig.turn();
    }
    assert_eq!(rig.endpoint.sessions(), 2);
    rig.run(&mut outputs);
    for (request, output) in requests.iter().zip(&outputs) {
        assert_eq!(output.tokens, plain(request));
    }
    rig.assert_idle();
}

#[test]
fn an_endpoint_that_gets_room_takes_the_requests_that_run_without_one() {
    let mut rig = Rig::new(config(LookaheadConfig::Fixed(4)), language(), 1.0);
    rig.connect();
    rig.link(LinkEvent::Load(LoadReport {
        slots: 2,
        used: 2,
        draining: false,
    }));
    rig.fault = Fault::Refuse { retry: true };
    let request = request(1, 1.0, 60);
    let mut output = rig.ask(request.clone());
    while output.tokens.len() < 10 {
        rig.turn();
        output.collect();
    }
    assert_eq!(rig.endpoint.sessions(), 0);
    rig.fault = Fault::None;
    rig.link(LinkEvent::Load(LoadReport {
        slots: 2,
        used: 1,
        draining: false,
    }));
    rig.run(std::slice::from_mut(&mut output));
    assert_eq!(output.tokens, plain(&request));
    assert!(output.stats().accepted > 20);
}

/// A target whose steps are slow, with an endpoint whose every proposal is wrong.
fn unprofitable() -> Rig {
    let slow = slow_language(Duration::from_millis(1), Duration::from_millis(1));
    let config = config(LookaheadConfig::Adaptive { max: 6 });
    let mut rig = Rig::new(config, slow, 0.0);
    rig.endpoint = MiniEndpoint::new(&language(), 0.0);
    rig.connect();
    rig
}

/// How a request was served.
struct Served {
    /// Whether a session was ever open.
    bound: bool,
    /// Tokens drafted for it.
    drafted: u32,
}

fn serve(rig: &mut Rig, request: &GenerateRequest) -> Served {
    let mut output = rig.ask(request.clone());
    let mut bound = false;
    while !output.collect() {
        rig.turn();
        bound |= rig.endpoint.sessions() > 0;
    }
    rig.turn();
    assert_eq!(output.tokens, plain(request));
    Served {
        bound,
        drafted: output.stats().drafted,
    }
}

#[test]
fn requests_are_not_bound_while_no_lookahead_pays_and_are_again_once_one_does() {
    let mut rig = unprofitable();
    let serve = |rig: &mut Rig, seed, tokens| serve(rig, &request(seed, 0.0, tokens));
    assert!(serve(&mut rig, 0, 40).bound, "nothing is known at first");
    let served = (1..=20).map(|seed| serve(&mut rig, seed, 40));
    let bound = served.filter(|served| served.bound).count();
    assert!(
        (1..10).contains(&bound),
        "{bound} of 20 were bound to probe"
    );
    rig.endpoint = MiniEndpoint::new(&language(), 1.0);
    // Outputs that end before an endpoint has settled are enough for a probe.
    let probed = (21..500).any(|seed| serve(&mut rig, seed, 8).drafted > 0);
    assert!(probed, "short outputs never get as far as a probe");
    let again = (500..800).any(|seed| serve(&mut rig, seed, 40).drafted > 20);
    assert!(again, "a draft that has become good is never found out");
    rig.assert_idle();
}

#[test]
fn a_request_for_which_no_lookahead_pays_is_let_go_by_its_endpoint() {
    let mut rig = unprofitable();
    let mut output = rig.ask(request(0, 0.0, 400));
    let mut sessions = Vec::new();
    while !output.collect() {
        rig.turn();
        sessions.push(rig.endpoint.sessions());
    }
    let left = sessions.windows(2).position(|pair| pair == [1, 0]);
    assert!(
        left.is_some_and(|left| left < sessions.len() / 2),
        "{sessions:?}"
    );
    rig.turn();
    rig.assert_idle();
}

#[test]
fn what_is_learned_of_sampled_requests_does_not_decide_for_greedy_ones() {
    let mut rig = unprofitable();
    let served = (0..20).map(|seed| serve(&mut rig, &request(seed, 1.0, 40)));
    let bound = served.filter(|served| served.bound).count();
    assert!(bound < 10, "sampled requests are bound in vain");
    rig.endpoint = MiniEndpoint::new(&language(), 1.0);
    let Served { bound, drafted, .. } = serve(&mut rig, &request(20, 0.0, 40));
    // A probe would be one window.
    assert!(
        bound && drafted > 20,
        "{drafted} drafted for the first greedy request"
    );
    rig.assert_idle();
}

#[test]
fn an_endpoint_that_fails_again_and_again_is_counted_each_time_and_logged_once() {
    let mut rig = Rig::new(config(LookaheadConfig::Fixed(4)), language(), 1.0);
    rig.connect();
    let trouble = |rig: &Rig| rig.worker.endpoints.list[0].trouble.clone();
    assert_eq!(trouble(&rig), None);
    let reason = "the vocabularies differ";
    for _ in 0..3 {
        rig.link(LinkEvent::Incompatible(reason.into()));
        // What is known already is not logged.
        assert_eq!(trouble(&rig).as_deref(), Some(reason));
    }
    assert_eq!(rig.worker.metrics.link_failures("refused"), 3);
    assert_eq!(rig.worker.metrics.link_failures("lost"), 0);
    rig.connect();
    assert_eq!(trouble(&rig), None, "it is news if it fails again");
    rig.link(LinkEvent::Down("killed".into()));
    assert_eq!(rig.worker.metrics.link_failures("lost"), 1);
}

#[test]
fn what_cannot_be_read_ends_the_session_there_and_no_endpoint_counts_that_has_gone() {
    let mut rig = Rig::new(config(LookaheadConfig::Fixed(4)), language(), 0.9);
    rig.connect();
    let asked = request(1, 1.0, 60);
    let mut output = rig.ask(asked.clone());
    while rig.endpoint.sessions() == 0 {
        rig.turn();
    }
    let links_up = |rig: &Rig| rig.worker.metrics.links_up.get();
    assert_eq!(links_up(&rig), 1);
    let malformed = Malformed {
        session: Some(SessionId(1)),
        reason: "it is cut off".into(),
    };
    rig.link(LinkEvent::Malformed(vec![malformed].into()));
    rig.turn();
    assert_eq!(rig.endpoint.sessions(), 0, "it is told that it is over");
    assert_eq!(rig.worker.metrics.sessions.get(), 0);
    assert_eq!(rig.worker.metrics.malformed.get(), 1);
    let complaints = &rig.worker.endpoints.list[0].complaints;
    assert_ne!(*complaints, Complaints::default(), "the log tells of it");
    rig.run(std::slice::from_mut(&mut output));
    assert_eq!(output.tokens, plain(&asked));
    rig.worker.take(Message::Endpoints(Vec::new()));
    assert_eq!(links_up(&rig), 0);
}

#[test]
fn a_request_longer_than_a_draft_model_is_not_sent_to_its_endpoint() {
    // The prompt has 20 tokens.
    for (max_positions, sessions) in [(20, 0), (21, 1)] {
        let mut rig = Rig::new(config(LookaheadConfig::Fixed(4)), language(), 0.9);
        rig.connect();
        let limits = Limits {
            max_positions,
            ..Limits::default()
        };
        let welcome = Welcome {
            limits,
            ..Welcome::default()
        };
        rig.link(LinkEvent::Down("it is replaced".into()));
        rig.link(LinkEvent::Up(welcome));
        let mut output = rig.ask(request(1, 1.0, 60));
        while output.tokens.len() < 10 {
            rig.turn();
            output.collect();
        }
        assert_eq!(rig.endpoint.sessions(), sessions);
        rig.run(std::slice::from_mut(&mut output));
    }
}
